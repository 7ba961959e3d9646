#include "tests/placement/cases.h"
#include "torchglue/placement/packed_rows.h"

namespace koila::cases {

namespace {

void convolutions(std::vector<Case>& cases) {
  cases.insert(cases.end(), {
    {"aten::conv1d", {shard({B, 2, 6}), replicate({4, 2, 3}), replicate({4})}, kLocal, S(0)},
    {"aten::conv1d", {shard({2, B, 6}, 1), replicate({4, B, 3})}, kNo},
    {"aten::conv1d", {shard({B, 6}), replicate({4, B, 3})}, kNo},               // no batch: these are channels
    {"aten::conv1d.padding", {shard({B, 2, 6}), replicate({4, 2, 3}), none(), ints({1}), "same"}, kLocal, S(0)},
    {"aten::conv2d", {shard({B, 2, 5, 5}), replicate({4, 2, 3, 3}), replicate({4}), ints({2, 2}), ints({1, 1})}, kLocal, S(0)},
    {"aten::conv2d", {shard({6 * B, 2, 5, 5}, 0, 2, 3), replicate({4, 2, 3, 3})}, kLocal, S(0, 2, 3)},
    {"aten::conv2d", {shard({B, 2, 5, 5}), replicate({4, 1, 3, 3}), none(), ints({1, 1}), ints({0, 0}), ints({1, 1}), 2}, kLocal, S(0)},
    {"aten::conv2d", {shard({B, 2, 5, 5}), shard({B, 2, 3, 3})}, kNo},
    {"aten::conv2d", {shard({B, 5, 5}), replicate({4, B, 3, 3})}, kNo},
    {"aten::conv2d.padding", {shard({B, 2, 5, 5}), replicate({4, 2, 3, 3}), replicate({4}), ints({1, 1}), "valid"}, kLocal, S(0)},
    {"aten::conv3d", {shard({B, 2, 3, 4, 4}), replicate({2, 2, 2, 2, 2})}, kLocal, S(0)},
    {"aten::conv3d.padding", {shard({B, 2, 3, 4, 4}), replicate({2, 2, 2, 2, 2}), none(), ints({1}), "same"}, kLocal, S(0)},
    {"aten::conv1d", {replicate({2, 3, 6}), shard({B, 3, 3}), shard({B})}, kLocal, S(1)},  // kernels that the batch made
    {"aten::conv1d", {replicate({3, 6}), shard({B, 3, 3})}, kLocal, S(0)},
    {"aten::conv1d", {replicate({2, B, 6}), shard({B, 1, 3}), none(), ints({1}), ints({0}), ints({1}), B}, kNo},
    {"aten::conv_transpose1d", {replicate({2, B, 6}), shard({B, 4, 3})}, kNo},
    {"aten::conv_transpose1d", {shard({B, 2, 6}), replicate({2, 4, 3}), replicate({4})}, kLocal, S(0)},
    {"aten::conv_transpose2d.input", {shard({B, 2, 3, 3}), replicate({2, 4, 3, 3}), replicate({4}), ints({2, 2}), ints({1, 1}), ints({1, 1})}, kLocal, S(0)},
    {"aten::conv_transpose3d.input", {shard({B, 2, 2, 3, 3}), replicate({2, 1, 2, 2, 2})}, kLocal, S(0)},
    {"aten::convolution", {shard({B, 2, 5, 5}), replicate({4, 2, 3, 3}), replicate({4}), ints({1, 1}), ints({0, 0}), ints({1, 1}), false, ints({0, 0}), 1}, kLocal, S(0)},
  });
}

void pooling(std::vector<Case>& cases) {
  for (int n = 1; n <= 3; ++n) {
    const std::string d = std::to_string(n) + "d";
    const Sizes plane(n, 4);
    const auto sized = [&](Sizes lead) {
      lead.insert(lead.end(), plane.begin(), plane.end());
      return lead;
    };
    for (const std::string& op : {"aten::max_pool" + d, "aten::avg_pool" + d, "aten::max_pool" + d + "_with_indices"}) {
      cases.insert(cases.end(), {
        {op, {shard(sized({B, 2})), ints(Sizes(n, 2))}, kLocal, S(0)},
        {op, {shard(sized({2, B}), 1), ints(Sizes(n, 2))}, kLocal, S(1)},
        {op, {shard(sized({B})), ints(Sizes(n, 2))}, kLocal, S(0)},  // one sample: every channel by itself
      });
    }
    for (const std::string& op : {"aten::adaptive_max_pool" + d, "aten::adaptive_avg_pool" + d}) {
      cases.push_back({op, {shard(sized({B, 2})), ints(Sizes(n, 3))}, kLocal, S(0)});
    }
  }
  cases.insert(cases.end(), {
    {"aten::avg_pool2d", {shard({2, 2, B, 4}, 2), ints({2, 2})}, kNo},
    {"aten::adaptive_avg_pool2d", {shard({2, 2, B, 4}, 2), ints({1, 1})}, kNo},
  });
  // (input, output_size, align_corners, scale) and (input, output_size, align_corners, scale_factors)
  const auto resample = [&](const std::string& op, int n, bool corners) {
    std::vector<Argument> args = {shard(n == 1 ? Sizes{B, 2, 4} : n == 2 ? Sizes{B, 2, 4, 4} : Sizes{B, 2, 4, 4, 4}), ints(Sizes(n, 6))};
    if (corners) args.push_back(false);
    cases.push_back({op, args, kLocal, S(0)});
    args.push_back(kNil);
    cases.push_back({op + ".vec", args, kLocal, S(0)});
    args[0] = shard(n == 1 ? Sizes{2, 2, B} : n == 2 ? Sizes{2, 2, B, 4} : Sizes{2, 2, B, 4, 4}, 2);
    cases.push_back({op + ".vec", args, kNo});
  };
  for (int n = 1; n <= 3; ++n) {
    resample("aten::upsample_nearest" + std::to_string(n) + "d", n, false);
    resample("aten::_upsample_nearest_exact" + std::to_string(n) + "d", n, false);
  }
  resample("aten::upsample_linear1d", 1, true);
  for (const char* op : {"aten::upsample_bilinear2d", "aten::upsample_bicubic2d", "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa", "aten::_upsample_lanczos2d_aa"}) resample(op, 2, true);
  resample("aten::upsample_trilinear3d", 3, true);
  cases.insert(cases.end(), {
    {"aten::affine_grid_generator", {shard({B, 2, 3}), ints({B, 1, 4, 5}), false}, kLocal, S(0)},
    {"aten::affine_grid_generator", {shard({2 * B, 2, 3}, 0, 1, 2), ints({2 * B, 1, 4, 5}), false}, kLocal, S(0, 1, 2)},
    {"aten::grid_sampler", {shard({B, 2, 4, 4}), replicate({B, 3, 3, 2}), 0, 0, false}, kLocal, S(0)},
    {"aten::grid_sampler", {replicate({B, 2, 4, 4}), shard({B, 3, 3, 2}), 0, 0, false}, kLocal, S(0)},
    {"aten::grid_sampler", {replicate({2, 2, 4, 4}), shard({2, B, 3, 2}, 1), 0, 0, false}, kNo},
    {"aten::grid_sampler_2d", {shard({B, 2, 4, 4}), replicate({B, 3, 3, 2}), 0, 0, false}, kLocal, S(0)},
    {"aten::grid_sampler_3d", {shard({B, 2, 4, 4, 4}), replicate({B, 3, 3, 3, 3}), 0, 0, false}, kLocal, S(0)},
    {"aten::max_unpool2d", {shard({B, 2, 2, 2}), as(replicate({B, 2, 2, 2}, Fill::kIndex), c10::ScalarType::Long), ints({4, 4})}, kLocal, S(0)},
    {"aten::max_unpool3d", {shard({B, 2, 2, 2, 2}), as(replicate({B, 2, 2, 2, 2}, Fill::kIndex), c10::ScalarType::Long), ints({4, 4, 4}), ints({2, 2, 2}), ints({0, 0, 0})}, kLocal, S(0)},
    {"aten::fractional_max_pool2d", {shard({B, 2, 6, 6}), ints({2, 2}), ints({3, 3}), constant(replicate({B, 2, 2}, Fill::kUnit))}, kLocal, S(0)},
    {"aten::fractional_max_pool2d", {shard({B, 6, 6}), ints({2, 2}), ints({3, 3}), constant(replicate({1, B, 2}, Fill::kUnit))}, kNo},
    {"aten::fractional_max_pool3d", {shard({B, 2, 6, 6, 6}), ints({2, 2, 2}), ints({3, 3, 3}), constant(replicate({B, 2, 3}, Fill::kUnit))}, kLocal, S(0)},
    {"aten::im2col", {shard({B, 2, 4, 4}), ints({2, 2}), ints({1, 1}), ints({0, 0}), ints({1, 1})}, kLocal, S(0)},
    {"aten::im2col", {shard({B, 4, 4}), ints({2, 2}), ints({1, 1}), ints({0, 0}), ints({1, 1})}, kNo},
    {"aten::col2im", {shard({B, 8, 9}), ints({4, 4}), ints({2, 2}), ints({1, 1}), ints({0, 0}), ints({1, 1})}, kLocal, S(0)},
  });
}

void normalisation(std::vector<Case>& cases) {
  cases.insert(cases.end(), {
    {"aten::layer_norm", {shard({B, 3, 4}), ints({4}), replicate({4}), replicate({4})}, kLocal, S(0)},
    {"aten::layer_norm", {shard({3, B, 4}, 1), ints({4})}, kLocal, S(1)},
    {"aten::native_layer_norm", {shard({B, 3, 4}), ints({4}), replicate({4}), replicate({4}), 1e-5}, kLocal, S(0)},
    {"aten::layer_norm", {shard({3, B, 4}, 1), ints({B, 4})}, kNo},
    {"aten::layer_norm", {partial({3, 4}), ints({4})}, kNo},
    {"aten::rms_norm", {shard({B, 3, 4}), ints({3, 4}), replicate({3, 4})}, kLocal, S(0)},
    {"aten::rms_norm", {shard({B, 3}), ints({B, 3})}, kNo},
    {"aten::group_norm", {shard({B, 4, 3}), 2, replicate({4}), replicate({4})}, kLocal, S(0)},
    {"aten::group_norm", {shard({2, 4, B}, 2), 2}, kNo},
    {"aten::instance_norm", {shard({B, 3, 4}), replicate({3}), replicate({3}), none(), none(), true, 0.1, 1e-5, false}, kLocal, S(0)},
    {"aten::instance_norm", {shard({B, 3, 4}), none(), none(), constant(replicate({3})), constant(replicate({3}, Fill::kPositive)), true, 0.1, 1e-5, false}, kStaged},
    {"aten::batch_norm", {shard({B, 3, 4}), replicate({3}), replicate({3}), constant(replicate({3})), constant(replicate({3}, Fill::kPositive)), false, 0.1, 1e-5, false}, kLocal, S(0)},
    {"aten::batch_norm", {shard({2, 3, B}, 2), none(), none(), constant(replicate({3})), constant(replicate({3}, Fill::kPositive)), false, 0.1, 1e-5, false}, kLocal, S(2)},
    {"aten::batch_norm", {shard({B, 3, 4}), replicate({3}), replicate({3}), constant(replicate({3})), constant(replicate({3}, Fill::kPositive)), true, 0.1, 1e-5, false}, kStaged},
    {"aten::batch_norm", {shard({B, 3, 4}), replicate({3}), replicate({3}), none(), none(), true, 0.1, 1e-5, false}, kStaged},
    {"aten::batch_norm", {shard({2, B, 4}, 1), replicate({B}), replicate({B}), none(), none(), true, 0.1, 1e-5, false}, kNo},
    {"koila::normalise", {shard({B, 3, 4}), replicate({3}), replicate({3}, Fill::kPositive), replicate({3}), replicate({3}), 1e-5}, kLocal, S(0)},
    {"koila::normalise", {shard({2, 3, B}, 2), replicate({3}), replicate({3}, Fill::kPositive), none(), none(), 1e-5}, kLocal, S(2)},
    {"koila::normalise", {shard({2, B}, 1), replicate({B}), replicate({B}, Fill::kPositive), none(), none(), 1e-5}, kNo},
    {"aten::batch_norm", {shard({2, B, 4}, 1), none(), none(), constant(replicate({B})), constant(replicate({B}, Fill::kPositive)), false, 0.1, 1e-5, false}, kNo},
  });
}

void attention(std::vector<Case>& cases) {
  const char* op = "aten::scaled_dot_product_attention";
  cases.insert(cases.end(), {
    {op, {shard({B, 2, 3, 4}), shard({B, 2, 3, 4}), shard({B, 2, 3, 4})}, kLocal, S(0)},
    {op, {shard({B, 2, 3, 4}), shard({B, 2, 3, 4}), shard({B, 2, 3, 4}), none(), 0.0, true}, kLocal, S(0)},
    {op, {shard({B, 2, 3, 4}), shard({B, 2, 6, 4}), shard({B, 2, 6, 4}), replicate({B, 1, 3, 6})}, kLocal, S(0)},
    {op, {shard({B, 2, 3, 4}), shard({B, 2, 6, 4}), shard({B, 2, 6, 4}), replicate({3, 6})}, kLocal, S(0)},
    {op, {shard({B, 2, B, 4}), shard({B, 2, B, 4}), shard({B, 2, B, 4}), replicate({B, B})}, kLocal, S(0)},
    {op, {shard({B, 2, 3, 4}), shard({B, 2, 3, 4}), shard({B, 2, 3, 4}), shard({B, 1, 1, 3})}, kLocal, S(0)},
    {op, {shard({2 * B, 3, 4}, 0, 1, 2), shard({2 * B, 3, 4}, 0, 1, 2), shard({2 * B, 3, 4}, 0, 1, 2)}, kLocal, S(0, 1, 2)},
    {op, {shard({2, B, 3, 4}, 1), shard({2, B, 3, 4}, 1), replicate({2, B, 3, 4})}, kLocal, S(1)},
    {op, {shard({B, 2, 3, 4}), replicate({B, 2, 6, 4}), replicate({B, 2, 6, 4})}, kLocal, S(0)},
    {op, {shard({B, 2, 3, 4}), replicate({1, 2, 6, 4}), replicate({1, 2, 6, 4})}, kLocal, S(0)},
    {op, {shard({B, 4, 3, 4}), shard({B, 2, 3, 4}), shard({B, 2, 3, 4})}, kLocal, S(0), {{"scale", 0.3}, {"enable_gqa", true}}},
    {op, {shard({1, 4 * B, 3, 4}, 1, 1, 4), replicate({1, 2, 3, 4}), replicate({1, 2, 3, 4})}, kNo, {}, {{"enable_gqa", true}}},
    {op, {shard({B, 2, B, 4}, 2), shard({B, 2, B, 4}, 2), shard({B, 2, B, 4}, 2)}, kNo},
    {op, {shard({B, B, 3, 4}), shard({B, B, 3, 4}, 1), shard({B, B, 3, 4})}, kNo},
    {op, {shard({B, 2, 3, 4}), shard({B, 2, 3, 4}), shard({B, 2, 3, 4}), none(), 0.5}, kLocal, S(0), {}, /*random=*/true},
  });
}

// What nn.TransformerEncoder runs in evaluation: no gradients.
void fused_attention(std::vector<Case>& cases) {
  const auto c = [](const Operand& o) { return constant(o); };
  const auto layer = [&](Operand src, Operand mask, Argument type) {
    return std::vector<Argument>{c(src), 4, 2, c(replicate({12, 4})), c(replicate({12})), c(replicate({4, 4})), c(replicate({4})), true, false, 1e-5,
                                 c(replicate({4})), c(replicate({4})), c(replicate({4})), c(replicate({4})),
                                 c(replicate({6, 4})), c(replicate({6})), c(replicate({4, 6})), c(replicate({4})), mask, type};
  };
  const char* op = "aten::_transformer_encoder_layer_fwd";
  cases.insert(cases.end(), {
    {op, layer(shard({B, 3, 4}), none(), kNil), kLocal, S(0)},
    {op, layer(shard({B, 3, 4}), mask({0, 1, 0, 0, 0, 1, 0, 0, 0}, {3, 3}), 0), kLocal, S(0)},
    {op, layer(shard({B, 3, 4}), mask({0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1}, {B, 3}), 1), kLocal, S(0)},
    {op, layer(shard({B, 3, 4}), mask({0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1}, {B, 3}), kNil), kNo},
    {op, layer(shard({3, B, 4}, 1), none(), kNil), kNo},
  });
  const auto heads = [&](Operand query, Operand mask, Argument type) {
    return std::vector<Argument>{c(query), c(query), c(query), 4, 2, c(replicate({12, 4})), c(replicate({12})), c(replicate({4, 4})), c(replicate({4})), mask, true, true, type};
  };
  op = "aten::_native_multi_head_attention";
  cases.insert(cases.end(), {
    {op, heads(shard({B, 3, 4}), none(), kNil), kLocal, S(0)},
    {op, heads(shard({B, 3, 4}), mask({0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1}, {B, 3}), 1), kLocal, S(0)},
    {op, heads(shard({3, B, 4}, 1), none(), kNil), kNo},
  });
}

void embeddings(std::vector<Case>& cases) {
  cases.insert(cases.end(), {
    {"aten::embedding", {replicate({3, 4}), shard({B, 2}, Fill::kIndex)}, kLocal, S(0)},
    {"aten::embedding", {replicate({3, 4}), shard({2, B}, 1, 1, 1, Fill::kIndex), 1}, kLocal, S(1)},
    {"aten::embedding", {replicate({3, 4}), shard({B}, Fill::kIndex), -1, true}, kNo},
    {"aten::embedding", {replicate({3, 4}), shard({B}, Fill::kIndex), -1, false, true}, kNo},
    {"aten::embedding", {shard({B, 4}), replicate({2}, Fill::kIndex)}, kNo},
    {"aten::one_hot", {shard({B, 2}, Fill::kIndex), 4}, kLocal, S(0)},
    {"aten::one_hot", {shard({B, 2}, Fill::kIndex)}, kNo},
  });
}

void recurrent(std::vector<Case>& cases) {
  // 2 layers, both directions, hidden size 2, input size 3.
  const auto weights = [](int64_t gates) {
    List all;
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (int direction = 0; direction < 2; ++direction) {
        const int64_t in = layer == 0 ? 3 : 4;
        for (const Sizes& sizes : {Sizes{gates * 2, in}, Sizes{gates * 2, 2}, Sizes{gates * 2}, Sizes{gates * 2}}) all.push_back(replicate(sizes));
      }
    }
    return all;
  };
  const auto layer = [&](const char* op, int64_t gates, Argument hx_real, Argument hx_split) {
    const bool f = false, t = true;
    cases.push_back({op, {shard({4, B, 3}, 1), hx_real, weights(gates), t, 2, 0.0, t, t, f}, kLocal, S(1)});
    cases.push_back({op, {shard({B, 4, 3}), hx_split, weights(gates), t, 2, 0.0, f, t, t}, kLocal, S(0)});
    cases.push_back({op, {shard({B, B, 3}), hx_split, weights(gates), t, 2, 0.0, f, t, f}, kNo});
    cases.push_back({op, {shard({4, B, 3}, 1), hx_real, weights(gates), t, 2, 0.5, t, t, f}, kLocal, S(1), {}, /*random=*/true});
  };
  layer("aten::lstm.input", 4, List{replicate({4, B, 2}), replicate({4, B, 2})}, List{shard({4, B, 2}, 1), shard({4, B, 2}, 1)});
  layer("aten::gru.input", 3, replicate({4, B, 2}), shard({4, B, 2}, 1));
  layer("aten::rnn_tanh.input", 1, replicate({4, B, 2}), shard({4, B, 2}, 1));
  layer("aten::rnn_relu.input", 1, replicate({4, B, 2}), shard({4, B, 2}, 1));

