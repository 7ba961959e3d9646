#include "torchglue/proof/fingerprint.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "torchglue/proof/expected.h"

namespace koila {
namespace {

constexpr int64_t kBatch = 12;

// In micro-batches of `size` rows, which `part` gives.
template <class F>
Tally in_parts(const Placement& placement, int64_t size, F&& part) {
  Tally tally;
  for (int64_t begin = 0; begin < kBatch; begin += size) {
    const int64_t end = std::min(begin + size, kBatch);
    tally.add(part(begin, end), placement, kBatch, {begin, end});
  }
  return tally;
}

Fingerprint of(const at::Tensor& full, const Placement& placement) { return *fingerprint(full, placement, kBatch, {0, kBatch}, {0, kBatch}); }

TEST(Fingerprint, PartsAddUpToTheWholeHoweverItIsDivided) {
  const auto narrow = [](const at::Tensor& x, int64_t dim) { return [&x, dim](int64_t begin, int64_t end) { return x.narrow(dim, begin, end - begin); }; };
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kLong, at::kBool}) {
    const at::Tensor x = (at::randn({kBatch, 5, 3}, at::kFloat) * 3).to(dtype), y = x.transpose(0, 2);
    for (int64_t size : {1, 5, 12}) {
      EXPECT_LT(distance(of(x, Placement::shard(0)), in_parts(Placement::shard(0), size, narrow(x, 0)).sum), 1e-12) << dtype << size;
      EXPECT_LT(distance(of(y, Placement::shard(2)), in_parts(Placement::shard(2), size, narrow(y, 2)).sum), 1e-12) << dtype << size;
    }
  }
}

TEST(Fingerprint, OfSomeEntriesPartsAddUpAsWell) {
  const at::Tensor x = at::randn({kBatch, 40, 50}, at::kDouble);
  const auto some = [&](int64_t begin, int64_t end) { return *fingerprint(x.slice(0, begin, end), Placement::shard(0), kBatch, {begin, end}, {begin, end}, 100); };
  Fingerprint parts = some(0, 5);
  parts += some(5, 12);
  EXPECT_LT(distance(some(0, 12), parts), 1e-12);
  EXPECT_LE(parts.entries, 100 * kBatch);
  EXPECT_GE(parts.entries, 50 * kBatch);
}

TEST(Fingerprint, OfMergedDimensions) {
  const at::Tensor x = at::randn({2, kBatch, 3, 4}, at::kDouble);
  const Placement merged = Placement::shard(0, 2, 3);
  const auto parts = in_parts(merged, 5, [&](int64_t begin, int64_t end) { return x.narrow(1, begin, end - begin).reshape({-1, 4}); });
  EXPECT_LT(distance(of(x.view({-1, 4}), merged), parts.sum), 1e-12);
}

TEST(Fingerprint, OfRowsThatAMaskHasPicked) {
  const auto ragged = std::make_shared<Ragged>();
  for (int64_t row = 0; row <= kBatch; ++row) ragged->first.push_back(row * (row - 1) / 2);
  const Placement placement = Placement::shard(0, ragged);
  const at::Tensor x = at::randn({ragged->first.back(), 4}, at::kDouble);
  const auto parts = in_parts(placement, 5, [&](int64_t begin, int64_t end) { return x.slice(0, ragged->first[begin], ragged->first[end]); });
  EXPECT_LT(distance(of(x, placement), parts.sum), 1e-12);
}

TEST(Fingerprint, OneEntryThatIsAnotherShows) {
  const at::Tensor x = at::randn({kBatch, 1000}, at::kFloat);
  for (const auto& [row, column] : {std::pair<int64_t, int64_t>{0, 0}, {7, 999}, {11, 500}}) {
    at::Tensor y = x.clone();
    y[row][column] += 1;
    EXPECT_GT(distance(of(x, Placement::shard(0)), of(y, Placement::shard(0))), 10 * tolerance(rounding(at::kFloat, at::kCPU)));
  }
  EXPECT_GT(distance(of(x, Placement::shard(0)), of(x.flip({0}), Placement::shard(0))), 0.01) << "rows that changed places";
  EXPECT_GT(distance(of(x, Placement::shard(0)), of(x.relu(), Placement::shard(0))), 0.01);
}

