// Kernels' own interfaces, which compiled graphs and libraries call. Those that the CPU has not are in stand_ins.cc.
#include "tests/placement/cases.h"

namespace koila::cases {

namespace {

constexpr c10::ScalarType kHalf = c10::ScalarType::BFloat16, kFloat = c10::ScalarType::Float, kEight = c10::ScalarType::Float8_e4m3fn, kInt = c10::ScalarType::Int;

void heads_first(std::vector<Case>& cases) {
  const Operand q = shard({B, 2, 3, 4}), k = shard({B, 2, 6, 4}), whole = replicate({B, 2, 6, 4});
  const bool f = false, t = true;
  const char* cpu = "aten::_scaled_dot_product_flash_attention_for_cpu";
  const char* flash = "aten::_scaled_dot_product_flash_attention";
  const char* efficient = "aten::_scaled_dot_product_efficient_attention";
  cases.insert(cases.end(), {
    {cpu, {q, k, k}, kLocal, S(0)},
    {cpu, {q, whole, whole, 0.0, f}, kLocal, S(0), {{"attn_mask", constant(replicate({B, 1, 3, 6}))}, {"scale", 0.3}}},
    {cpu, {shard({3, B, 3, 4}, 1), shard({3, B, 3, 4}, 1), shard({3, B, 3, 4}, 1), 0.0, t}, kLocal, S(1)},
    {cpu, {shard({B, 2, B, 4}, 2), shard({B, 2, B, 4}, 2), shard({B, 2, B, 4}, 2)}, kNo},
    {flash, {q, k, k}, kLocal, S(0)},
    {flash, {shard({2 * B, 2, 3, 4}, 0, 1, 2), shard({2 * B, 2, 3, 4}, 0, 1, 2), shard({2 * B, 2, 3, 4}, 0, 1, 2), 0.0, t}, kLocal, S(0, 1, 2), {{"scale", 0.3}}},
    {flash, {shard({1, 2 * B, 3, 4}, 1, 1, 2), replicate({1, B, 3, 4}), replicate({1, B, 3, 4})}, kNo},  // two heads of the query to one of the key
    {flash, {q, k, k, 0.5}, kNo},                  // rng_state says which draws were made
    {flash, {q, k, k, 0.0, f, t}, kNo},            // the mask that was drawn
    {"aten::_scaled_dot_product_flash_attention.quantized", {q, k, k, constant(replicate({B, 2})), none(), none()}, kNo},
    {efficient, {q, k, k, none(), t}, kLocal, S(0)},
    {efficient, {constant(q), constant(k), constant(k), none(), f}, kLocal, S(0)},  // without the sums, which backward would want
    {efficient, {q, k, k, shard({B, 2, 3, 6}), t, 0.0, f}, kLocal, S(0), {{"scale", 0.3}}},
    {efficient, {q, k, k, replicate({B, 1, 3, 6}), t}, kLocal, S(0)},
    {efficient, {q, k, k, replicate({1, 2, 3, 6}), t}, kLocal, S(0)},
    {efficient, {q, k, k, none(), t, 0.1}, kNo},
    {efficient, {replicate({2, 2, B, 4}), shard({2, 2, B, 4}, 2), shard({2, 2, B, 4}, 2), none(), t}, kNo},
    {"aten::_scaled_dot_product_cudnn_attention", {q, k, k, none(), t}, kLocal, S(0)},
    {"aten::_scaled_dot_product_cudnn_attention", {q, k, k, constant(replicate({3, 6})), t, 0.0, t}, kLocal, S(0)},
    {"aten::_scaled_dot_product_cudnn_attention", {q, k, k, none(), t, 0.0, f, t}, kNo},
    {"aten::_cudnn_attention_forward", {q, k, k, none(), none(), none(), 3, 6, t}, kLocal, S(0)},
    {"aten::_cudnn_attention_forward", {q, k, k, none(), with_values({0, 3}), none(), 3, 6, t}, kNo},
  });
}

void heads_last(std::vector<Case>& cases) {
  const Operand q = shard({B, 3, 2, 4}), k = shard({B, 6, 2, 4}), packed = shard({3 * B, 2, 4}, 0, 1, 3);
  const bool f = false, t = true;
  const char* flash = "aten::_flash_attention_forward";
  const char* efficient = "aten::_efficient_attention_forward";
  const Operand ends = as(with_values({0, 3, 6, 9, 12, 15}), kInt);
  cases.insert(cases.end(), {
    {flash, {q, k, k, none(), none(), 3, 6, 0.0, f, f}, kLocal, S(0)},
    {flash, {q, replicate({B, 6, 2, 4}), k, none(), none(), 3, 6, 0.0, t, f}, kLocal, S(0), {{"seqused_k", as(with_values({6, 5, 4, 6, 3}), kInt)}, {"alibi_slopes", constant(replicate({2}))}}},
    {flash, {q, k, k, none(), none(), 3, 6, 0.0, f, f}, kLocal, S(0), {{"alibi_slopes", constant(replicate({B, 2}))}}},
    {flash, {packed, packed, packed, ends, ends, 3, 3, 0.0, f, f}, kNo},  // where a sequence begins is counted within the whole batch
    {flash, {q, k, k, none(), none(), 3, 6, 0.0, f, f}, kNo, {}, {{"block_table", as(replicate({B, 1}, Fill::kIndex), kInt)}}},
    {flash, {q, k, k, none(), none(), 3, 6, 0.2, f, f}, kNo},
    {flash, {shard({2, 3, B, 4}, 2), shard({2, 3, B, 4}, 2), shard({2, 3, B, 4}, 2), none(), none(), 3, 3, 0.0, f, f}, kNo},
    {"aten::_flash_attention_forward.quantized", {q, k, k, none(), none(), 3, 6, 0.0, f, f, constant(replicate({B, 2})), none(), none()}, kNo},
    {efficient, {q, k, k, none(), none(), none(), kNil, kNil, 0.0, 0, t}, kLocal, S(0)},
    {efficient, {q, k, k, shard({B, 2, 3, 6}), none(), none(), kNil, kNil, 0.0, 1, t}, kLocal, S(0), {{"scale", 0.3}}},
    {efficient, {q, k, k, replicate({1, 2, 3, 6}), none(), none(), kNil, kNil, 0.0, 0, t}, kLocal, S(0)},
    {efficient, {q, k, k, none(), none(), none(), kNil, kNil, 0.3, 0, t}, kNo},
    {efficient, {shard({1, 3 * B, 2, 4}, 1, 1, 3), shard({1, 3 * B, 2, 4}, 1, 1, 3), shard({1, 3 * B, 2, 4}, 1, 1, 3), none(), ends, ends, 3, 3, 0.0, 0, t}, kNo},
    {efficient, {q, k, k, none(), none(), none(), kNil, kNil, 0.0, 0, t}, kNo, {}, {{"seqlen_k", as(with_values({6, 6, 6, 6, 6}), kInt)}}},
  });
}

void norms(std::vector<Case>& cases) {
  const Operand statistic = constant(replicate({3})), spread = constant(replicate({3}, Fill::kPositive));
  cases.insert(cases.end(), {
    {"aten::_fused_rms_norm", {shard({B, 3, 4}), ints({4}), replicate({4}), 1e-5}, kLocal, S(0)},
    {"aten::_fused_rms_norm", {shard({3, B, 4}, 1), ints({4}), none(), kNil}, kLocal, S(1)},
    {"aten::_fused_rms_norm", {shard({3, B}, 1), ints({B}), none(), kNil}, kNo},
    {"aten::native_group_norm", {shard({B, 4, 3}), replicate({4}), replicate({4}), B, 4, 3, 2, 1e-5}, kLocal, S(0)},
    {"aten::native_group_norm", {shard({6 * B, 4, 3}, 0, 2, 3), none(), none(), 6 * B, 4, 3, 2, 1e-5}, kLocal, S(0, 2, 3)},
    {"aten::native_group_norm", {shard({2, 4, B}, 2), none(), none(), 2, 4, B, 2, 1e-5}, kNo},
    {"aten::batch_norm_elemt", {shard({B, 3, 4}), replicate({3}), replicate({3}), statistic, spread, 1e-5}, kLocal, S(0)},
    {"aten::batch_norm_elemt", {shard({2, 3, B}, 2), none(), none(), statistic, spread, 1e-5}, kLocal, S(2)},
    {"aten::batch_norm_elemt", {shard({2, B}, 1), none(), none(), replicate({B}), replicate({B}), 1e-5}, kNo},
    {"aten::native_batch_norm", {shard({B, 3, 4}), replicate({3}), replicate({3}), statistic, spread, false, 0.1, 1e-5}, kLocal, S(0)},
    {"aten::native_batch_norm", {shard({B, 3, 4}), replicate({3}), replicate({3}), statistic, spread, true, 0.1, 1e-5}, kNo},
    {"aten::native_batch_norm", {shard({B, 3, 4}), replicate({3}), replicate({3}), none(), none(), false, 0.1, 1e-5}, kNo},
    {"aten::_native_batch_norm_legit_no_training", {shard({2, 3, B}, 2), replicate({3}), replicate({3}), statistic, spread, 0.1, 1e-5}, kLocal, S(2)},
    {"aten::_native_batch_norm_legit_no_training", {shard({2, B}, 1), none(), none(), constant(replicate({B})), constant(replicate({B}, Fill::kPositive)), 0.1, 1e-5}, kNo},
    {"aten::_weight_norm_interface", {shard({B, 3, 2}), replicate({B, 1, 1})}, kLocal, S(0)},
    {"aten::_weight_norm_interface", {shard({3, B}, 1), shard({1, B}, 1), 1}, kLocal, S(1)},
    {"aten::_weight_norm_interface", {shard({3, B}, 1), replicate({3, 1}), 0}, kNo},  // the length of a row of the weight
  });
}

void convolutions(std::vector<Case>& cases) {
  const bool f = false, t = true;
  const Operand x = shard({B, 2, 5}), w = replicate({4, 2, 3}), b = replicate({4});
  cases.insert(cases.end(), {
    {"aten::_convolution", {x, w, b, ints({1}), ints({1}), ints({1}), f, ints({0}), 1, f, f, f, f}, kLocal, S(0)},
    {"aten::_convolution", {shard({B, 2, 5}), replicate({2, 4, 3}), b, ints({2}), ints({0}), ints({1}), t, ints({1}), 1, f, f, f, f}, kLocal, S(0)},
    {"aten::_convolution", {shard({2, B, 5}, 1), replicate({4, B, 3}), b, ints({1}), ints({1}), ints({1}), f, ints({0}), 1, f, f, f, f}, kNo},
    {"aten::_convolution.deprecated", {x, w, b, ints({1}), ints({1}), ints({1}), f, ints({0}), 1, f, f, f}, kLocal, S(0)},
    {"aten::_convolution_mode", {x, w, b, ints({1}), "same", ints({1}), 1}, kLocal, S(0)},
  });
}

void fake_quantisation(std::vector<Case>& cases) {
  const Operand x = shard({B, 3}), scale = constant(as(replicate({1}, Fill::kPositive), kFloat)), zero = as(with_values({1}), kInt), on = as(with_values({1}), kInt);
  const Operand single = as(x, kFloat), scales = constant(as(replicate({3}, Fill::kPositive), kFloat)), zeros = as(with_values({0, 1, 2}), kInt), across = as(shard({3, B}, 1), kFloat);
  const Operand learnt = as(replicate({1}, Fill::kPositive), kFloat), learnt_zero = constant(as(replicate({1}, Fill::kZeroOne), kFloat));
  const Operand learnt_scales = as(replicate({3}, Fill::kPositive), kFloat), learnt_zeros = constant(as(replicate({3}, Fill::kZeroOne), kFloat));
  cases.insert(cases.end(), {
    {"aten::fake_quantize_per_tensor_affine", {x, 0.1, 1, -8, 7}, kLocal, S(0)},
    {"aten::fake_quantize_per_tensor_affine", {partial({3}), 0.1, 1, -8, 7}, kNo},
    {"aten::fake_quantize_per_tensor_affine.tensor_qparams", {single, scale, zero, -8, 7}, kLocal, S(0)},
    {"aten::fake_quantize_per_tensor_affine_cachemask", {x, 0.1, 1, -8, 7}, kLocal, S(0)},
    {"aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", {single, scale, zero, on, -8, 7}, kLocal, S(0)},
    {"aten::_fake_quantize_learnable_per_tensor_affine", {single, learnt, learnt_zero, -8, 7, 0.5}, kLocal, S(0)},
    {"aten::fake_quantize_per_channel_affine", {single, scales, zeros, 1, -8, 7}, kLocal, S(0)},
    {"aten::fake_quantize_per_channel_affine", {across, constant(as(replicate({B}, Fill::kPositive), kFloat)), as(with_values({0, 1, 2, 1, 0}), kInt), 1, -8, 7}, kNo},
    {"aten::fake_quantize_per_channel_affine_cachemask", {across, scales, zeros, 0, -8, 7}, kLocal, S(1)},
    {"aten::_fake_quantize_learnable_per_channel_affine", {single, learnt_scales, learnt_zeros, 1, -8, 7, 0.5}, kLocal, S(0)},
  });
}

void products(std::vector<Case>& cases) {
  const auto half = [](Operand o) { return constant(as(std::move(o), kHalf)); };
  const auto single = [](Operand o) { return as(std::move(o), kFloat); };
  const auto eight = [](Operand o) { return constant(as(std::move(o), kEight)); };
  const auto scale = [&](Sizes sizes) { return constant(as(replicate(std::move(sizes), Fill::kPositive), kFloat)); };
  const auto ends = [](std::vector<int64_t> values) { return as(with_values(std::move(values)), kInt); };
  const char *grouped = "aten::_grouped_mm", *scaled_grouped = "aten::_scaled_grouped_mm", *scaled = "aten::_scaled_mm", *recipe = "aten::_scaled_mm_v2";
  const bool f = false;
  const auto list = [](Operand o) { return List{std::move(o)}; };
  cases.insert(cases.end(), {
    {grouped, {single(shard({3, B, 8}, 1)), single(replicate({3, 8, 16}))}, kLocal, S(1)},
    {grouped, {single(shard({B, 4, 8})), single(replicate({B, 8, 16}))}, kLocal, S(0)},
    {grouped, {single(shard({2, B, 8}, 1)), single(replicate({8, 32})), ends({16, 32})}, kLocal, S(0)},       // the groups are columns
    {grouped, {single(shard({B, 16})), single(replicate({16, 8})), ends({8, 16})}, kLocal, S(1)},             // the groups are summed over
    {grouped, {half(shard({B, 8})), half(replicate({2, 8, 16})), ends({2, B})}, kNo},                         // the rows lie by expert, each with its own number
    {grouped, {half(replicate({4, B})), half(shard({B, 8})), ends({2, B})}, kNo},
    {grouped, {half(replicate({2, 4, 8})), half(shard({8, B}, 1)), ends({2, B})}, kNo},
    {grouped, {half(replicate({4, 8})), half(shard({B, 8, 16})), ends({1, 2, 3, 4, 4})}, kNo},
    {scaled_grouped, {eight(shard({2, B, 16}, 1)), eight(replicate({2, 16, 16})), scale({2, B}), scale({2, 16})}, kLocal, S(1)},
    {scaled_grouped, {eight(shard({B, 4, 16})), eight(shard({B, 16, 16})), scale({B, 4}), scale({B, 16})}, kLocal, S(0)},
    {scaled_grouped, {eight(replicate({2, 4, 16})), eight(shard({2, 16, B}, 2)), scale({2, 4}), scale({2, B})}, kLocal, S(2)},
    {scaled_grouped, {eight(shard({B, 16})), eight(replicate({2, 16, 16})), scale({B}), scale({2, 16}), ends({2, B})}, kNo},
    {scaled_grouped, {eight(shard({2, B, 16}, 1)), eight(replicate({2, 16, 16})), scale({2, 128}), scale({2, 128})}, kNo},  // scales of blocks
    {scaled, {eight(shard({B, 16})), eight(replicate({16, 16})), scale({}), scale({}), none(), none(), code(kFloat)}, kLocal, S(0)},
    {scaled, {eight(shard({B, 16})), eight(replicate({16, 16})), scale({B, 1}), scale({1, 16}), none(), none(), code(kFloat)}, kLocal, S(0)},
    {scaled, {eight(shard({2 * B, 16}, 0, 1, 2)), eight(replicate({16, 16})), scale({2 * B, 1}), scale({1, 16}), none(), none(), code(kFloat)}, kLocal, S(0, 1, 2)},
    {scaled, {eight(shard({16, B}, 1)), eight(replicate({B, 16})), scale({}), scale({})}, kNo},  // a sum over the rows, of eight bits
    {scaled, {eight(shard({B, 16})), eight(replicate({16, 16})), scale({B, 2}), scale({1, 16})}, kNo},
    {recipe, {eight(shard({B, 16})), eight(replicate({16, 16})), list(scale({1})), ints({0}), ints({0}), list(scale({1})), ints({0}), ints({0}), none(), code(kFloat)}, kLocal, S(0)},
    {recipe, {eight(shard({B, 16})), eight(replicate({16, 16})), list(scale({B, 1})), ints({1}), ints({0}), list(scale({1, 16})), ints({1}), ints({0}), none(), code(kFloat), ints({}), f}, kLocal, S(0)},
    {recipe, {eight(shard({B, 16})), eight(replicate({16, 16})), list(scale({B, 1})), ints({3}), ints({0}), list(scale({1, 16})), ints({3}), ints({0}), none(), code(kFloat)}, kNo},
    {recipe, {eight(replicate({16, 16})), eight(shard({16, B}, 1)), list(scale({1})), ints({0}), ints({0}), list(scale({1})), ints({0}), ints({0}), none(), code(kFloat)}, kNo},
  });
}

}  // namespace

std::vector<Case> kernel_cases() {
  std::vector<Case> cases;
  heads_first(cases);
  heads_last(cases);
  norms(cases);
  convolutions(cases);
  fake_quantisation(cases);
  products(cases);
  return cases;
}

}  // namespace koila::cases
