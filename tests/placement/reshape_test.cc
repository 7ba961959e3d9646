#include "torchglue/placement/reshape.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <set>

namespace koila {
namespace {

using Sizes = std::vector<int64_t>;

int64_t product(const Sizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }

// All ways to write n as `count` factors, 1 among them.
void for_each_shape(int64_t n, int count, Sizes& prefix, const std::function<void(const Sizes&)>& f) {
  if (count == 1) {
    prefix.push_back(n);
    f(prefix);
    prefix.pop_back();
    return;
  }
  for (int64_t factor = 1; factor <= n; ++factor) {
    if (n % factor != 0) continue;
    prefix.push_back(factor);
    for_each_shape(n / factor, count - 1, prefix, f);
    prefix.pop_back();
  }
}

// The row-major places of the entries that row `row` owns.
std::set<int64_t> entries_of_row(const Sizes& sizes, const Placement& p, int64_t batch, int64_t row) {
  int64_t before = p.outer, after = p.inner;
  for (int64_t d = 0; d < p.dim; ++d) before *= sizes[d];
  for (size_t d = p.dim + 1; d < sizes.size(); ++d) after *= sizes[d];
  std::set<int64_t> entries;
  for (int64_t i = 0; i < before; ++i) {
    for (int64_t j = 0; j < after; ++j) entries.insert((i * batch + row) * after + j);
  }
  return entries;
}

// The placement of `out` under which row `row` owns `entries`, found by trying all; nullopt when there is none.
std::optional<Placement> by_trial(const Sizes& out, int64_t batch, const std::vector<std::set<int64_t>>& rows) {
  for (size_t d = 0; d < out.size(); ++d) {
    for (int64_t outer = 1; outer * batch <= out[d]; ++outer) {
      if (out[d] % (outer * batch) != 0) continue;
      const Placement p = Placement::shard(static_cast<int64_t>(d), outer, out[d] / (outer * batch));
      bool fits = true;
      for (int64_t row = 0; row < batch && fits; ++row) fits = entries_of_row(out, p, batch, row) == rows[row];
      if (fits) return p;
    }
  }
  return std::nullopt;
}

TEST(Reshape, AgreesWithTrialOverAllShapes) {
  int found = 0, refused = 0;
  for (int64_t batch : {2, 3, 4}) {
    for (const Sizes& factors : {Sizes{1, 1, 1, 1}, Sizes{2, 1, 3, 1}, Sizes{1, 2, 1, 2}, Sizes{2, 2, 1, 3}, Sizes{3, 1, 2, 2}, Sizes{4, 3, 2, 1}}) {
      const Sizes sizes = {factors[0], factors[1] * batch * factors[2], factors[3]};
      const Placement p = Placement::shard(1, factors[1], factors[2]);
      std::vector<std::set<int64_t>> rows;
      for (int64_t row = 0; row < batch; ++row) rows.push_back(entries_of_row(sizes, p, batch, row));
      for (int dims = 1; dims <= 4; ++dims) {
        Sizes prefix;
        for_each_shape(product(sizes), dims, prefix, [&](const Sizes& out) {
          const auto expected = by_trial(out, batch, rows);
          const auto actual = reshape_placement(sizes, p, batch, out);
          ASSERT_EQ(actual.has_value(), expected.has_value()) << ::testing::PrintToString(sizes) << to_string(p) << " -> " << ::testing::PrintToString(out);
          if (actual) {
            ASSERT_EQ(*actual, *expected) << ::testing::PrintToString(out);
          }
          ++(actual ? found : refused);
        });
      }
    }
  }
  EXPECT_GT(found, 900);
  EXPECT_GT(refused, 1000);
}

TEST(Reshape, MergesAndSplitsTheBatch) {
  // [B, T, C] -> [B*T, C] -> [B, T, C]
  EXPECT_EQ(reshape_placement(Sizes{5, 3, 4}, Placement::shard(0), 5, Sizes{15, 4}), Placement::shard(0, 1, 3));
  EXPECT_EQ(reshape_placement(Sizes{15, 4}, Placement::shard(0, 1, 3), 5, Sizes{5, 3, 4}), Placement::shard(0));
  // [T, B, H] -> [T*B, H] -> [T, B, H]
  EXPECT_EQ(reshape_placement(Sizes{3, 5, 4}, Placement::shard(1), 5, Sizes{15, 4}), Placement::shard(0, 3, 1));
  EXPECT_EQ(reshape_placement(Sizes{15, 4}, Placement::shard(0, 3, 1), 5, Sizes{3, 5, 4}), Placement::shard(1));
  // [T, B, N*d] -> [T, B*N, d]
  EXPECT_EQ(reshape_placement(Sizes{3, 5, 8}, Placement::shard(1), 5, Sizes{3, 10, 4}), Placement::shard(1, 1, 2));
}

TEST(Reshape, ALiteralEqualToTheBatchMeansNothing) {
  // [T=5, B=5]: the batch is the second 5.
  EXPECT_EQ(reshape_placement(Sizes{5, 5}, Placement::shard(1), 5, Sizes{5, 5, 1}), Placement::shard(1));
  EXPECT_EQ(reshape_placement(Sizes{15, 5}, Placement::shard(0, 1, 3), 5, Sizes{3, 25}), std::nullopt);
}

TEST(Reshape, RefusesACutThroughTheBatch) {
  EXPECT_EQ(reshape_placement(Sizes{6, 4}, Placement::shard(0), 6, Sizes{3, 8}), std::nullopt);
  EXPECT_EQ(reshape_placement(Sizes{6, 4}, Placement::shard(0), 6, Sizes{2, 3, 4}), std::nullopt);
}

TEST(Reshape, RefusesWhatHasNoEntries) {
  EXPECT_EQ(reshape_placement(Sizes{5, 0}, Placement::shard(0), 5, Sizes{5, 0, 2}), std::nullopt);
}

TEST(Reshape, RefusesAPlacementThatDoesNotFit) {
  EXPECT_EQ(reshape_placement(Sizes{7, 4}, Placement::shard(0), 5, Sizes{28}), std::nullopt);
  EXPECT_EQ(reshape_placement(Sizes{5, 4}, Placement::shard(2), 5, Sizes{20}), std::nullopt);
  EXPECT_EQ(reshape_placement(Sizes{5, 4}, Placement::replicate(), 5, Sizes{20}), std::nullopt);
}

TEST(Reshape, ResolvesTheMissingSize) {
  EXPECT_EQ(resolve_size(Sizes{-1, 4}, 20), (Sizes{5, 4}));
  EXPECT_EQ(resolve_size(Sizes{5, 4}, 20), (Sizes{5, 4}));
  EXPECT_EQ(resolve_size(Sizes{-1, 3}, 20), std::nullopt);
  EXPECT_EQ(resolve_size(Sizes{-1, -1}, 20), std::nullopt);
  EXPECT_EQ(resolve_size(Sizes{-1, 0}, 0), std::nullopt);
  EXPECT_EQ(resolve_size(Sizes{5, 5}, 20), std::nullopt);
}

}  // namespace
}  // namespace koila
