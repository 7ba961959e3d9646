// For "did you mean".
#ifndef KOILA_RUNTIME_EDIT_DISTANCE_H_
#define KOILA_RUNTIME_EDIT_DISTANCE_H_

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

namespace koila {

// How many letters must be put in, left out or replaced to make one of the other (Levenshtein).
inline int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace koila

#endif  // KOILA_RUNTIME_EDIT_DISTANCE_H_
