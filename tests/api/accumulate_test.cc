// koila::accumulate against one batch of all micro-batches.
#include "koila/accumulate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace koila {
namespace {

class Accumulate : public testing::Test {
 protected:
  Accumulate() {
    at::manual_seed(5);
    weight = at::randn({6, 4}, at::kDouble).requires_grad_();
    // Sentences of different lengths, with padding.
    for (const std::int64_t length : {3, 7, 2, 5}) {
      rows.push_back(at::randn({length, 6}, at::kDouble));
      labels.push_back(at::randint(4, {length}));
    }
    labels[0][1] = -100;
    labels[1].slice(0, 2).fill_(-100);
    labels[2].fill_(-100);  // nothing but padding: its mean is no number
  }

  at::Tensor loss(std::size_t i, std::int64_t reduction = at::Reduction::Mean) const { return at::cross_entropy_loss(rows[i].mm(weight), labels[i], {}, reduction); }
  at::Tensor of_all() const { return at::cross_entropy_loss(at::cat(rows).mm(weight), at::cat(labels)); }

  void expect_close(const at::Tensor& a, const at::Tensor& b) { EXPECT_TRUE(at::allclose(a, b, 1e-12, 1e-12)) << a << "\n" << b; }
  template <class F>
  static std::string error_of(F&& f) {
    try {
      f();
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "nothing was thrown";
  }

  at::Tensor weight;
  std::vector<at::Tensor> rows, labels;
};

TEST_F(Accumulate, IsTheMeanOverAllItems) {
  const at::Tensor plain = of_all();
  plain.backward();
  const at::Tensor gradient = weight.grad().clone();
  weight.mutable_grad().reset();
  const std::vector<std::int64_t> counts = valid_labels(labels);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{2, 2, 0, 5}));

  expect_close(accumulate(counts, [&](std::size_t i) { return loss(i); }), plain.detach());
  expect_close(weight.grad(), gradient);

  weight.mutable_grad().reset();
  const auto sums = AccumulateOptions().with_reduction(AccumulateOptions::Reduction::kSum);
  expect_close(accumulate(counts, [&](std::size_t i) { return loss(i, at::Reduction::Sum); }, sums), plain.detach());
  expect_close(weight.grad(), gradient);

  // The mean of means is another number.
  weight.mutable_grad().reset();
  for (const std::size_t i : {0, 1, 3}) (loss(i) / 3).backward();
  EXPECT_FALSE(at::allclose(weight.grad(), gradient, 1e-2));
}

TEST_F(Accumulate, AddsToWhatIsThere) {
  weight.square().sum().backward();
  const at::Tensor there = weight.grad();
  of_all().backward();
  const at::Tensor both = weight.grad().clone();
  weight.mutable_grad() = there;
  weight.mutable_grad().copy_(2 * weight.detach());
  accumulate(valid_labels(labels), [&](std::size_t i) { return loss(i); });
  expect_close(weight.grad(), both);
  EXPECT_TRUE(weight.grad().is_same(there));
}

TEST_F(Accumulate, Scale) {
  const at::Tensor plain = accumulate(valid_labels(labels), [&](std::size_t i) { return loss(i); });
  const at::Tensor gradient = weight.grad().clone();
  weight.mutable_grad().reset();
  expect_close(accumulate(valid_labels(labels), [&](std::size_t i) { return loss(i); }, AccumulateOptions().with_scale(1024)), plain);
  expect_close(weight.grad(), gradient * 1024);
}

// A loss in 16 bits is weighed in float: a share of 1/3 in bfloat16 is off by a thousandth.
TEST_F(Accumulate, LossesIn16Bits) {
  at::Tensor w = at::ones({1}, at::kBFloat16).requires_grad_();
  const at::Tensor total = accumulate({1, 1, 1}, [&](std::size_t) { return w.sum(); });
  EXPECT_EQ(total.scalar_type(), at::kFloat);
  EXPECT_NEAR(total.item<double>(), 1, 1e-6);
  EXPECT_EQ(w.grad().scalar_type(), at::kBFloat16);
}

TEST_F(Accumulate, AnExceptionLeavesGradientsAsTheyWere) {
  weight.square().sum().backward();
  const at::Tensor before = weight.grad().clone();
  EXPECT_THROW(accumulate({1, 1, 1}, [&](std::size_t i) {
                 if (i == 2) throw std::runtime_error("mine");
                 return loss(i);
               }),
               std::runtime_error);
  EXPECT_TRUE(at::equal(weight.grad(), before));
}

TEST_F(Accumulate, MisuseSaysWhatIsExpected) {
  const auto f = [&](std::size_t i) { return loss(i); };
  EXPECT_EQ(error_of([&] { accumulate({}, f); }), "koila::accumulate: there are no micro-batches, and no mean of nothing");
  EXPECT_EQ(error_of([&] { accumulate({0, 0}, f); }), "koila::accumulate: the counts are all 0, and no mean of nothing");
  EXPECT_EQ(error_of([&] { accumulate({2, -1}, f); }), "koila::accumulate: the count of micro-batch 1 is -1; it is how many items its loss is the mean of");
  EXPECT_EQ(error_of([&] { accumulate({1}, [&](std::size_t) { return weight * 2; }); }), "koila::accumulate: the loss of micro-batch 0 has the shape [6, 4]; it has one element");
  EXPECT_EQ(error_of([&] { valid_labels({labels[0], at::Tensor()}); }), "koila::valid_labels: the labels of micro-batch 1 are undefined");
}

}  // namespace
}  // namespace koila