TEST(Fingerprint, RoundingDoesNot) {
  const at::Tensor x = at::randn({kBatch, 1000}, at::kDouble);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    EXPECT_LT(distance(of(x, Placement::shard(0)), of(x.to(dtype), Placement::shard(0))), tolerance(rounding(dtype, at::kCPU))) << dtype;
  }
  const at::Tensor a = at::randn({64, 300}, at::kFloat), b = at::randn({300, 80}, at::kFloat);
  EXPECT_LT(distance(of(a.mm(b), Placement::replicate()), of(a.to(at::kDouble).mm(b.to(at::kDouble)), Placement::replicate())), tolerance(rounding(at::kFloat, at::kCPU)));
}

TEST(Fingerprint, SumsOverRows) {
  const at::Tensor x = at::randn({kBatch, 7}, at::kDouble);
  const Placement partial = Placement::partial();
  const Tally parts = in_parts(partial, 5, [&](int64_t begin, int64_t end) { return x.slice(0, begin, end).sum(0); });
  EXPECT_LT(distance(of(x.sum(0), partial).of_sum(), parts.total(partial)), 1e-12);
  const Tally fewer = in_parts(partial, 5, [&](int64_t begin, int64_t end) { return x.slice(0, begin, std::min<int64_t>(end, 11)).sum(0); });
  EXPECT_GT(distance(of(x.sum(0), partial).of_sum(), fewer.total(partial)), 1e-3);
}

TEST(Fingerprint, WhatIsNotFiniteEqualsItself) {
  at::Tensor x = at::randn({kBatch, 7}, at::kFloat);
  x[3][1] = std::numeric_limits<float>::quiet_NaN();
  x[4][2] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(distance(of(x, Placement::shard(0)), of(x.clone(), Placement::shard(0))), 0);
  at::Tensor y = x.clone();
  y[4][2] = -y[4][2];
  EXPECT_EQ(distance(of(x, Placement::shard(0)), of(y, Placement::shard(0))), std::numeric_limits<double>::infinity());
}

TEST(Fingerprint, LazyConjugatesAndNegatives) {
  const at::Tensor z = at::randn({kBatch, 4}, at::kComplexDouble);
  EXPECT_LT(distance(of(z.conj(), Placement::shard(0)), of(z.conj().resolve_conj(), Placement::shard(0))), 1e-12);
  EXPECT_LT(distance(of(at::imag(z.conj()), Placement::shard(0)), of(at::imag(z.conj()).resolve_neg().clone(), Placement::shard(0))), 1e-12);
}

TEST(Fingerprint, ThereIsNoneOfWhatIsNotDense) { EXPECT_FALSE(fingerprint(at::eye(4).to_sparse(), Placement::replicate(), 4, {0, 4}, {0, 4})); }

TEST(Tally, RowsThatComeAgainAreCountedOnce) {
  const at::Tensor x = at::randn({kBatch, 3}, at::kDouble);
  const Placement placement = Placement::shard(0);
  Tally tally;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 8}, {0, 4}, {4, 8}, {4, 6}, {6, 8}, {8, 12}}) tally.add(x.slice(0, begin, end), placement, kBatch, {begin, end});
  EXPECT_TRUE(tally.whole(kBatch));
  EXPECT_LT(distance(of(x, placement), tally.sum), 1e-12);
}

TEST(Tally, RowsThatAreMissingLeaveItIncomplete) {
  const at::Tensor x = at::randn({kBatch, 3}, at::kDouble);
  Tally tally;
  tally.add(x.slice(0, 0, 4), Placement::shard(0), kBatch, {0, 4});
  tally.add(x.slice(0, 8, 12), Placement::shard(0), kBatch, {8, 12});
  EXPECT_FALSE(tally.whole(kBatch));
}

TEST(Witness, ThreeRowsOfTheBatch) {
  const at::Tensor x = at::randn({kBatch, 3}, at::kDouble);
  const auto witness = bear_witness(x, Placement::shard(0), kBatch);
  ASSERT_TRUE(witness);
  ASSERT_EQ(witness->rows.size(), 3U);
  EXPECT_EQ(witness->rows[1].first, kBatch / 2);
  EXPECT_EQ(distance(witness->rows[1].second, *fingerprint(x.slice(0, 5, 9), Placement::shard(0), kBatch, {5, 9}, {6, 7})), 0);
  EXPECT_FALSE(bear_witness(x, Placement::shard(1), kBatch)) << "the batch is not there";
}

}  // namespace
}  // namespace koila
