// koila::gradient: its rule, and what it computes.
#include "torchglue/operators/gradient.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <vector>

#include "tests/placement/specs.h"

namespace koila {
namespace {

OpCall::Arg list(std::vector<TensorSpec> tensors) {
  OpCall::Arg arg;
  arg.is_tensor_list = true;
  arg.tensors = std::move(tensors);
  return arg;
}

// Of one output, by an input and a weight.
OpCall call_of(const TensorSpec& output, const TensorSpec& gradient, const Placement& input) {
  OpCall call(gradient_operator(2).schema(), kBatch);
  call.args() = {list({output}), list({gradient}), list({spec(input, {kBatch, 3}), spec({}, {4, 3})}), OpCall::Arg{}};
  return call;
}

Verdict ask_rule(OpCall& call) { return ask(find_rule(call.schema()), call); }

TEST(Gradient, OfASumIsSplitAsTheInputAndASumForTheWeight) {
  OpCall call = call_of(spec(Placement::partial(), {}), spec({}, {}), Placement::shard(0));
  EXPECT_EQ(ask_rule(call), Verdict::kLocal);
  EXPECT_EQ(call.outputs(), (std::vector<Placement>{Placement::shard(0), Placement::partial()}));
}

TEST(Gradient, OfRowsTakesItsRowsOfTheOutputsGradient) {
  OpCall call = call_of(spec(Placement::shard(0), {kBatch, 4}), spec({}, {kBatch, 4}), Placement::shard(0));
  EXPECT_EQ(ask_rule(call), Verdict::kLocal);
  ASSERT_EQ(call.slices().size(), 1u);
  EXPECT_EQ(call.slices()[0].arg, (OpCall::ArgRef{1, 0}));
}

TEST(Gradient, OfWhatIsWholeIsNotSplit) {
  OpCall call = call_of(spec({}, {}), spec({}, {}), Placement::shard(0));
  EXPECT_EQ(ask_rule(call), Verdict::kNo);
}

TEST(Gradient, OneOverloadForEachNumberOfResults) {
  EXPECT_EQ(gradient_operator(3).schema().returns().size(), 3u);
  EXPECT_TRUE(gradient_operator(3) == gradient_operator(3));
  EXPECT_FALSE(gradient_operator(3) == gradient_operator(1));
  EXPECT_TRUE(is_gradient(gradient_operator(1)));
  EXPECT_FALSE(is_gradient(c10::Dispatcher::singleton().findSchemaOrThrow("aten::sum", "")));
}

torch::jit::Stack stack_of(const at::Tensor& output, const std::vector<at::Tensor>& inputs, std::vector<bool> used) {
  c10::List<bool> flags;
  for (bool flag : used) flags.push_back(flag);
  c10::List<std::optional<at::Tensor>> gradients;
  gradients.push_back(at::ones_like(output));
  return {c10::List<at::Tensor>({output}), std::move(gradients), c10::List<at::Tensor>(inputs), std::move(flags)};
}

TEST(Gradient, HasAGraph) {
  const at::Tensor x = at::arange(1, 4, at::kDouble).set_requires_grad(true);
  torch::jit::Stack stack = stack_of(x.pow(3).sum(), {x}, {});
  run_gradient(gradient_operator(1), &stack);
  const at::Tensor slope = stack[0].toTensor();
  EXPECT_TRUE(at::allclose(slope, 3 * x.detach().square()));
  stack = stack_of(slope.sum(), {x}, {});
  run_gradient(gradient_operator(1), &stack);
  EXPECT_TRUE(at::allclose(stack[0].toTensor(), 6 * x.detach()));
}

TEST(Gradient, OfWhatTheOutputDoesNotDependOn) {
  const at::Tensor x = at::ones({3}, at::kDouble).set_requires_grad(true), other = at::ones({2}, at::kDouble).set_requires_grad(true);
  torch::jit::Stack stack = stack_of(x.sum(), {x, other}, {});
  run_gradient(gradient_operator(2), &stack);
  EXPECT_FALSE(stack[1].toTensor().defined());
  stack = stack_of(x.detach().sum(), {x, other}, {true, false});  // rows whose graph has nothing of what others have
  run_gradient(gradient_operator(2), &stack);
  EXPECT_TRUE(at::equal(stack[0].toTensor(), at::zeros({3}, at::kDouble)));
  EXPECT_FALSE(stack[1].toTensor().defined());
}

}  // namespace
}  // namespace koila
