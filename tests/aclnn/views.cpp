// Tensors that are not contiguous, that lie over each other, and workspaces.
#include <aclnnop/aclnn_add_rms_norm_dynamic_quant_v2.h>
#include <aclnnop/aclnn_apply_fused_ema_adam.h>
#include <aclnnop/aclnn_quant_matmul_dequant.h>
#include <aclnnop/aclnn_trans_matmul_weight.h>

#include "program.h"

namespace {

// A view over memory filled with a mark, so that what lies between the view's elements can be looked at afterwards.
struct View {
  View(Dims dims, Dims steps, int64_t start, int64_t elements)
      : shape(dims), strides(steps), offset(start), box(dims, ACL_FLOAT, ACL_FORMAT_ND, steps, start, elements * 4) {
    all.assign(static_cast<size_t>(elements), kMark);
    box.put(all);
  }
  int64_t at(int64_t row, int64_t column) const { return offset + row * strides[0] + column * strides[1]; }
  void set(const std::vector<float> &values) {
    for (int64_t i = 0; i < count_of(shape); ++i)
      all[static_cast<size_t>(at(i / shape[1], i % shape[1]))] = values[static_cast<size_t>(i)];
    box.put(all);
  }
  // The values through the view; what lies outside must still be the mark.
  std::vector<float> values() {
    std::vector<float> now = box.get<float>(), seen;
    for (int64_t i = 0; i < count_of(shape); ++i) {
      float &cell = now[static_cast<size_t>(at(i / shape[1], i % shape[1]))];
      seen.push_back(cell);
      cell = kMark;
    }
    CHECK(now == std::vector<float>(now.size(), kMark));
    return seen;
  }

  static constexpr float kMark = -777.0f;
  Dims shape, strides;
  int64_t offset;
  Box box;
  std::vector<float> all;
};

std::vector<float> ramp(int64_t count, float first, float step) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(first + step * static_cast<float>(i));
  return values;
}

int ema_phase1(const Box &grad, const Box &var, const Box &m, const Box &v, const Box &s, const Box &step,
               uint64_t *workspace, aclOpExecutor **executor) {
  return aclnnApplyFusedEmaAdamGetWorkspaceSize(grad.tensor, var.tensor, m.tensor, v.tensor, s.tensor, step.tensor, .01,
                                                .9, .9, .999, 1e-8, 1, true, .1, workspace, executor);
}

// The two views that the document of the operators gives, a transposed one, and one with gaps, against contiguous
// tensors.
void in_place_through_views() {
  begin();
  {
    const Dims shape = {6, 5};
    View grad(shape, {10, 1}, 22, 90), var(shape, {1, 6}, 0, 30), m(shape, {20, 2}, 3, 120), v(shape, {5, 1}, 7, 40),
        s(shape, {11, 2}, 1, 70);
    const Box step({1}, ACL_INT64, std::vector<int64_t>{3});
    const Box plain_grad(shape, ACL_FLOAT, ramp(30, -1, .07f)), plain_var(shape, ACL_FLOAT, ramp(30, 2, -.1f)),
        plain_m(shape, ACL_FLOAT, ramp(30, .1f, .01f)), plain_v(shape, ACL_FLOAT, ramp(30, .2f, .03f)),
        plain_s(shape, ACL_FLOAT, ramp(30, 1, .2f));
    grad.set(ramp(30, -1, .07f)), var.set(ramp(30, 2, -.1f)), m.set(ramp(30, .1f, .01f)), v.set(ramp(30, .2f, .03f));
    s.set(ramp(30, 1, .2f));
    uint64_t workspace = 0;
    aclOpExecutor *executor = nullptr;
    CHECK_OK(ema_phase1(plain_grad, plain_var, plain_m, plain_v, plain_s, step, &workspace, &executor));
    CHECK(workspace == 0);
    CHECK_OK(run_phase2(aclnnApplyFusedEmaAdam, workspace, executor));
    CHECK_OK(ema_phase1(grad.box, var.box, m.box, v.box, s.box, step, &workspace, &executor));
    CHECK(workspace >= 4 * 120 && workspace <= 4 * 128 + 64 + 64);  // four views are not contiguous
    CHECK_OK(run_phase2(aclnnApplyFusedEmaAdam, workspace, executor));
    CHECK(grad.values() == plain_grad.get<float>());
    CHECK(var.values() == plain_var.get<float>());
    CHECK(m.values() == plain_m.get<float>());
    CHECK(v.values() == plain_v.get<float>());
    CHECK(s.values() == plain_s.get<float>());
  }
  end();
}

