#include "torchglue/placement/parts_of_rows.h"

#include <algorithm>
#include <utility>

namespace koila {

namespace {

// Entries that lie in the order of the rows need none of their own.
Ragged in_order(Ragged entries) {
  if (std::is_sorted(entries.order.begin(), entries.order.end())) entries.order.clear();
  return entries;
}

int64_t rows_in(const Ragged& entries) { return static_cast<int64_t>(entries.first.size()) - 1; }

}  // namespace

Ragged entries_of_rows(const Placement& p, int64_t batch) {
  if (p.ragged) return *p.ragged;
  Ragged entries{{0}, {}};
  for (int64_t r = 0; r < batch; ++r) entries.first.push_back((r + 1) * p.outer * p.inner);
  if (p.outer == 1) return entries;
  for (int64_t r = 0; r < batch; ++r) {
    for (int64_t o = 0; o < p.outer; ++o) {
      for (int64_t i = 0; i < p.inner; ++i) entries.order.push_back((o * batch + r) * p.inner + i);
    }
  }
  return entries;
}

Ragged entries_within(const Ragged& entries, int64_t begin, int64_t end) {
  Ragged part{{0}, {}};
  if (entries.order.empty()) {
    for (size_t r = 1; r < entries.first.size(); ++r) part.first.push_back(std::clamp(entries.first[r], begin, end) - begin);
    return part;
  }
  for (int64_t r = 0; r < rows_in(entries); ++r) {
    for (const int64_t place : entries.places(r, r + 1)) {
      if (place >= begin && place < end) part.order.push_back(place - begin);
    }
    part.first.push_back(static_cast<int64_t>(part.order.size()));
  }
  return in_order(std::move(part));
}

Ragged entries_joined(const std::vector<Ragged>& parts) {
  Ragged joined{{0}, {}};
  for (int64_t r = 0; r < rows_in(parts[0]); ++r) {
    int64_t before = 0;
    for (const Ragged& part : parts) {
      for (const int64_t place : part.places(r, r + 1)) joined.order.push_back(before + place);
      before += part.first.back();
    }
    joined.first.push_back(static_cast<int64_t>(joined.order.size()));
  }
  return in_order(std::move(joined));
}

int64_t entries_before(const Ragged& entries, int64_t begin, int64_t end, int64_t place) {
  const int64_t from = entries.first[begin], to = entries.first[end];
  if (entries.order.empty()) return std::clamp(place, from, to) - from;
  return std::count_if(entries.order.begin() + from, entries.order.begin() + to, [&](int64_t at) { return at < place; });
}

std::vector<int64_t> entries_of_parts(const Ragged& entries, int64_t begin, int64_t end, const std::vector<int64_t>& parts) {
  std::vector<int64_t> own;
  int64_t place = 0, before = 0;
  for (const int64_t part : parts) {
    place += part;
    const int64_t until = entries_before(entries, begin, end, place);
    own.push_back(until - std::exchange(before, until));
  }
  return own;
}

int64_t entries_of_each_row(const Ragged& entries) {
  const int64_t each = entries.first[1];
  bool even = entries.order.empty();
  for (size_t r = 0; even && r + 1 < entries.first.size(); ++r) even = entries.first[r + 1] - entries.first[r] == each;
  return even ? each : 0;
}

Placement split_by_entries(const OpCall& call, Ragged entries, int64_t dim) {
  const int64_t each = entries_of_each_row(entries);
  return each > 0 ? Placement::shard(dim, 1, each) : Placement::shard(dim, call.remember(std::move(entries)));
}

}  // namespace koila
