#include "executor.h"

#include <cstring>

#include "aclnn/aclnn_base.h"
#include "anyfuse_internal.h"
#include "views.h"

namespace anyfuse::acl {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool takes_part(const Argument &argument) { return argument.present && argument.tensor.numel() > 0; }

// Written tensors must have memory of their own. A plain output may lie over an input: it is then computed aside.
aclnnStatus check_sharing(const char *op, const std::vector<Argument> &arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument &written = arguments[i];
    if (!takes_part(written) || written.role == Role::input) continue;
    if (const int32_t found = overlap_itself(written.tensor))
      return fail(ACLNN_ERR_PARAM_INVALID, "%s: %s has elements that %s memory (strides %s)", op, written.name,
                  found == ANYFUSE_OVERLAP ? "share" : "may share", text_of(written.tensor.strides).c_str());
    for (size_t j = 0; j < arguments.size(); ++j) {
      const Argument &other = arguments[j];
      if (i == j || !takes_part(other)) continue;
      const bool harmless = written.role == Role::output && other.role == Role::input;
      if (harmless || (other.role != Role::input && i > j)) continue;
      if (const int32_t found = overlap(written.tensor, other.tensor))
        return fail(ACLNN_ERR_PARAM_INVALID, "%s: %s %s memory with %s", op, written.name,
                    found == ANYFUSE_OVERLAP ? "shares" : "may share", other.name);
    }
  }
  return ACLNN_SUCCESS;
}

bool lies_over_an_input(const std::vector<Argument> &arguments, const Argument &output) {
  for (const Argument &other : arguments)
    if (other.role == Role::input && takes_part(other) && ranges_meet(output.tensor, other.tensor)) return true;
  return false;
}

bool needs_copy(const std::vector<Argument> &arguments, const Argument &argument) {
  if (!takes_part(argument) || argument.tensor.is_blocked()) return false;
  if (!argument.tensor.is_contiguous() || argument.tensor.first_bit() % 8 != 0) return true;
  return argument.role == Role::output && lies_over_an_input(arguments, argument);
}

Plan make_plan(const std::vector<Argument> &arguments, int64_t scratch) {
  Plan plan;
  for (const Argument &argument : arguments) {
    const bool copy = needs_copy(arguments, argument);
    plan.copy_at.push_back(copy ? plan.bytes : -1);
    if (copy) plan.bytes += aligned(packed_bytes(argument.tensor));
  }
  plan.scratch_at = plan.bytes;
  plan.bytes += scratch;
  if (plan.bytes > 0) plan.bytes += kAlignment;  // the caller's memory need not be aligned
  return plan;
}

// Known memory must be as long as the view says.
aclnnStatus check_addresses(const char *op, const std::vector<Argument> &arguments) {
  for (const Argument &argument : arguments) {
    if (!takes_part(argument)) continue;
    if (argument.tensor.data == nullptr)
      return fail(ACLNN_ERR_INNER_NULLPTR, "%s: %s has no memory (its address is null)", op, argument.name);
    const Extent extent = extent_of(argument.tensor.data);
    const uint64_t bytes = static_cast<uint64_t>((argument.tensor.end_bit() + 7) / 8);
    if (extent.known && bytes > extent.left)
      return fail(ACLNN_ERR_PARAM_INVALID, "%s: %s reaches %llu bytes behind its address; its allocation has %zu left",
                  op, argument.name, static_cast<unsigned long long>(bytes), extent.left);
  }
  return ACLNN_SUCCESS;
}

// Addresses set on the tensors since phase 1. True when one has changed.
bool refresh(std::vector<Argument> *arguments) {
  bool changed = false;
  for (Argument &argument : *arguments) {
    if (!argument.present) continue;
    const std::shared_ptr<Tensor> tensor = table<Tensor>().find(argument.handle);
    if (tensor == nullptr || tensor->data == argument.tensor.data) continue;
    argument.tensor.data = tensor->data;
    changed = true;
  }
  return changed;
}

