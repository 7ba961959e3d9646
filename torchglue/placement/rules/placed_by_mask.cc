// What a mask places: (self, mask, source), the entries of the source in their order, one for each that the mask names. So models of images and text put what they have made of an image into the text.
// A row takes as many entries as its part of the mask names, and the rows before it have taken those that lie before: its own are known once the mask's values are.
#include "torchglue/placement/operands.h"
#include "torchglue/placement/rearranged.h"

namespace koila {
namespace {

Verdict masked_scatter(OpCall&);

const RegisterRules kTable{
    {"aten::masked_scatter", masked_scatter},
};

// The source has entries of its own for each row, as many for all: the mask has to name so many in each.
bool takes_its_own(const OpCall& call, const Ragged& taken, int64_t times) {
  const TensorSpec& source = call.tensor(2);
  const int64_t own = numel(source) / call.batch();
  for (int64_t row = 0; row <= call.batch(); ++row) {
    if (taken.first[row] * times != row * own) return false;
  }
  return source.placement.dim == 0 && source.placement.outer == 1 && !source.placement.ragged;
}

// The source is the same for all: a row is given the part that it takes, in whole entries of the source's first dimension, and nothing is left over.
bool takes_a_part(OpCall& call, const Ragged& taken, int64_t times) {
  const TensorSpec& source = call.tensor(2);
  if (source.dim() == 0 || source.sizes[0] == 0) return false;
  const int64_t one = numel(source) / source.sizes[0];
  Ragged parts;
  for (const int64_t first : taken.first) {
    if (one == 0 || first * times % one != 0) return false;
    parts.first.push_back(first * times / one);
  }
  return call.require({2}, Placement::shard(0, std::make_shared<const Ragged>(std::move(parts))));
}

Verdict masked_scatter(OpCall& call) {
  const TensorSpec &self = call.tensor(0), &mask = call.tensor(1), &source = call.tensor(2);
  const Placement p = self.placement.is_shard() ? self.placement : mask.placement;
  if (!p.is_shard() || p.dim != 0 || p.outer != 1 || p.ragged || mask.dim() != self.dim() || mask.sizes[0] != self.sizes[0]) return Verdict::kNo;
  if (!call.require({0}, p) || !call.require({1}, p) || source.placement.is_partial() || numel(mask) == 0) return Verdict::kNo;
  const auto taken = call.rows_under({1}, /*picked_dim=*/-1);  // they are no dimension of the result: a plan, which has no values, does not count on them
  if (!taken) return Verdict::kNo;
  const int64_t times = numel(self) / numel(mask);  // the mask may be broadcast
  const bool fits = source.placement.is_shard() ? takes_its_own(call, *taken, times) : takes_a_part(call, *taken, times);
  return fits ? local(call, p) : Verdict::kNo;
}

}  // namespace
}  // namespace koila
