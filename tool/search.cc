#include "tool/search.h"

#include <algorithm>

namespace koila::tool {

SearchResult find_largest(const SearchRange& range, const std::function<bool(std::int64_t)>& try_one) {
  SearchResult result;
  const auto look = [&](std::int64_t n) { (try_one(n) ? result.fits : result.does_not) = n; };
  look(std::clamp(range.start, range.least, range.most));
  while (result.fits == 0 && result.does_not > range.least) look(std::max(range.least, result.does_not / 2));
  while (result.does_not == 0 && result.fits < range.most) look(result.fits > range.most / 2 ? range.most : result.fits * 2);
  if (result.fits == 0 || result.does_not == 0) return result;
  const auto apart = [&] { return result.does_not - result.fits; };
  while (apart() > std::max<std::int64_t>(1, static_cast<std::int64_t>(range.within * static_cast<double>(result.fits))))
    look(result.fits + apart() / 2);
  return result;
}

}  // namespace koila::tool
