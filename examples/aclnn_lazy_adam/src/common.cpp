#include "common.h"

#include <acl/acl.h>

#include <cstdio>
#include <fstream>

bool ReadFile(const std::string &path, void *buffer, size_t size) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || static_cast<size_t>(file.tellg()) != size) {
    std::fprintf(stderr, "%s: missing, or not %zu bytes long\n", path.c_str(), size);
    return false;
  }
  file.seekg(0);
  file.read(static_cast<char *>(buffer), static_cast<std::streamsize>(size));
  return static_cast<bool>(file);
}

bool WriteFile(const std::string &path, const void *buffer, size_t size) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char *>(buffer), static_cast<std::streamsize>(size));
  if (!file) std::fprintf(stderr, "%s: cannot be written\n", path.c_str());
  return static_cast<bool>(file);
}

bool Succeeded(int code, const char *what) {
  if (code == 0) return true;
  const char *message = aclGetRecentErrMsg();
  std::fprintf(stderr, "%s: code %d %s\n", what, code, message == nullptr ? "" : message);
  return false;
}
