#include "torchglue/statistics/moments.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace koila {
namespace {

// In parts of these many rows, over those dimensions.
Moments of(const at::Tensor& x, std::vector<int64_t> dims, const std::vector<int64_t>& rows) {
  Moments moments(std::move(dims));
  int64_t begin = 0;
  for (int64_t n : rows) {
    moments.add(x.narrow(0, begin, n));
    begin += n;
  }
  return moments;
}

TEST(Moments, AreThoseOfAllRows) {
  const at::Tensor x = at::randn({11, 5, 4}, at::kDouble) * 3 + 7;
  const Moments moments = of(x, {0, 2}, {1, 3, 7});
  EXPECT_EQ(moments.count(), 44);
  EXPECT_TRUE(at::allclose(moments.mean(), x.mean({0, 2}), 1e-13));
  EXPECT_TRUE(at::allclose(moments.biased_variance(), x.var({0, 2}, /*unbiased=*/false), 1e-12));
}

TEST(Moments, OverAnyDimensions) {
  const at::Tensor x = at::randn({11, 5, 4}, at::kDouble);
  const Moments moments = of(x, {0, 1}, {5, 6});
  EXPECT_TRUE(at::allclose(moments.mean(), x.mean({0, 1}), 1e-13));
  EXPECT_TRUE(at::allclose(moments.biased_variance(), x.var({0, 1}, false), 1e-12));
}

// The sum of squares less the square of the sum would have no digit left.
TEST(Moments, FarFromZero) {
  const at::Tensor small = at::randn({64, 3}, at::kDouble);
  const at::Tensor x = (small + 1e4).to(at::kFloat);
  const Moments moments = of(x, {0}, {16, 16, 16, 16});
  const at::Tensor expected = x.to(at::kDouble).var(0, false).to(at::kFloat);
  EXPECT_TRUE(at::allclose(moments.biased_variance(), expected, 1e-5)) << moments.biased_variance() << expected;
}

TEST(Moments, RowsOneByOne) {
  const at::Tensor x = at::randn({9, 2}, at::kDouble);
  const Moments moments = of(x, {0}, std::vector<int64_t>(9, 1));
  EXPECT_TRUE(at::allclose(moments.biased_variance(), x.var(0, false), 1e-12));
}

TEST(Moments, OfHalvesAreSingle) {
  const Moments moments = of(at::randn({8, 2}).to(at::kBFloat16), {0}, {4, 4});
  EXPECT_EQ(moments.mean().scalar_type(), at::kFloat);
  EXPECT_EQ(moments.biased_variance().scalar_type(), at::kFloat);
}

TEST(Moments, StartOver) {
  const at::Tensor x = at::randn({6, 2}, at::kDouble);
  Moments moments = of(x, {0}, {2, 2});
  moments.start_over();
  moments.add(x);
  EXPECT_EQ(moments.count(), 6);
  EXPECT_TRUE(at::allclose(moments.mean(), x.mean(0)));
}

}  // namespace
}  // namespace koila
