// What the rules for views and rearrangements have in common: they are linear in their first argument, and move its entries about.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "torchglue/placement/operands.h"

namespace koila {

// What such a rule begins with: nothing to do for a Partial, which stays one; otherwise only the first argument may be split.
enum class MovedInput { kPartial, kShard, kRefuse };

inline MovedInput moved_input(const OpCall& call) {
  if (linear_in_first(call)) return MovedInput::kPartial;
  return call.tensor(0).placement.is_shard() && others_replicate(call, {0}) ? MovedInput::kShard : MovedInput::kRefuse;
}

// `f(self)` answers where the batch goes, or nullopt.
template <typename F>
Verdict rearranged(OpCall& call, F&& f) {
  switch (moved_input(call)) {
    case MovedInput::kPartial:
      return local(call, Placement::partial());
    case MovedInput::kRefuse:
      return Verdict::kNo;
    case MovedInput::kShard:
      break;
  }
  const std::optional<Placement> out = f(call.tensor(0));
  return out ? local(call, *out) : Verdict::kNo;
}

inline int64_t numel(const TensorSpec& t) {
  return std::accumulate(t.sizes.begin(), t.sizes.end(), int64_t{1}, std::multiplies<>());
}

// The placement once these dimensions, from the tensor's own, are gone; nothing when the batch's is among them.
inline std::optional<Placement> without_dims(const TensorSpec& self, const std::vector<int64_t>& dropped) {
  int64_t dim = self.placement.dim;
  for (int64_t d : dropped) {
    if (d == self.placement.dim) return std::nullopt;
    if (d < self.placement.dim) --dim;
  }
  return self.placement.at(dim);
}

// A rule for what works within the last N dimensions.
template <int N>
Verdict last_dims(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    if (self.placement.dim >= self.dim() - N) return std::nullopt;
    return self.placement;
  });
}

}  // namespace koila
