// Files and messages.
#pragma once
#include <cstddef>
#include <string>

// Reads exactly `size` bytes; false, with a message, when the file has another size.
bool ReadFile(const std::string &path, void *buffer, size_t size);
bool WriteFile(const std::string &path, const void *buffer, size_t size);

// Prints what failed with its code and the runtime's message. True when `code` is 0.
bool Succeeded(int code, const char *what);
