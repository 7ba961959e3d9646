// Placement: how a tensor of the full batch relates to the micro-batches. The words are DTensor's, over time instead of devices.
#pragma once

#include <cstdint>
#include <string>

namespace koila {

// For a region whose batch has B rows, micro-batch rows [b, e):
//
//   Replicate                 every micro-batch sees the same full value.
//   Shard(dim, outer, inner)  dimension `dim` has outer * B * inner entries, row-major: seen as [outer, B, inner], the micro-batch owns
//                             [:, b:e, :]. `inner` is what was merged in behind the batch, `outer` what was merged in before it:
//                             [B*T, V] is Shard(0, 1, T); [T*B, V] is Shard(0, T, 1).
//   Partial                   the full value is the sum of the micro-batches' values.
struct Placement {
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };

  Kind kind = Kind::kReplicate;
  int32_t dim = 0;     // Shard only; never negative
  int64_t outer = 1;   // Shard only
  int64_t inner = 1;   // Shard only

  static Placement replicate() { return {}; }
  static Placement shard(int64_t dim, int64_t outer = 1, int64_t inner = 1) {
    return {Kind::kShard, static_cast<int32_t>(dim), outer, inner};
  }
  static Placement partial() { return {Kind::kPartial, 0, 1, 1}; }

  bool is_replicate() const { return kind == Kind::kReplicate; }
  bool is_shard() const { return kind == Kind::kShard; }
  bool is_partial() const { return kind == Kind::kPartial; }

  // Entries of `dim` that `rows` rows of the batch stand for.
  int64_t extent(int64_t rows) const { return outer * rows * inner; }

  // The same split of another dimension (a transpose, a squeeze before it).
  Placement at(int64_t new_dim) const { return shard(new_dim, outer, inner); }

  friend bool operator==(const Placement&, const Placement&) = default;
};

std::string to_string(const Placement&);

}  // namespace koila