void workspaces() {
  begin();
  {
    View var({4, 4}, {8, 1}, 0, 32);
    var.set(ramp(16, 1, 1));
    const Box grad({4, 4}, ACL_FLOAT, ramp(16, 1, 0)), m({4, 4}, ACL_FLOAT), v({4, 4}, ACL_FLOAT), s({4, 4}, ACL_FLOAT),
        step({1}, ACL_INT64, std::vector<int64_t>{1});
    uint64_t size = 0;
    aclOpExecutor *executor = nullptr;
    CHECK_OK(ema_phase1(grad, var.box, m, v, s, step, &size, &executor));
    CHECK_OK(aclSetAclOpExecutorRepeatable(executor));
    CHECK(size > 0);
    void *workspace = nullptr;
    CHECK_OK(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK_CODE(ACLNN_ERR_PARAM_NULLPTR, aclnnApplyFusedEmaAdam(nullptr, size, executor, nullptr));
    CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclnnApplyFusedEmaAdam(workspace, size - 1, executor, nullptr));
    CHECK_CODE(ACLNN_ERR_PARAM_INVALID,
               aclnnApplyFusedEmaAdam(static_cast<char *>(workspace) + 1, size, executor, nullptr));
    CHECK(var.values() == ramp(16, 1, 1));
    CHECK_OK(aclnnApplyFusedEmaAdam(workspace, size, executor, nullptr));
    CHECK(var.values() != ramp(16, 1, 1));
    // memory of the program's own, at an odd address
    std::vector<char> own(size + 1);
    CHECK_OK(aclnnApplyFusedEmaAdam(own.data() + 1, size, executor, nullptr));
    CHECK_OK(aclDestroyAclOpExecutor(executor));
    CHECK_OK(aclrtFree(workspace));
  }
  end();
}

void shared_memory() {
  begin();
  {
    const Box a({4, 4}, ACL_FLOAT, ramp(16, 1, 1)), grad({4, 4}, ACL_FLOAT), v({4, 4}, ACL_FLOAT), s({4, 4}, ACL_FLOAT);
    const Box step({1}, ACL_INT64, std::vector<int64_t>{1});
    uint64_t size = 0;
    aclOpExecutor *executor = nullptr;
    CHECK_CODE(161002, ema_phase1(grad, a, a, v, s, step, &size, &executor));
    CHECK_CODE(161002, ema_phase1(a, a, v, v, s, step, &size, &executor));
    const Dims shape = {4, 2};
    const Dims strides = {4, 1};
    const auto half = [&](int64_t column) {
      return aclCreateTensor(shape.data(), 2, ACL_FLOAT, strides.data(), column, ACL_FORMAT_ND, shape.data(), 2,
                             a.data);
    };
    aclTensor *left = half(0), *middle = half(1), *right = half(2);
    const Box g({4, 2}, ACL_FLOAT), p({4, 2}, ACL_FLOAT), q({4, 2}, ACL_FLOAT);
    const auto call = [&](aclTensor *var, aclTensor *m) {
      return aclnnApplyFusedEmaAdamGetWorkspaceSize(g.tensor, var, m, p.tensor, q.tensor, step.tensor, .1, .9, .9, .999,
                                                    1e-8, 1, true, 0, &size, &executor);
    };
    CHECK_CODE(161002, call(left, middle));
    CHECK_OK(call(left, right));  // disjoint columns of one memory
    CHECK_OK(run_phase2(aclnnApplyFusedEmaAdam, size, executor));
    const Dims still = {0, 1};
    aclTensor *repeated =
        aclCreateTensor(shape.data(), 2, ACL_FLOAT, still.data(), 0, ACL_FORMAT_ND, shape.data(), 2, a.data);
    CHECK_CODE(161002, call(repeated, right));
    // strides that meet in themselves, of more elements than could be listed
    const Dims many = {65536, 65536}, meeting = {1, 1}, apart = {131071, 2};
    const auto nowhere = [&](const Dims &steps) {
      return aclCreateTensor(many.data(), 2, ACL_FLOAT, steps.data(), 0, ACL_FORMAT_ND, many.data(), 2, nullptr);
    };
    aclTensor *all = nowhere(meeting), *separate = nowhere(apart);
    const auto call_on = [&](aclTensor *var) {
      return aclnnApplyFusedEmaAdamGetWorkspaceSize(separate, var, separate, separate, separate, step.tensor, .1, .9,
                                                    .9, .999, 1e-8, 1, true, 0, &size, &executor);
    };
    CHECK_CODE(161002, call_on(all));
    CHECK(std::string(aclGetRecentErrMsg()).find("varRef has elements that share memory") != std::string::npos);
    CHECK_OK(call_on(separate));
    CHECK_OK(aclDestroyAclOpExecutor(executor));
    for (aclTensor *tensor : {all, separate}) CHECK_OK(aclDestroyTensor(tensor));
    for (aclTensor *tensor : {left, middle, right, repeated}) CHECK_OK(aclDestroyTensor(tensor));
  }
  end();
}

