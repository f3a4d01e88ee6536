// aclnnTransMatmulWeight and the sizes that it needs.
#include <cstring>

#include "aclnnop/aclnn_trans_matmul_weight.h"
#include "checks.h"
#include "nz.h"

using namespace anyfuse::acl;

namespace {

constexpr const char *kName = "aclnnTransMatmulWeight";

aclnnStatus check_shape(const char *function, const std::vector<int64_t> &shape) {
  ANYFUSE_REQUIRE(shape.size() >= 2 && shape.size() <= 6, ACLNN_ERR_PARAM_INVALID,
                  "%s: the shape is %s; accepted: 2 to 6 dimensions", function, text_of(shape).c_str());
  int64_t bytes = 2, padded = 0;  // an element of the widest type
  for (int64_t size : shape)
    ANYFUSE_REQUIRE(size > 0 && !__builtin_add_overflow(size, kNzRowBytes, &padded) &&
                        !__builtin_mul_overflow(bytes, padded, &bytes),
                    ACLNN_ERR_PARAM_INVALID, "%s: the shape is %s; accepted: sizes of at least 1 that fit in memory",
                    function, text_of(shape).c_str());
  return ACLNN_SUCCESS;
}

aclnnStatus weight_size(const char *function, const aclIntArray *handle, aclDataType dtype, uint64_t *size) {
  ANYFUSE_REQUIRE(handle != nullptr && size != nullptr, ACLNN_ERR_PARAM_NULLPTR, "%s: an argument is null", function);
  const auto shape = table<IntArray>().find(handle);
  ANYFUSE_REQUIRE(shape != nullptr, ACLNN_ERR_PARAM_INVALID, "%s: tensorShape is not a living array", function);
  ANYFUSE_REQUIRE(dtype == ACL_FLOAT16 || dtype == ACL_BF16 || dtype == ACL_INT8, ACLNN_ERR_PARAM_INVALID,
                  "%s: dataType is %s; accepted: FLOAT16, BF16, INT8", function, name_of(dtype));
  ANYFUSE_TRY(check_shape(function, shape->values));
  *size = static_cast<uint64_t>(product(nz_shape(shape->values, dtype)));
  return ACLNN_SUCCESS;
}

struct Matrix {
  int64_t rows, row_bytes, row_blocks, column_blocks;
};

void to_nz(const Matrix &matrix, const char *nd, char *nz) {
  for (int64_t row = 0; row < matrix.rows; ++row)
    for (int64_t block = 0; block < matrix.column_blocks; ++block) {
      const int64_t begin = block * kNzRowBytes;
      const int64_t bytes = std::min(kNzRowBytes, matrix.row_bytes - begin);
      std::memcpy(nz + (block * matrix.row_blocks * kNzRows + row) * kNzRowBytes, nd + row * matrix.row_bytes + begin,
                  static_cast<size_t>(bytes));
    }
}

}  // namespace

aclnnStatus aclnnCalculateMatmulWeightSize(const aclIntArray *tensorShape, uint64_t *weightTensorSize) {
  return weight_size("aclnnCalculateMatmulWeightSize", tensorShape, ACL_FLOAT16, weightTensorSize);
}

aclnnStatus aclnnCalculateMatmulWeightSizeV2(const aclIntArray *tensorShape, aclDataType dataType,
                                             uint64_t *weightTensorSize) {
  return weight_size("aclnnCalculateMatmulWeightSizeV2", tensorShape, dataType, weightTensorSize);
}

aclnnStatus aclnnTransMatmulWeightGetWorkspaceSize(aclTensor *mmWeightRef, uint64_t *workspaceSize,
                                                   aclOpExecutor **executor) {
  Call call(kName, workspaceSize, executor);
  call.in_place("mmWeightRef", mmWeightRef);
  ANYFUSE_TRY(call.begin());
  ANYFUSE_TRY(require_given(call, {0}));
  ANYFUSE_TRY(require_dtypes(call, {{0, {ACL_FLOAT16, ACL_BF16, ACL_INT8}}}));
  ANYFUSE_TRY(require_nd(call));
  ANYFUSE_TRY(check_shape(kName, call[0].shape));
  ANYFUSE_TRY(require_contiguous(call, {0}));

  const std::vector<int64_t> blocked = nz_shape(call[0].shape, call[0].dtype);
  const size_t rank = blocked.size();
  const int64_t element = bits_of(call[0].dtype) / 8;
  const int64_t rows = call[0].shape[rank - 4], row_bytes = call[0].shape[rank - 3] * element;
  const Matrix matrix = {rows, row_bytes, blocked[rank - 3], blocked[rank - 4]};
  const int64_t bytes = product(blocked) * element;
  return call.finish(
      [=](const Pointers &at, void *scratch) {
        const Extent extent = extent_of(at[0]);
        ANYFUSE_REQUIRE(!extent.known || extent.left >= static_cast<size_t>(bytes), ACLNN_ERR_PARAM_INVALID,
                        "%s: the memory of mmWeightRef has %zu bytes left; FRACTAL_NZ needs %lld", kName, extent.left,
                        static_cast<long long>(bytes));
        const int64_t nz_bytes = matrix.row_blocks * matrix.column_blocks * kNzRows * kNzRowBytes;
        std::memset(scratch, 0, static_cast<size_t>(bytes));
        for (int64_t i = 0; i * nz_bytes < bytes; ++i)
          to_nz(matrix, static_cast<const char *>(at[0]) + i * rows * row_bytes,
                static_cast<char *>(scratch) + i * nz_bytes);
        std::memcpy(at[0], scratch, static_cast<size_t>(bytes));
        if (const auto tensor = table<Tensor>().find(mmWeightRef)) {
          tensor->format = ACL_FORMAT_FRACTAL_NZ;
          tensor->storage = blocked;
        }
        return ACLNN_SUCCESS;
      },
      bytes);
}

aclnnStatus aclnnTransMatmulWeight(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                   aclrtStream stream) {
  return run(kName, workspace, workspaceSize, executor, stream);
}