struct Work {
  std::shared_ptr<Executor> executor;
  std::vector<Argument> arguments;
  Plan plan;
  char *workspace;
};

aclnnStatus execute(const Work &work) {
  Pointers pointers;
  for (size_t i = 0; i < work.arguments.size(); ++i) {
    const Argument &argument = work.arguments[i];
    if (!takes_part(argument)) {
      pointers.push_back(nullptr);
    } else if (work.plan.copy_at[i] < 0) {
      pointers.push_back(static_cast<char *>(argument.tensor.data) + argument.tensor.first_bit() / 8);
    } else {
      pointers.push_back(work.workspace + work.plan.copy_at[i]);
      if (argument.role != Role::output) gather(argument.tensor, pointers.back());
    }
  }
  void *scratch = work.executor->scratch > 0 ? work.workspace + work.plan.scratch_at : nullptr;
  ANYFUSE_TRY(in_default_mode([&] { return work.executor->compute(pointers, scratch); }));
  for (size_t i = 0; i < work.arguments.size(); ++i)
    if (work.plan.copy_at[i] >= 0 && work.arguments[i].role != Role::input)
      scatter(pointers[i], work.arguments[i].tensor);
  return ACLNN_SUCCESS;
}

aclnnStatus check_workspace(const char *op, const void *workspace, uint64_t given, int64_t needed) {
  if (needed == 0) return ACLNN_SUCCESS;
  if (workspace == nullptr)
    return fail(ACLNN_ERR_PARAM_NULLPTR, "%s: workspace is null; %lld bytes are needed", op,
                static_cast<long long>(needed));
  const Extent extent = extent_of(workspace);
  if (given < static_cast<uint64_t>(needed) || (extent.known && extent.left < static_cast<uint64_t>(needed)))
    return fail(ACLNN_ERR_PARAM_INVALID, "%s: the workspace has %llu bytes; %lld are needed", op,
                static_cast<unsigned long long>(extent.known ? std::min<uint64_t>(extent.left, given) : given),
                static_cast<long long>(needed));
  return ACLNN_SUCCESS;
}

aclnnStatus find_executor(const char *function, const aclOpExecutor *handle, std::shared_ptr<Executor> *executor) {
  if (handle == nullptr) return fail(ACLNN_ERR_INNER_NULLPTR, "%s: executor is null", function);
  *executor = table<Executor>().find(handle);
  if (*executor != nullptr) return ACLNN_SUCCESS;
  return fail(ACLNN_ERR_INNER, "%s: executor is not alive: it has run already, was destroyed, or never was one",
              function);
}

bool counts_as(Role role, const Argument &argument) { return argument.role == role || argument.role == Role::in_place; }

// `index` counts the arguments that `counts` picks.
template <typename Counts>
aclnnStatus set_address(const char *function, aclOpExecutor *handle, size_t index, aclTensor *tensor_handle,
                        void *address, Counts counts) {
  if (tensor_handle == nullptr) return fail(ACLNN_ERR_INNER_NULLPTR, "%s: tensor is null", function);
  std::shared_ptr<Executor> executor;
  ANYFUSE_TRY(find_executor(function, handle, &executor));
  const std::shared_ptr<Tensor> tensor = table<Tensor>().find(tensor_handle);
  if (tensor == nullptr) return fail(ACLNN_ERR_PARAM_INVALID, "%s: tensor is not a living tensor", function);
  const std::lock_guard<std::mutex> lock(executor->mutex);
  size_t position = 0;
  for (Argument &argument : executor->arguments) {
    if (!counts(argument) || position++ != index) continue;
    if (argument.handle == nullptr)
      return fail(ACLNN_ERR_PARAM_INVALID, "%s: %s was null in the first phase", function, argument.name);
    tensor->data = address;
    argument.handle = tensor_handle;
    return ACLNN_SUCCESS;
  }
  return fail(ACLNN_ERR_PARAM_INVALID, "%s: index is %zu; accepted: below %zu", function, index, position);
}

