// The largest number for which something holds, where it holds for all smaller ones too. Pure.
#ifndef KOILA_TOOL_SEARCH_H_
#define KOILA_TOOL_SEARCH_H_

#include <cstdint>
#include <functional>

namespace koila::tool {

struct SearchRange {
  std::int64_t least = 1;
  std::int64_t most = 1;
  std::int64_t start = 1;  // tried first, between the two
  double within = 0;       // how far apart, as a share of the largest that fits, the bounds may stay; they may always stay 1 apart
};

struct SearchResult {
  std::int64_t fits = 0;      // the largest that was seen to; 0: none
  std::int64_t does_not = 0;  // the smallest that was seen not to; 0: none
};

// Doubles, or halves, from `start` on until the bounds are known, then halves what lies between. `try_one` may throw to end it.
SearchResult find_largest(const SearchRange& range, const std::function<bool(std::int64_t)>& try_one);

}  // namespace koila::tool

#endif  // KOILA_TOOL_SEARCH_H_