struct NormCall {
  uint64_t workspace = 0;
  aclOpExecutor *executor = nullptr;
  int phase1(aclTensor *x1, aclTensor *x2, aclTensor *gamma, aclTensor *y, aclTensor *x, aclTensor *scale) {
    return aclnnAddRmsNormDynamicQuantV2GetWorkspaceSize(x1, x2, gamma, nullptr, nullptr, nullptr, 0, nullptr, y,
                                                         nullptr, x, scale, nullptr, &workspace, &executor);
  }
  int phase2() { return run_phase2(aclnnAddRmsNormDynamicQuantV2, workspace, executor); }
};

// x1 = 1, x2 = 0, eps = 0: the row that is quantized is gamma.
struct GammaRow {
  explicit GammaRow(const std::vector<float> &gamma_values)
      : n(static_cast<int64_t>(gamma_values.size())),
        x1({2, n}, ACL_FLOAT, std::vector<float>(static_cast<size_t>(2 * n), 1)),
        x2({2, n}, ACL_FLOAT),
        gamma({n}, ACL_FLOAT, gamma_values),
        x({2, n}, ACL_FLOAT),
        scale({2}, ACL_FLOAT) {}
  int64_t n;
  Box x1, x2, gamma, x, scale;
};

// int8 codes and the scale of each row in one record of 68 bytes: no byte is shared.
void codes_beside_their_scale() {
  begin();
  {
    GammaRow in({1, -2, 3, 127});
    NormCall call;
    const Box plain({2, 4}, ACL_INT8), memory({2, 17}, ACL_FLOAT);
    const Dims shape = {2, 4}, rows = {2}, pitch = {68, 1}, words = {17};
    aclTensor *codes =
        aclCreateTensor(shape.data(), 2, ACL_INT8, pitch.data(), 60, ACL_FORMAT_ND, shape.data(), 2, memory.data);
    const auto scale_at = [&](int64_t word) {
      return aclCreateTensor(rows.data(), 1, ACL_FLOAT, words.data(), word, ACL_FORMAT_ND, rows.data(), 1, memory.data);
    };
    aclTensor *over = scale_at(15), *beside = scale_at(16);
    CHECK_OK(call.phase1(in.x1.tensor, in.x2.tensor, in.gamma.tensor, plain.tensor, in.x.tensor, in.scale.tensor));
    CHECK_OK(call.phase2());
    CHECK_CODE(161002, call.phase1(in.x1.tensor, in.x2.tensor, in.gamma.tensor, codes, in.x.tensor, over));
    CHECK_OK(call.phase1(in.x1.tensor, in.x2.tensor, in.gamma.tensor, codes, in.x.tensor, beside));
    CHECK_OK(call.phase2());
    const std::vector<float> record = memory.get<float>();
    CHECK(record[16] == 1 && record[33] == 1 && std::memcmp(&record[15], plain.get<int8_t>().data(), 4) == 0);
    for (aclTensor *tensor : {codes, over, beside}) CHECK_OK(aclDestroyTensor(tensor));
  }
  end();
}