// No operator here takes a list of tensors.
aclnnStatus refuse_list(const char *function, const aclOpExecutor *handle, size_t index, const void *tensors) {
  std::shared_ptr<Executor> executor;
  ANYFUSE_TRY(find_executor(function, handle, &executor));
  if (tensors == nullptr) return fail(ACLNN_ERR_INNER_NULLPTR, "%s: tensors is null", function);
  return fail(ACLNN_ERR_PARAM_INVALID, "%s: irIndex is %zu; accepted: an argument that is a list, of which %s has none",
              function, index, executor->op);
}

}  // namespace

Call::Call(const char *op, uint64_t *workspace_size, aclOpExecutor **executor)
    : op_(op),
      workspace_size_(workspace_size),
      executor_(executor),
      settings_(acl::settings()),
      limits_(limits_of(op, settings_.product)) {}

Call &Call::add(const char *name, Role role, const aclTensor *handle) {
  Argument argument = {name, role, handle, handle != nullptr, false, {}};
  if (handle != nullptr) {
    const std::shared_ptr<Tensor> tensor = table<Tensor>().find(handle);
    argument.dead = tensor == nullptr;
    if (tensor != nullptr) argument.tensor = *tensor;
  }
  arguments_.push_back(std::move(argument));
  return *this;
}

void Call::read_as_blocks(size_t position, int64_t rank) {
  Tensor &tensor = arguments_[position].tensor;
  tensor.format = ACL_FORMAT_FRACTAL_NZ;
  if (tensor.rank() == rank) tensor.storage = tensor.shape;
}

aclnnStatus Call::begin() const {
  if (require_initialized(op_) != ACL_SUCCESS) return ACLNN_ERR_RUNTIME_ERROR;
  if (workspace_size_ == nullptr) return fail(ACLNN_ERR_PARAM_NULLPTR, "%s: workspaceSize is null", op_);
  if (executor_ == nullptr) return fail(ACLNN_ERR_PARAM_NULLPTR, "%s: executor is null", op_);
  for (const Argument &argument : arguments_)
    if (argument.dead) return fail(ACLNN_ERR_PARAM_INVALID, "%s: %s is not a living tensor", op_, argument.name);
  return ACLNN_SUCCESS;
}

aclnnStatus Call::finish(Compute compute, int64_t scratch) {
  ANYFUSE_TRY(check_sharing(op_, arguments_));
  auto executor = std::make_shared<Executor>();
  executor->op = op_;
  executor->scratch = scratch;
  executor->workspace = static_cast<uint64_t>(make_plan(arguments_, scratch).bytes);
  executor->compute = std::move(compute);
  executor->arguments = std::move(arguments_);
  *workspace_size_ = executor->workspace;
  *executor_ = static_cast<aclOpExecutor *>(table<Executor>().add(std::move(executor)));
  return *executor_ != nullptr ? ACLNN_SUCCESS
                               : fail(ACLNN_ERR_INNER_CREATE_EXECUTOR, "%s: too many executors are alive", op_);
}

aclnnStatus Call::finish_empty() {
  for (Argument &argument : arguments_) argument.present = false;
  return finish([](const Pointers &, void *) { return ACLNN_SUCCESS; });
}

