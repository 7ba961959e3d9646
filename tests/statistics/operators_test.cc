#include "torchglue/statistics/operators.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <vector>

namespace koila {
namespace {

at::Tensor leaf(const at::Tensor& t) { return t.detach().clone().requires_grad_(); }

std::vector<at::Tensor> call(const c10::OperatorHandle& op, torch::jit::Stack stack) {
  op.callBoxed(stack);
  std::vector<at::Tensor> results;
  for (const c10::IValue& v : stack) results.push_back(v.toTensor());
  return results;
}

std::vector<at::Tensor> gradients(const at::Tensor& y, const at::Tensor& direction, const std::vector<at::Tensor>& of) {
  return torch::autograd::grad({y}, of, {direction});
}

// Over parts, the gradients add up to those of batch norm over all.
TEST(Operators, TogetherTheyAreBatchNorm) {
  for (bool affine : {true, false}) {
    const at::Tensor x = leaf(at::randn({10, 3, 4}, at::kDouble) * 2 + 1);
    const at::Tensor weight = leaf(at::rand({3}, at::kDouble) + 0.5), bias = leaf(at::randn({3}, at::kDouble));
    const at::Tensor direction = at::randn({10, 3, 4}, at::kDouble);
    const auto w = affine ? weight : at::Tensor(), b = affine ? bias : at::Tensor();
    const at::Tensor expected = at::batch_norm(x, w, b, {}, {}, true, 0.1, 1e-3, false);
    std::vector<at::Tensor> leaves{x};
    if (affine) leaves.insert(leaves.end(), {weight, bias});
    const auto wanted = gradients(expected, direction, leaves);

    const at::Tensor full_mean = x.detach().mean({0, 2}), full_var = x.detach().var({0, 2}, false);
    // The second stage: statistics are leaves of its own.
    const at::Tensor mean = leaf(full_mean), var = leaf(full_var), kept = leaf(x);
    std::vector<at::Tensor> inputs{kept, mean, var};
    if (affine) inputs.insert(inputs.end(), {weight, bias});
    std::vector<at::Tensor> sums;
    for (int64_t begin : {0, 4}) {
      const int64_t rows = begin == 0 ? 4 : 6;
      const at::Tensor y = call(normalise_operator(), {kept.narrow(0, begin, rows), mean, var, affine ? c10::IValue(weight) : c10::IValue(), affine ? c10::IValue(bias) : c10::IValue(), 1e-3})[0];
      EXPECT_TRUE(at::allclose(y, expected.narrow(0, begin, rows), 1e-10));
      const auto parts = gradients(y, direction.narrow(0, begin, rows), inputs);
      for (size_t i = 0; i < parts.size(); ++i) sums.size() <= i ? sums.push_back(parts[i]) : (void)(sums[i] = sums[i] + parts[i]);
    }
    // The first: what the statistics say about its rows.
    at::Tensor dx = at::zeros_like(x);
    for (int64_t begin : {0, 4}) {
      const int64_t rows = begin == 0 ? 4 : 6;
      const at::Tensor part = leaf(x.narrow(0, begin, rows));
      const auto both = call(statistics_operator(), {part, std::vector<int64_t>{0, 2}, full_mean, full_var, int64_t{40}});
      EXPECT_TRUE(at::equal(both[0], full_mean) && at::equal(both[1], full_var));
      const auto found = torch::autograd::grad({both[0], both[1]}, {part}, {sums[1], sums[2]});
      dx.narrow(0, begin, rows).copy_(found[0] + sums[0].narrow(0, begin, rows));
    }
    EXPECT_TRUE(at::allclose(dx, wanted[0], 1e-10, 1e-12));
    for (size_t i = 1; i < wanted.size(); ++i) EXPECT_TRUE(at::allclose(sums[i + 2], wanted[i], 1e-10));
  }
}

TEST(Operators, StatisticsOfOneGradientAlone) {
  const at::Tensor x = leaf(at::randn({6, 2}, at::kDouble));
  const at::Tensor mean = x.detach().mean(0), var = x.detach().var(0, false), direction = at::randn({2}, at::kDouble);
  for (int which : {0, 1}) {
    const at::Tensor plain = which == 0 ? x.mean(0) : x.var(0, false);
    const auto both = call(statistics_operator(), {x, std::vector<int64_t>{0}, mean, var, int64_t{6}});
    EXPECT_TRUE(at::allclose(gradients(both[which], direction, {x})[0], gradients(plain, direction, {x})[0], 1e-10));
  }
}

TEST(Operators, HalfPrecisionInput) {
  const at::Tensor x = at::randn({6, 2}).to(at::kBFloat16).requires_grad_();
  const at::Tensor mean = x.detach().to(at::kFloat).mean(0), var = x.detach().to(at::kFloat).var(0, false);
  const at::Tensor weight = at::ones({2}, at::kBFloat16).requires_grad_();
  const at::Tensor y = call(normalise_operator(), {x, mean, var, weight, c10::IValue(), 1e-5})[0];
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const auto found = gradients(y, at::ones_like(y), {x, weight});
  EXPECT_EQ(found[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(found[1].scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace koila
