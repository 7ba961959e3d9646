#include "torchglue/stages/running_statistics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace koila {
namespace {

const c10::FunctionSchema& batch_norm() { return c10::Dispatcher::singleton().findSchemaOrThrow("aten::batch_norm", "").schema(); }

torch::jit::Stack arguments(const at::Tensor& mean, const at::Tensor& var, bool training) {
  return {at::randn({4, 2}), c10::IValue(), c10::IValue(), mean, var, training, 0.1, 1e-5, false};
}

TEST(RunningStatistics, AreToldFromTheArguments) {
  const at::Tensor mean = at::zeros({2}), var = at::ones({2});
  auto stack = arguments(mean, var, true);
  EXPECT_TRUE(uses_batch_statistics(batch_norm(), stack));
  EXPECT_FALSE(uses_batch_statistics(batch_norm(), arguments(mean, var, false)));
  const auto found = running_statistics(batch_norm(), stack);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(found[0].is_same(mean) && found[1].is_same(var));
  drop_running_statistics(batch_norm(), stack);
  EXPECT_TRUE(stack[3].isNone() && stack[4].isNone() && stack[0].isTensor());
}

TEST(RunningStatistics, ArePutBack) {
  const at::Tensor mean = at::randn({2}), var = at::rand({4}).slice(0, 0, 4, 2);  // one of them not contiguous
  const at::Tensor mean_before = mean.clone(), var_before = var.clone();
  const SavedStatistics saved(batch_norm(), arguments(mean, var, true));
  mean.add_(1);
  var.mul_(3);
  const auto version = mean._version();
  EXPECT_TRUE(saved.restore());
  EXPECT_TRUE(at::equal(mean, mean_before) && at::equal(var, var_before));
  EXPECT_EQ(mean._version(), version) << "autograd must not notice";
}

TEST(RunningStatistics, ThatAreOnlyReadAreLeftAlone) {
  const at::Tensor mean = at::zeros({2}), var = at::ones({2});
  const SavedStatistics saved(batch_norm(), arguments(mean, var, false));
  mean.add_(1);
  EXPECT_TRUE(saved.restore());
  EXPECT_EQ(mean[0].item<float>(), 1);
}

TEST(RunningStatistics, MoveSilently) {
  const at::Tensor running = at::ones({2}).to(at::kBFloat16);
  const auto version = running._version();
  update_running_statistics({{running, at::full({2}, 3.0f)}, {at::Tensor(), at::ones({2})}}, 0.25);
  EXPECT_EQ(running[0].item<float>(), 1.5f);
  EXPECT_EQ(running._version(), version);
}

}  // namespace
}  // namespace koila
