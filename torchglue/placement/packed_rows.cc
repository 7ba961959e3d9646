#include "torchglue/placement/packed_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace koila {

namespace {

bool is_identity(const std::vector<int64_t>& places) {
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

bool falls_from(const std::vector<int64_t>& numbers, int64_t most) {
  return !numbers.empty() && numbers.front() == most && numbers.back() > 0 && std::is_sorted(numbers.rbegin(), numbers.rend());
}

}  // namespace

std::vector<int64_t> rows_of_steps(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> rows(lengths.empty() || lengths[0] < 0 ? 0 : static_cast<size_t>(lengths[0]), 0);
  for (const int64_t length : lengths) {
    for (int64_t t = 0; t < std::min(length, static_cast<int64_t>(rows.size())); ++t) ++rows[static_cast<size_t>(t)];
  }
  return rows;
}

std::optional<Ragged> packed_rows(const std::vector<int64_t>& steps, const std::vector<int64_t>& places) {
  if (!falls_from(steps, static_cast<int64_t>(places.size())) || !is_order(places)) return std::nullopt;
  const std::vector<int64_t> lengths = steps_of_rows(steps);
  std::vector<int64_t> begins(steps.size(), 0);
  std::partial_sum(steps.begin(), steps.end() - 1, begins.begin() + 1);
  Ragged rows{{0}, {}};
  for (const int64_t place : places) {
    const int64_t length = lengths[static_cast<size_t>(place)];
    for (int64_t t = 0; t < length; ++t) rows.order.push_back(begins[static_cast<size_t>(t)] + place);
    rows.first.push_back(rows.first.back() + length);
  }
  if (is_identity(rows.order)) rows.order.clear();
  return rows;
}

std::vector<int64_t> places_in_order(int64_t rows) {
  std::vector<int64_t> places(static_cast<size_t>(rows));
  std::iota(places.begin(), places.end(), 0);
  return places;
}

std::vector<int64_t> places_in_steps(const Ragged& data) {
  std::vector<int64_t> places;
  for (size_t r = 0; r + 1 < data.first.size(); ++r) {
    const auto first = static_cast<size_t>(data.first[r]);
    places.push_back(data.first[r] == data.first[r + 1] ? -1 : data.order.empty() ? data.first[r] : data.order[first]);
  }
  return places;
}

std::vector<int64_t> steps_of(const Ragged& data, int64_t begin, int64_t end) {
  std::vector<int64_t> lengths;
  for (int64_t r = begin; r < end; ++r) lengths.push_back(data.first[static_cast<size_t>(r) + 1] - data.first[static_cast<size_t>(r)]);
  std::sort(lengths.rbegin(), lengths.rend());
  return rows_of_steps(lengths);
}

Ragged rows_at(std::vector<int64_t> places) {
  Ragged rows;
  rows.first.resize(places.size() + 1);
  std::iota(rows.first.begin(), rows.first.end(), 0);
  if (!is_identity(places)) rows.order = std::move(places);
  return rows;
}

std::optional<std::vector<int64_t>> places_of_rows(const Placement& p, int64_t batch) {
  if (!p.ragged) return p.outer == 1 && p.inner == 1 ? std::optional(places_in_order(batch)) : std::nullopt;
  for (int64_t r = 0; r <= batch; ++r) {
    if (p.ragged->first[static_cast<size_t>(r)] != r) return std::nullopt;
  }
  return p.ragged->order.empty() ? places_in_order(batch) : p.ragged->order;
}

bool is_order(const std::vector<int64_t>& numbers) {
  std::vector<char> seen(numbers.size(), 0);
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n >= 0 && n < static_cast<int64_t>(numbers.size()) && std::exchange(seen[static_cast<size_t>(n)], 1) == 0; });
}

}  // namespace koila