void int4_outputs() {
  begin();
  {
    const std::vector<float> row = {1, -2, 3, -4, 5, -6, 7, -7};
    const std::vector<uint8_t> packed = {0xE1, 0xC3, 0xA5, 0x97};
    GammaRow in(row);
    NormCall call;
    const Box plain({2, 8}, ACL_INT4), words({2, 1}, ACL_INT32);
    CHECK_OK(call.phase1(in.x1.tensor, in.x2.tensor, in.gamma.tensor, plain.tensor, in.x.tensor, in.scale.tensor));
    CHECK(call.workspace == 0);
    CHECK_OK(call.phase2());
    CHECK(plain.get<uint8_t>() == (std::vector<uint8_t>{0xE1, 0xC3, 0xA5, 0x97, 0xE1, 0xC3, 0xA5, 0x97}));
    CHECK(in.scale.get<float>() == (std::vector<float>{1, 1}));
    CHECK_OK(call.phase1(in.x1.tensor, in.x2.tensor, in.gamma.tensor, words.tensor, in.x.tensor, in.scale.tensor));
    CHECK_OK(call.phase2());
    int32_t word = 0;
    std::memcpy(&word, packed.data(), 4);
    CHECK(words.get<int32_t>() == (std::vector<int32_t>{word, word}));
    // rows 11 nibbles apart from nibble 1 on: half of the nibbles move within their byte
    Box odd({2, 8}, ACL_INT4, ACL_FORMAT_ND, {11, 1}, 1, 12);
    odd.put(std::vector<uint8_t>(12, 0xBB));
    CHECK_OK(call.phase1(in.x1.tensor, in.x2.tensor, in.gamma.tensor, odd.tensor, in.x.tensor, in.scale.tensor));
    CHECK(call.workspace > 0);
    CHECK_OK(call.phase2());
    std::vector<int> nibbles;
    for (uint8_t byte : odd.get<uint8_t>()) nibbles.push_back(byte & 15), nibbles.push_back(byte >> 4);
    std::vector<int> expected(24, 0xB);
    for (int r = 0; r < 2; ++r)
      for (int i = 0; i < 8; ++i)
        expected[static_cast<size_t>(1 + 11 * r + i)] = static_cast<int>(row[static_cast<size_t>(i)]) & 15;
    CHECK(nibbles == expected);
  }
  end();
}

// xOut over x2, as a residual stream has it: computed aside, then put there.
void output_over_an_input() {
  begin();
  {
    GammaRow in({1, 2, 3, 4, 5, 6, 7, 127});
    NormCall call;
    const Box y({2, 8}, ACL_INT8), y_plain({2, 8}, ACL_INT8);
    CHECK_OK(call.phase1(in.x1.tensor, in.x2.tensor, in.gamma.tensor, y_plain.tensor, in.x.tensor, in.scale.tensor));
    CHECK_OK(call.phase2());
    CHECK_OK(call.phase1(in.x1.tensor, in.x2.tensor, in.gamma.tensor, y.tensor, in.x2.tensor, in.scale.tensor));
    CHECK(call.workspace > 0);
    CHECK_OK(call.phase2());
    CHECK(y.get<int8_t>() == y_plain.get<int8_t>());
    CHECK(in.x2.get<float>() == in.x.get<float>());
    const Box both({2, 16}, ACL_FLOAT);  // two outputs over one memory
    aclTensor *other =
        aclCreateTensor(Dims{2, 8}.data(), 2, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, Dims{2, 8}.data(), 2, both.data);
    aclTensor *scale =
        aclCreateTensor(Dims{2}.data(), 1, ACL_FLOAT, nullptr, 3, ACL_FORMAT_ND, Dims{2}.data(), 1, both.data);
    CHECK_CODE(161002, call.phase1(in.x1.tensor, in.x2.tensor, in.gamma.tensor, y.tensor, other, scale));
    CHECK_OK(aclDestroyTensor(other));
    CHECK_OK(aclDestroyTensor(scale));
  }
  end();
}

// An output that is not made keeps its memory; so does everything of an empty call.
void outputs_left_alone() {
  begin();
  {
    GammaRow in({1, 2, 3, 4});
    const Box y1({2, 4}, ACL_INT8), y2({1}, ACL_INT8, std::vector<int8_t>{42}),
        scale2({1}, ACL_FLOAT, std::vector<float>{4.5f});
    uint64_t workspace = 0;
    aclOpExecutor *executor = nullptr;
    CHECK_OK(aclnnAddRmsNormDynamicQuantV2GetWorkspaceSize(
        in.x1.tensor, in.x2.tensor, in.gamma.tensor, nullptr, nullptr, nullptr, 1e-6, nullptr, y1.tensor, y2.tensor,
        in.x.tensor, in.scale.tensor, scale2.tensor, &workspace, &executor));
    CHECK_OK(run_phase2(aclnnAddRmsNormDynamicQuantV2, workspace, executor));
    CHECK(y2.get<int8_t>()[0] == 42 && scale2.get<float>()[0] == 4.5f && y1.get<int8_t>()[3] == 127);
  }
  end();
}

