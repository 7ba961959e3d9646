// Tensors put together from parts: of several tensors, or of one repeated or padded. All are linear: Partial stays Partial.
#include <algorithm>

#include "torchglue/placement/operands.h"
#include "torchglue/placement/parts_of_rows.h"
#include "torchglue/placement/rearranged.h"
#include "torchglue/placement/reshape.h"

namespace koila {
namespace {

Verdict cat(OpCall&);          // (tensors, dim)
Verdict stack(OpCall&);        // (tensors, dim)
Verdict repeat(OpCall&);       // (self, repeats)
Verdict repeat_each(OpCall&);  // (self, repeats, dim)
Verdict pad(OpCall&);          // (self, pad, ...)
Verdict channel_shuffle(OpCall&);

const RegisterRules kTable{
    {"aten::cat", cat},
    {"aten::channel_shuffle", channel_shuffle},
    {"aten::concat", cat},
    {"aten::constant_pad_nd", pad},
    {"aten::pad", pad},
    {"aten::pixel_shuffle", last_dims<3>},
    {"aten::pixel_unshuffle", last_dims<3>},
    {"aten::reflection_pad1d", last_dims<1>},
    {"aten::reflection_pad2d", last_dims<2>},
    {"aten::reflection_pad3d", last_dims<3>},
    {"aten::repeat", repeat},
    {"aten::repeat_interleave.self_int", repeat_each},
    {"aten::replication_pad1d", last_dims<1>},
    {"aten::replication_pad2d", last_dims<2>},
    {"aten::replication_pad3d", last_dims<3>},
    {"aten::stack", stack},
    {"aten::tile", repeat},
};

const RegisterRagged kRagged{cat};

// cat ignores 1-dim tensors without entries, whatever the shape of the others.
bool ignored_by_cat(const TensorSpec& t) { return t.dim() == 1 && t.sizes[0] == 0; }

Verdict cat(OpCall& call) {
  ArgRefs parts;
  for (ArgRef ref : defined_operands(call, {0})) if (!ignored_by_cat(spec(call, ref))) parts.push_back(ref);
  if (parts.empty()) return Verdict::kNo;
  const bool all_partial = std::all_of(parts.begin(), parts.end(), [&](ArgRef r) { return spec(call, r).placement.is_partial(); });
  if (all_partial) return local(call, Placement::partial());
  if (any_partial(call, parts)) return Verdict::kNo;
  auto dim = wrap_dim(call.integer(1, 0), spec(call, parts[0]).dim());
  if (!dim) return Verdict::kNo;
  const TensorSpec& first = *call.first_split();
  const Placement p = first.placement;
  if (*dim != p.dim) {
    for (ArgRef part : parts) if (!call.require(part, p)) return Verdict::kNo;
    return local(call, p);
  }
  // One block of the batch after the other: see Note [Outer factors are whole batches].
  int64_t outer = 0;
  bool in_blocks = true;
  for (ArgRef part : parts) {
    const Placement& each = spec(call, part).placement;
    if (!each.is_shard() || each.dim != p.dim || each.counts != 0) return Verdict::kNo;
    in_blocks &= !each.ragged && each.inner == p.inner;
    outer += each.outer;
  }
  if (in_blocks) return local(call, Placement::shard(p.dim, outer, p.inner));
  std::vector<Ragged> entries;
  for (ArgRef part : parts) entries.push_back(entries_of_rows(spec(call, part).placement, call.batch()));
  return local(call, split_by_entries(call, entries_joined(entries), p.dim));  // see Note [Parts of the batch]
}

Verdict stack(OpCall& call) {
  const ArgRefs parts = defined_operands(call, {0});
  const bool all_partial = std::all_of(parts.begin(), parts.end(), [&](ArgRef r) { return spec(call, r).placement.is_partial(); });
  if (all_partial) return local(call, Placement::partial());
  if (any_partial(call, parts)) return Verdict::kNo;
  const TensorSpec& first = *call.first_split();
  auto dim = wrap_dim(call.integer(1, 0), first.dim() + 1);
  if (!dim) return Verdict::kNo;
  const Placement p = first.placement;
  for (ArgRef part : parts) if (!call.require(part, p)) return Verdict::kNo;
  return local(call, p.at(p.dim + (*dim <= p.dim ? 1 : 0)));
}

Verdict repeat(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto repeats = call.integers(1);
    if (!repeats) return std::nullopt;
    const int64_t new_dims = static_cast<int64_t>(repeats->size()) - self.dim();
    const int64_t dim = self.placement.dim + new_dims;
    if (new_dims < 0) {  // tile: missing repeats are 1, at the front
      if (call.schema().name() != "aten::tile") return std::nullopt;
      const int64_t times = dim < 0 ? 1 : (*repeats)[dim];
      return times > 0 ? std::optional(Placement::shard(self.placement.dim, self.placement.outer * times, self.placement.inner)) : std::nullopt;
    }
    if ((*repeats)[dim] <= 0) return std::nullopt;
    return Placement::shard(dim, self.placement.outer * (*repeats)[dim], self.placement.inner);
  });
}

Verdict repeat_each(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    const int64_t times = call.integer(1);
    if (times <= 0) return std::nullopt;
    Placement p = self.placement;
    int64_t dim = p.dim;
    if (call.none(2)) {  // flattened first
      auto flat = reshape_placement(self.sizes, p, call.batch(), {numel(self)});
      if (!flat) return std::nullopt;
      p = *flat;
      dim = 0;
    } else {
      auto wrapped = wrap_dim(call.integer(2), self.dim());
      if (!wrapped) return std::nullopt;
      dim = *wrapped;
    }
    if (dim != p.dim) return p;
    p.inner *= times;
    if (!call.none(3)) call.scale_literal(3, -1, p.outer * p.inner);
    return p;
  });
}

Verdict pad(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  // A constant is not linear unless it is zero.
  const int value = call.find("value");
  if (self.placement.is_partial() && call.number(value, 0) != 0) return Verdict::kNo;
  return rearranged(call, [&](const TensorSpec& t) -> std::optional<Placement> {
    auto widths = call.integers(1);
    if (!widths) return std::nullopt;
    const size_t from_right = static_cast<size_t>(t.dim() - 1 - t.placement.dim);
    if (2 * from_right + 1 < widths->size()) {
      const bool untouched = (*widths)[2 * from_right] == 0 && (*widths)[2 * from_right + 1] == 0;
      const int mode = call.find("mode");
      const bool constant = mode < 0 || call.args()[mode].value.toStringRef() == "constant";
      if (!untouched || !constant) return std::nullopt;
    }
    return t.placement;
  });
}

Verdict channel_shuffle(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    if (self.placement.dim == 1) return std::nullopt;
    return self.placement;
  });
}

}  // namespace
}  // namespace koila
