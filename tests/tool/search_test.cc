#include "tool/search.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

namespace koila::tool {
namespace {

// Counts what is tried, each once.
SearchResult find(SearchRange range, std::int64_t limit, int* tries = nullptr) {
  std::set<std::int64_t> tried;
  const SearchResult result = find_largest(range, [&](std::int64_t n) {
    EXPECT_TRUE(tried.insert(n).second) << n << " twice";
    EXPECT_TRUE(n >= range.least && n <= range.most) << n;
    return n <= limit;
  });
  if (tries != nullptr) *tries = static_cast<int>(tried.size());
  return result;
}

TEST(Search, ToTheRow) {
  for (std::int64_t limit = 1; limit < 300; ++limit) {
    for (const std::int64_t start : {1, 32, 300}) {
      const SearchResult result = find({1, 300, start, 0}, limit);
      ASSERT_EQ(result.fits, limit) << "from " << start;
      ASSERT_EQ(result.does_not, limit + 1) << "from " << start;
    }
  }
}

TEST(Search, WithinAShare) {
  int exact = 0, near = 0;
  find({1, 1 << 20, 32, 0}, 70'000, &exact);
  const SearchResult result = find({1, 1 << 20, 32, 0.1}, 70'000, &near);
  EXPECT_LE(result.fits, 70'000);
  EXPECT_GT(result.does_not, 70'000);
  EXPECT_LE(static_cast<double>(result.does_not - result.fits), 0.1 * static_cast<double>(result.fits));
  EXPECT_LT(near, exact);
}

TEST(Search, NothingOrEverything) {
  EXPECT_EQ(find({4, 64, 32, 0}, 3).fits, 0);
  EXPECT_EQ(find({4, 64, 32, 0}, 3).does_not, 4);
  EXPECT_EQ(find({1, 100, 32, 0}, 1000).fits, 100);
  EXPECT_EQ(find({1, 100, 32, 0}, 1000).does_not, 0);
  EXPECT_EQ(find({1, 100, 900, 0}, 7).fits, 7) << "begun within the range";
}

TEST(Search, EndsWhenATrialThrows) {
  EXPECT_THROW(find_largest({1, 8, 1, 0}, [](std::int64_t) -> bool { throw std::runtime_error("stop"); }), std::runtime_error);
}

}  // namespace
}  // namespace koila::tool