// ND against FRACTAL_NZ, from the helper and by hand, with padding that must not be read into the sums.
void weights() {
  begin();
  {
    const int64_t m = 3, n = 40, k = 48, blocks = 2 * 3 * 16 * 32;
    std::vector<int8_t> w(static_cast<size_t>(n * k)), nz(static_cast<size_t>(blocks), 127);
    for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<int8_t>(static_cast<int>(i * 37 % 255) - 127);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t c = 0; c < k; ++c)
        nz[static_cast<size_t>(((c / 32) * 3 + r / 16) * 512 + (r % 16) * 32 + c % 32)] =
            w[static_cast<size_t>(r * k + c)];
    const Box x({m, k}, ACL_FLOAT, ramp(m * k, -2, .03f)), scale({n}, ACL_FLOAT, ramp(n, .5f, .01f));
    const Box nd({n, k}, ACL_INT8, w);
    Box by_hand({2, 3, 16, 32}, ACL_INT8, ACL_FORMAT_FRACTAL_NZ);
    Box helped({n, k}, ACL_INT8, ACL_FORMAT_ND, {}, 0, blocks), tight({n, k}, ACL_INT8);
    by_hand.put(nz);
    helped.put(w);
    aclIntArray *dims = aclCreateIntArray(Dims{n, k}.data(), 2);
    uint64_t elements = 0;
    CHECK_OK(aclnnCalculateMatmulWeightSizeV2(dims, ACL_INT8, &elements));
    CHECK(elements == static_cast<uint64_t>(blocks));
    CHECK_OK(aclnnCalculateMatmulWeightSizeV2(dims, ACL_BF16, &elements));
    CHECK(elements == 48 * 48);
    CHECK_CODE(161002, aclnnCalculateMatmulWeightSizeV2(dims, ACL_FLOAT, &elements));
    CHECK_CODE(161001, aclnnCalculateMatmulWeightSizeV2(nullptr, ACL_INT8, &elements));
    CHECK_CODE(161001, aclnnCalculateMatmulWeightSizeV2(dims, ACL_INT8, nullptr));
    CHECK_OK(aclDestroyIntArray(dims));
    for (const Dims &bad :
         {Dims{16}, Dims{16, 0}, Dims{1, 1, 1, 1, 1, 1, 1}, Dims{INT64_MAX, 3}, Dims{INT64_MAX / 2, 1}}) {
      aclIntArray *wrong = aclCreateIntArray(bad.data(), bad.size());
      CHECK_CODE(161002, aclnnCalculateMatmulWeightSizeV2(wrong, ACL_INT8, &elements));
      CHECK_OK(aclDestroyIntArray(wrong));
    }
    uint64_t workspace = 0;
    aclOpExecutor *executor = nullptr;
    CHECK_CODE(161001, aclnnTransMatmulWeightGetWorkspaceSize(nullptr, &workspace, &executor));
    CHECK_OK(aclnnTransMatmulWeightGetWorkspaceSize(tight.tensor, &workspace, &executor));
    CHECK_CODE(161002, run_phase2(aclnnTransMatmulWeight, workspace, executor));  // no room for the padding
    CHECK_OK(aclnnTransMatmulWeightGetWorkspaceSize(helped.tensor, &workspace, &executor));
    CHECK_OK(run_phase2(aclnnTransMatmulWeight, workspace, executor));
    std::vector<int8_t> expected = nz;
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t row = i / 512 % 3 * 16 + i % 512 / 32, column = i / (3 * 512) * 32 + i % 32;
      if (row >= n || column >= k) expected[static_cast<size_t>(i)] = 0;
    }
    CHECK(helped.get<int8_t>() == expected);
    aclFormat format = ACL_FORMAT_ND;
    CHECK_OK(aclGetFormat(helped.tensor, &format));
    CHECK(format == ACL_FORMAT_FRACTAL_NZ);
    CHECK_CODE(161002, aclnnTransMatmulWeightGetWorkspaceSize(helped.tensor, &workspace, &executor));  // not twice
    std::vector<std::vector<float>> results;
    for (aclTensor *weight : {nd.tensor, by_hand.tensor, helped.tensor}) {
      const Box out({m, n}, ACL_FLOAT);
      char mode[] = "pertoken";
      CHECK_OK(aclnnQuantMatmulDequantGetWorkspaceSize(x.tensor, weight, scale.tensor, nullptr, nullptr, nullptr,
                                                       nullptr, mode, true, out.tensor, &workspace, &executor));
      CHECK(workspace == 0);
      CHECK_OK(run_phase2(aclnnQuantMatmulDequant, workspace, executor));
      results.push_back(out.get<float>());
    }
    CHECK(results[0] == results[1] && results[0] == results[2] && results[0][1] != 0);
  }
  end();
}

}  // namespace

int main() {
  in_place_through_views();
  workspaces();
  shared_memory();
  codes_beside_their_scale();
  int4_outputs();
  output_over_an_input();
  outputs_left_alone();
  weights();
  return finish("views");
}