  cases.push_back({"aten::lstm_cell", {shard({B, 3}), List{replicate({B, 2}), shard({B, 2})}, replicate({8, 3}), replicate({8, 2}), replicate({8}), replicate({8})}, kLocal, S(0)});
  for (const auto& [op, rows] : {std::pair("aten::gru_cell", 6), std::pair("aten::rnn_tanh_cell", 2), std::pair("aten::rnn_relu_cell", 2)}) {
    cases.push_back({op, {shard({B, 3}), replicate({B, 2}), replicate({rows, 3}), replicate({rows, 2}), replicate({rows}), replicate({rows})}, kLocal, S(0)});
    cases.push_back({op, {shard({2, B}, 1), replicate({2, 2}), replicate({rows, B}), replicate({rows, 2})}, kNo});
  }
}

// 2 layers of 2 from 3, one direction.
List packed_weights(int64_t gates) {
  List all;
  for (const int64_t in : {3, 2}) {
    for (const Sizes& sizes : {Sizes{gates * 2, in}, Sizes{gates * 2, 2}, Sizes{gates * 2}, Sizes{gates * 2}}) all.push_back(replicate(sizes));
  }
  return all;
}

// Rows of 4, 3, 3, 1 and 1 steps, which have `places` in each step.
void packed(std::vector<Case>& cases, const std::vector<int64_t>& places) {
  const bool f = false, t = true;
  const std::vector<int64_t> lengths{4, 3, 3, 1, 1}, steps{5, 3, 3, 1};
  const auto data = [&](int64_t features) {
    Operand o = replicate({12, features});
    o.placement = Placement::shard(0, std::make_shared<const Ragged>(*packed_rows(steps, places)));
    return o;
  };
  const Ragged rows = rows_at(places);
  const auto by_row = [&](Sizes sizes, int64_t dim) {
    Operand o = shard(std::move(sizes), dim);
    if (!rows.order.empty()) o.placement = Placement::shard(dim, std::make_shared<const Ragged>(rows));
    return o;
  };
  const auto out = [&](int64_t dim) { return rows.order.empty() ? S(dim) : R(dim); };
  cases.insert(cases.end(), {
    {"aten::_pack_padded_sequence", {by_row({4, B, 3}, 1), with_values(lengths), f}, kLocal, R(0)},
    {"aten::_pack_padded_sequence", {by_row({B, 4, 3}, 0), with_values(lengths), t}, kLocal, R(0)},
    {"aten::_pack_padded_sequence", {shard({B, B, 3}, 0), with_values(lengths), f}, kNo},  // by the step
    {"aten::_pad_packed_sequence", {data(3), with_values(steps), f, 0.0, -1}, kLocal, out(1)},
    {"aten::_pad_packed_sequence", {data(3), with_values(steps), t, 7.0, 6}, kLocal, out(0)},
    {"aten::_pad_packed_sequence", {data(3), with_values({5, 4, 2, 1}), t, 0.0, -1}, kNo},  // of another sequence
    {"aten::_pad_packed_sequence", {data(3), with_values(steps), t, 0.0, 3}, kNo},          // shorter than the longest: PyTorch's error
    {"aten::lstm.data", {data(3), with_values(steps), List{replicate({2, B, 2}), replicate({2, B, 2})}, packed_weights(4), t, 2, 0.0, t, f}, kLocal, R(0)},
  });
  for (const auto& [op, gates] : {std::pair("aten::gru.data", 3), std::pair("aten::rnn_tanh.data", 1), std::pair("aten::rnn_relu.data", 1)}) {
    cases.push_back({op, {data(3), with_values(steps), replicate({2, B, 2}), packed_weights(gates), t, 2, 0.0, t, f}, kLocal, R(0)});
    cases.push_back({op, {data(3), with_values(steps), by_row({2, B, 2}, 1), packed_weights(gates), t, 2, 0.0, t, f}, kLocal, R(0)});
  }
  cases.push_back({"aten::gru.data", {data(3), with_values(steps), replicate({2, B, 2}), packed_weights(3), t, 2, 0.5, t, f}, kLocal, R(0), {}, /*random=*/true});
}

void random(std::vector<Case>& cases) {
  const auto draw = [&](const char* op, std::vector<Argument> args, Fill fill = Fill::kNormal) {
    args.insert(args.begin(), shard({B, 2, 3}, fill));
    cases.push_back({op, args, kLocal, S(0), {}, /*random=*/true});
  };
  draw("aten::dropout", {0.5, true});
  draw("aten::alpha_dropout", {0.5, true});
  draw("aten::feature_dropout", {0.5, true});
  draw("aten::feature_alpha_dropout", {0.5, true});
  draw("aten::native_dropout", {0.5, true});
  const auto noise = [&](const char* op, std::vector<Argument> args) {
    args.insert(args.begin(), shard({B, 2, 3}));
    cases.push_back({op, args, kReal, {}, {}, /*random=*/true});
  };
  for (const char* op : {"aten::rand_like", "aten::randn_like", "aten::cauchy", "aten::exponential", "aten::log_normal", "aten::random", "aten::uniform"}) noise(op, {});
  noise("aten::bernoulli.p", {0.5});
  noise("aten::geometric", {0.5});
  noise("aten::randint_like", {7});
  noise("aten::randint_like.low_dtype", {2, 7});
  noise("aten::random.from", {0, 7});
  noise("aten::random.to", {7});
  cases.insert(cases.end(), {
    // nothing is drawn: equal in value too
    {"aten::dropout", {shard({B, 3}), 0.5, false}, kLocal, S(0)},
    {"aten::dropout", {shard({B, 3}), 0.0, true}, kLocal, S(0)},
    {"aten::dropout", {partial({3}), 0.5, true}, kNo},
    {"aten::feature_dropout", {shard({2, B, 3}, 1), 0.5, false}, kLocal, S(1)},
    {"aten::feature_dropout", {shard({2, 2, B}, 2), 0.5, true}, kNo},
    {"aten::rrelu", {shard({B, 3})}, kLocal, S(0)},
    {"aten::rrelu", {shard({B, 3}), 0.1, 0.3, true}, kNo},
    {"aten::rand_like", {partial({3})}, kReal, {}, {}, true},
    // noise in place: at the full batch
    {"aten::uniform_", {shard({B, 3})}, kNo},
    // a generator of the program's own
    {"aten::rand_like.generator", {shard({B, 3})}, kReal, {}, {{"generator", Special::kGenerator}}, true},
    {"aten::randn_like.generator", {shard({B, 3})}, kReal, {}, {{"generator", Special::kGenerator}}, true},
    {"aten::randint_like.generator", {shard({B, 3}), 7}, kReal, {}, {{"generator", Special::kGenerator}}, true},
    {"aten::randint_like.low_generator_dtype", {shard({B, 3}), 2, 7}, kReal, {}, {{"generator", Special::kGenerator}}, true},
    {"aten::randint_like.Tensor", {shard({B, 3}), scalar(7)}, kNo},
    {"aten::randint_like.Tensor_generator", {shard({B, 3}), scalar(7)}, kNo, {}, {{"generator", Special::kGenerator}}},
  });
}

}  // namespace

std::vector<Case> layer_cases() {
  std::vector<Case> cases;
  convolutions(cases);
  pooling(cases);
  normalisation(cases);
  attention(cases);
  fused_attention(cases);
  embeddings(cases);
  recurrent(cases);
  packed(cases, {0, 1, 2, 3, 4});
  packed(cases, {3, 0, 4, 1, 2});
  random(cases);
  return cases;
}

}  // namespace koila::cases
