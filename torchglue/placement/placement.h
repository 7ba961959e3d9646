// Placement: how a tensor of the full batch relates to the micro-batches. The words are DTensor's, over time instead of devices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace koila {

// The entries of a dimension that each row of the batch owns, where they are not as many for all.
struct Ragged {
  std::vector<int64_t> first;  // of each row, and the end of the last: B + 1 numbers
  std::vector<int64_t> order;  // the entries by row, where they do not lie so: row r owns those at order[first[r]] to order[first[r + 1] - 1]. Else empty

  // Where the entries of rows [begin, end) lie, in the order that they have there.
  std::vector<int64_t> places(int64_t begin, int64_t end) const;
};

// For a region whose batch has B rows, micro-batch rows [b, e):
//
//   Replicate                 every micro-batch sees the same full value.
//   Shard(dim, outer, inner)  dimension `dim` has outer * B * inner entries, row-major: seen as [outer, B, inner], the micro-batch owns
//                             [:, b:e, :]. `inner` is what was merged in behind the batch, `outer` what was merged in before it:
//                             [B*T, V] is Shard(0, 1, T); [T*B, V] is Shard(0, T, 1).
//   Shard(dim, ragged)        row r of the batch owns entries [first[r], first[r + 1]) of `dim`: what a mask over the rows has picked. With an `order` it owns entries
//                             anywhere: those that an index has picked from it.
//   Partial                   the full value is the sum of the micro-batches' values.
struct Placement {
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };

  Kind kind = Kind::kReplicate;
  int32_t dim = 0;     // Shard only; never negative
  int64_t outer = 1;   // Shard only
  int64_t inner = 1;   // Shard only
  std::shared_ptr<const Ragged> ragged;  // Shard only; null: every row has as many entries
  // Shard only, of an index: its numbers count entries of a dimension that has so many for each row of the batch, and a micro-batch counts from its own first row. 0: they do not.
  int64_t counts = 0;
  // In place of a number of entries. The index names each entry of a dimension once, and a micro-batch counts among those that it has; the tensor says how many rows each step of a packed
  // sequence has that is split as `ragged` says, see Note [Packed rows].
  static constexpr int64_t kRanks = -1, kSteps = -2;

  static Placement replicate() { return {}; }
  static Placement shard(int64_t dim, int64_t outer = 1, int64_t inner = 1) {
    return {Kind::kShard, static_cast<int32_t>(dim), outer, inner, nullptr, 0};
  }
  static Placement shard(int64_t dim, std::shared_ptr<const Ragged> ragged) { return {Kind::kShard, static_cast<int32_t>(dim), 1, 1, std::move(ragged), 0}; }
  static Placement partial() { return {Kind::kPartial, 0, 1, 1, nullptr, 0}; }

  bool is_replicate() const { return kind == Kind::kReplicate; }
  bool is_shard() const { return kind == Kind::kShard; }
  bool is_partial() const { return kind == Kind::kPartial; }

  // Entries of `dim` that rows [begin, end) of the batch stand for, and all `batch` rows.
  int64_t extent(int64_t begin, int64_t end) const { return ragged ? ragged->first[end] - ragged->first[begin] : outer * (end - begin) * inner; }
  int64_t extent(int64_t batch) const { return ragged ? ragged->first.back() : outer * batch * inner; }

  // The same split of another dimension (a transpose, a squeeze before it).
  Placement at(int64_t new_dim) const { return {kind, static_cast<int32_t>(new_dim), outer, inner, ragged, counts}; }
  // Whether entries along the dimensions belong to the same rows.
  bool splits_like(const Placement& other) const { return outer == other.outer && inner == other.inner && ragged == other.ragged; }

  friend bool operator==(const Placement&, const Placement&) = default;
};

std::string to_string(const Placement&);

}  // namespace koila
