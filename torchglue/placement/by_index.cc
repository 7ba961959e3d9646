#include "torchglue/placement/by_index.h"

#include <utility>
#include <vector>

#include "torchglue/placement/packed_rows.h"
#include "torchglue/placement/parts_of_rows.h"

namespace koila {

std::optional<Placement> rows_by_index(OpCall& call, ArgRef index, int64_t dim, const Placement& picked_from) {
  const TensorSpec& t = spec(call, index);
  if (!t.placement.is_replicate() || picked_from.outer != 1 || picked_from.ragged || dim >= t.dim()) return std::nullopt;
  auto rows = call.rows_of(index, dim, picked_from.inner);
  if (!rows) return std::nullopt;
  // As many from every row, in their order: a split like any other.
  const int64_t each = entries_of_each_row(*rows);
  const Placement picked = each > 0 ? Placement::shard(dim, 1, each) : Placement::shard(dim, std::move(rows));
  Placement counted = picked;
  counted.counts = picked_from.inner;
  return call.require(index, counted) ? std::optional(picked) : std::nullopt;
}

Placement one_for_each_row(OpCall& call, std::vector<int64_t> places, int64_t dim) {
  Ragged rows = rows_at(std::move(places));
  return rows.order.empty() ? Placement::shard(dim) : Placement::shard(dim, call.remember(std::move(rows)));
}

std::optional<Placement> rows_in_order(OpCall& call, ArgRef index, const Placement& picked_from) {
  const TensorSpec& t = spec(call, index);
  if (!t.placement.is_replicate() || t.dim() != 1 || t.sizes[0] != call.batch() || (!picked_from.ragged && !call.sorts(index))) return std::nullopt;
  const auto before = places_of_rows(picked_from, call.batch());
  const auto numbers = before ? call.numbers_of(index) : std::nullopt;
  if (!numbers || !is_order(*numbers)) return std::nullopt;
  std::vector<int64_t> place_of(numbers->size()), places;
  for (size_t i = 0; i < numbers->size(); ++i) place_of[static_cast<size_t>((*numbers)[i])] = static_cast<int64_t>(i);
  for (const int64_t place : *before) places.push_back(place_of[static_cast<size_t>(place)]);
  const Placement picked = one_for_each_row(call, std::move(places), 0);
  Placement ranked = picked;
  ranked.counts = Placement::kRanks;
  return call.require(index, ranked) ? std::optional(picked) : std::nullopt;
}

bool adds_up(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  if (self.dtype == c10::ScalarType::Half || self.dtype == c10::ScalarType::BFloat16) return false;
  if (self.placement.is_partial()) return true;
  if (!self.placement.is_replicate() || !can_be_scaled(self.dtype)) return false;
  call.weight_by_rows(0);
  return true;
}

}  // namespace koila
