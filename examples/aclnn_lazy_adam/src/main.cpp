// execute_op ROWS DIM COUNT, in the folder that holds input/ and output/.
#include <cstdio>
#include <cstdlib>

#include "common.h"
#include "op_runner.h"

namespace {

bool InitResource() { return Succeeded(aclInit(nullptr), "aclInit") && Succeeded(aclrtSetDevice(0), "aclrtSetDevice"); }

bool DestroyResource() {
  return Succeeded(aclrtResetDevice(0), "aclrtResetDevice") && Succeeded(aclFinalize(), "aclFinalize");
}

bool RunLookupOp(int64_t rows, int64_t dim, int64_t count) {
  const OperatorDesc desc = CreateOpDesc(rows, dim, count);
  OpRunner runner(desc);
  if (!runner.Init() || !runner.SetInputData("input") || !runner.RunOp() || !runner.ProcessOutputData("output"))
    return false;
  // Each touched row: gradient and index read, three table rows read and written.
  const double bytes = static_cast<double>(count) * (static_cast<double>(dim) * 4 * 7 + 4);
  std::printf("operator: %.3f ms, %.1f MB that must be moved, %.2f GB/s\n", runner.Milliseconds(), bytes / 1e6,
              bytes / 1e6 / runner.Milliseconds());
  return true;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: execute_op ROWS DIM COUNT\n");
    return 2;
  }
  if (!InitResource()) return 1;
  const bool good = RunLookupOp(std::atoll(argv[1]), std::atoll(argv[2]), std::atoll(argv[3]));
  return DestroyResource() && good ? 0 : 1;
}
