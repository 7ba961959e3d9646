#include "torchglue/proof/statistics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "torchglue/statistics/moments.h"

namespace koila {
namespace {

struct Batch {
  explicit Batch(double far = 0) : x(at::randn({12, 5, 7}, at::kDouble) * 3 + far) {}

  // Shows the batch in parts.
  void show(RowObserver& observer) const {
    for (int64_t begin = 0; begin < 12; begin += 5) observer.add(x.slice(0, begin, std::min<int64_t>(begin + 5, 12)));
  }
  at::Tensor x;
};

TEST(StatisticsWitness, AgreesWithMoments) {
  for (double far : {0.0, 1e4}) {
    for (auto type : {at::kDouble, at::kFloat}) {
      Batch batch(far);
      batch.x = batch.x.to(type);
      Moments moments({0, 2});
      StatisticsWitness witness(moments, {0, 2}, false, true);
      batch.show(witness);
      EXPECT_EQ(witness.against(moments.mean(), moments.biased_variance()), "") << far << type;
    }
  }
}

TEST(StatisticsWitness, AVarianceThatIsOffShows) {
  const Batch batch;
  Moments moments({0, 2});
  StatisticsWitness witness(moments, {0, 2}, false, true);
  batch.show(witness);
  EXPECT_NE(witness.against(moments.mean(), moments.biased_variance() * 1.001), "");
  EXPECT_NE(witness.against(moments.mean() + 0.001, moments.biased_variance()), "");
}

TEST(StatisticsWitness, RunningStatisticsAreMovedByTheUnbiasedVariance) {
  const Batch batch;
  for (bool biased : {false, true}) {
    for (double momentum : {0.1, 0.7}) {
      Moments moments({0, 2});
      StatisticsWitness witness(moments, {0, 2}, false, true);
      batch.show(witness);
      at::Tensor mean = at::randn({5}, at::kDouble), var = at::rand({5}, at::kDouble);
      witness.before(mean, var);
      const at::Tensor found = batch.x.var({0, 2}, /*unbiased=*/!biased);
      mean = mean * 0.9 + batch.x.mean({0, 2}) * 0.1;
      var = var * 0.9 + found * 0.1;
      EXPECT_EQ(witness.after(mean, var, momentum).empty(), !biased && momentum == 0.1) << biased << momentum;
    }
  }
}

TEST(StatisticsWitness, OfEachRowByItself) {
  const Batch batch;
  Moments nobody({0, 2});
  StatisticsWitness witness(nobody, {}, true, true);
  batch.show(witness);
  const at::Tensor zeros = at::zeros({5}, at::kDouble), mean = batch.x.mean({0, 2}), var = batch.x.var({2}, true).mean(0);
  witness.before(zeros, zeros);
  EXPECT_EQ(witness.after(mean * 0.1, var * 0.1, 0.1), "");
  EXPECT_NE(witness.after(mean * 0.1, batch.x.var({0, 2}, true) * 0.1, 0.1), "");
}

}  // namespace
}  // namespace koila
