// Memory on both sides, the two phases, and the results.
#pragma once
#include <aclnn/acl_meta.h>

#include "operator_desc.h"

class OpRunner {
 public:
  explicit OpRunner(const OperatorDesc &desc) : desc_(desc) {}
  OpRunner(const OpRunner &) = delete;
  OpRunner &operator=(const OpRunner &) = delete;
  ~OpRunner();

  // Allocates host and device memory and creates the tensors.
  bool Init();
  // Reads the input files.
  bool SetInputData(const std::string &folder);
  // Copies in, runs the operator on a stream, copies out.
  bool RunOp();
  // Writes the output files.
  bool ProcessOutputData(const std::string &folder) const;

  float Milliseconds() const { return milliseconds_; }

 private:
  struct Buffer {
    void *host = nullptr;
    void *device = nullptr;
    aclTensor *tensor = nullptr;
  };

  bool CopyInputs(aclrtStream stream);
  bool Launch(aclrtStream stream);
  bool CopyOutputs(aclrtStream stream);

  OperatorDesc desc_;
  std::vector<Buffer> buffers_;
  float milliseconds_ = 0;
};