aclnnStatus run(const char *op, void *workspace, uint64_t workspace_size, aclOpExecutor *handle, aclrtStream stream) {
  std::shared_ptr<Stream> where;
  if (find_stream(op, stream, &where) != ACL_SUCCESS) return ACLNN_ERR_RUNTIME_ERROR;
  Work work;
  ANYFUSE_TRY(find_executor(op, handle, &work.executor));
  if (std::strcmp(work.executor->op, op) != 0)
    return fail(ACLNN_ERR_INNER, "%s: executor was made for %s", op, work.executor->op);
  {
    const std::lock_guard<std::mutex> lock(work.executor->mutex);
    // Of two threads that run one executor once, one finds it taken.
    if (!work.executor->repeatable && table<Executor>().take(handle) == nullptr)
      return fail(ACLNN_ERR_INNER, "%s: executor has run already", op);
    const bool changed = refresh(&work.executor->arguments);
    work.arguments = work.executor->arguments;
    if (changed) ANYFUSE_TRY(check_sharing(op, work.arguments));
  }
  ANYFUSE_TRY(check_addresses(op, work.arguments));
  work.plan = make_plan(work.arguments, work.executor->scratch);
  ANYFUSE_TRY(check_workspace(op, workspace, workspace_size, work.plan.bytes));
  const uintptr_t at = (reinterpret_cast<uintptr_t>(workspace) + kAlignment - 1) / kAlignment * kAlignment;
  work.workspace = reinterpret_cast<char *>(at);
  return submit(where, [work = std::move(work)] { return execute(work); });
}

}  // namespace anyfuse::acl

using namespace anyfuse::acl;

extern "C" {

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor) {
  std::shared_ptr<Executor> found;
  ANYFUSE_TRY(find_executor("aclSetAclOpExecutorRepeatable", executor, &found));
  const std::lock_guard<std::mutex> lock(found->mutex);
  found->repeatable = true;
  return ACLNN_SUCCESS;
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor) {
  std::shared_ptr<Executor> found;
  ANYFUSE_TRY(find_executor("aclDestroyAclOpExecutor", executor, &found));
  table<Executor>().take(executor);
  return ACLNN_SUCCESS;
}

aclnnStatus aclSetInputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void *addr) {
  return set_address("aclSetInputTensorAddr", executor, index, tensor, addr,
                     [](const Argument &argument) { return counts_as(Role::input, argument); });
}

aclnnStatus aclSetOutputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void *addr) {
  return set_address("aclSetOutputTensorAddr", executor, index, tensor, addr,
                     [](const Argument &argument) { return counts_as(Role::output, argument); });
}

aclnnStatus aclSetTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void *addr) {
  return set_address("aclSetTensorAddr", executor, index, tensor, addr, [](const Argument &) { return true; });
}

aclnnStatus AclSetInputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void *addr) {
  return aclSetInputTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetOutputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void *addr) {
  return aclSetOutputTensorAddr(executor, index, tensor, addr);
}

aclnnStatus AclSetTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void *addr) {
  return aclSetTensorAddr(executor, index, tensor, addr);
}

aclnnStatus aclSetDynamicInputTensorAddr(aclOpExecutor *executor, size_t irIndex, const size_t, aclTensorList *tensors,
                                         void *) {
  return refuse_list("aclSetDynamicInputTensorAddr", executor, irIndex, tensors);
}

aclnnStatus aclSetDynamicOutputTensorAddr(aclOpExecutor *executor, size_t irIndex, const size_t, aclTensorList *tensors,
                                          void *) {
  return refuse_list("aclSetDynamicOutputTensorAddr", executor, irIndex, tensors);
}

aclnnStatus aclSetDynamicTensorAddr(aclOpExecutor *executor, size_t irIndex, const size_t, aclTensorList *tensors,
                                    void *) {
  return refuse_list("aclSetDynamicTensorAddr", executor, irIndex, tensors);
}

aclnnStatus AclSetDynamicInputTensorAddr(aclOpExecutor *executor, size_t irIndex, const size_t, aclTensorList *tensors,
                                         void *) {
  return refuse_list("AclSetDynamicInputTensorAddr", executor, irIndex, tensors);
}

aclnnStatus AclSetDynamicOutputTensorAddr(aclOpExecutor *executor, size_t irIndex, const size_t, aclTensorList *tensors,
                                          void *) {
  return refuse_list("AclSetDynamicOutputTensorAddr", executor, irIndex, tensors);
}

aclnnStatus AclSetDynamicTensorAddr(aclOpExecutor *executor, size_t irIndex, const size_t, aclTensorList *tensors,
                                    void *) {
  return refuse_list("AclSetDynamicTensorAddr", executor, irIndex, tensors);
}

}  // extern "C"
