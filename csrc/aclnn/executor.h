// The two phases. Phase 1 (`Call`) collects the tensor arguments, is asked to check them, and ends in an executor;
// phase 2
// (`run`) brings tensors into contiguous memory where they are not, computes, and writes results back through the
// views.
#pragma once
#include <functional>
#include <initializer_list>
#include <mutex>

#include "errors.h"
#include "runtime.h"
#include "tensor.h"

namespace anyfuse::acl {

enum class Role { input, in_place, output };

struct Argument {
  const char *name;
  Role role;
  const aclTensor *handle;
  bool present;  // given, and not set aside by `Call::leave_alone`
  bool dead;     // given, but not a living tensor
  Tensor tensor;
};

// Where the arguments lie for the computation: contiguous, by position, null where absent or empty.
using Pointers = std::vector<void *>;
// Also gets the part of the workspace that the operator itself asked for.
using Compute = std::function<aclnnStatus(const Pointers &, void *scratch)>;

// What brings tensors into contiguous memory, and the workspace it takes.
struct Plan {
  std::vector<int64_t> copy_at;  // offset into the workspace, -1 where the tensor is used as it lies
  int64_t scratch_at = 0;
  int64_t bytes = 0;
};

struct Executor {
  static constexpr uint64_t kKind = kExecutor;
  const char *op;
  std::vector<Argument> arguments;
  Compute compute;
  int64_t scratch;
  uint64_t workspace;
  std::mutex mutex;  // guards what the setters change
  bool repeatable = false;
};

class Call {
 public:
  Call(const char *op, uint64_t *workspace_size, aclOpExecutor **executor);

  // Add the next tensor argument.
  Call &input(const char *name, const aclTensor *handle) { return add(name, Role::input, handle); }
  Call &in_place(const char *name, const aclTensor *handle) { return add(name, Role::in_place, handle); }
  Call &output(const char *name, const aclTensor *handle) { return add(name, Role::output, handle); }

  const char *op() const { return op_; }
  const Settings &settings() const { return settings_; }
  // Rules of the product in force, and whether there is none in force.
  const Limits &limits() const { return limits_; }
  bool any_product() const { return settings_.product == kAnyProduct; }
  bool has(size_t position) const { return arguments_[position].present; }
  const Tensor &operator[](size_t position) const { return arguments_[position].tensor; }
  const Argument &argument(size_t position) const { return arguments_[position]; }
  size_t count() const { return arguments_.size(); }
  // An output that the call does not produce: its memory is not touched.
  void leave_alone(size_t position) { arguments_[position].present = false; }
  // The tensor is in blocks whatever its format says: its shape, if that has so many dimensions, or its storage.
  void read_as_blocks(size_t position, int64_t rank);

  // The runtime is up and the result pointers are there: the first check of every phase 1.
  aclnnStatus begin() const;
  // Ends phase 1: checks the memory of the arguments and makes the executor.
  aclnnStatus finish(Compute compute, int64_t scratch = 0);
  // Ends phase 1 of a call that has nothing to compute.
  aclnnStatus finish_empty();

 private:
  Call &add(const char *name, Role role, const aclTensor *handle);

  const char *op_;
  uint64_t *workspace_size_;
  aclOpExecutor **executor_;
  Settings settings_;
  Limits limits_;
  std::vector<Argument> arguments_;
};

// Phase 2 of the operator `op`.
aclnnStatus run(const char *op, void *workspace, uint64_t workspace_size, aclOpExecutor *executor, aclrtStream stream);

}  // namespace anyfuse::acl
