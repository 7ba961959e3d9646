// Reshapes: the same entries in the same order under other sizes, and which literals say the size of the batch. All are linear: Partial stays Partial.
#include <algorithm>

#include "torchglue/placement/operands.h"
#include "torchglue/placement/rearranged.h"
#include "torchglue/placement/reshape.h"

namespace koila {
namespace {

Verdict reshape(OpCall&);      // (self, size)
Verdict reshape_as(OpCall&);   // (self, other)
Verdict view_dtype(OpCall&);   // (self, dtype)
Verdict flatten(OpCall&);      // (self, start_dim, end_dim)
Verdict unflatten(OpCall&);    // (self, dim, sizes)
Verdict expand(OpCall&);       // (self, size)
Verdict squeeze_all(OpCall&);  // (self)
Verdict squeeze(OpCall&);      // (self, dim or dims)
Verdict unsqueeze(OpCall&);    // (self, dim)

const RegisterRules kTable{
    {"aten::_unsafe_view", reshape},
    {"aten::broadcast_to", expand},
    {"aten::expand", expand},
    {"aten::flatten", flatten},
    {"aten::reshape", reshape},
    {"aten::reshape_as", reshape_as},
    {"aten::squeeze", squeeze_all},
    {"aten::squeeze.dim", squeeze},
    {"aten::squeeze.dims", squeeze},
    {"aten::unflatten", unflatten},
    {"aten::unsqueeze", unsqueeze},
    {"aten::view", reshape},
    {"aten::view.dtype", view_dtype},
    {"aten::view_as", reshape_as},
};

const RegisterRagged kRagged{reshape, unsqueeze};

// Rewrites size literal `k` (or leaves its -1 alone) so that it says the micro-batch's size.
void rewrite_size(OpCall& call, int arg, const std::vector<int64_t>& literals, int64_t k, const Placement& out) {
  if (literals[k] != -1) call.scale_literal(arg, static_cast<int>(k), out.outer * out.inner);
}

Verdict reshape(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto size = call.integers(1);
    auto resolved = size ? resolve_size(*size, numel(self)) : std::nullopt;
    if (!resolved) return std::nullopt;
    if (self.placement.ragged) {  // only what leaves the first dimension alone
      if (self.placement.dim != 0 || resolved->empty() || (*resolved)[0] != self.sizes[0]) return std::nullopt;
      (*resolved)[0] = -1;
      if (std::find(resolved->begin(), resolved->end(), 0) != resolved->end()) return std::nullopt;
      call.set_argument(1, *resolved);
      return self.placement;
    }
    auto out = reshape_placement(self.sizes, self.placement, call.batch(), *resolved);
    if (out) rewrite_size(call, 1, *size, out->dim, *out);
    return out;
  });
}

Verdict reshape_as(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const TensorSpec& other = call.tensor(1);
  if (self.placement.is_partial() && !other.placement.is_shard()) return local(call, Placement::partial());
  if (!self.placement.is_shard()) return Verdict::kNo;
  auto out = reshape_placement(self.sizes, self.placement, call.batch(), other.sizes);
  return out && call.require({1}, *out) ? local(call, *out) : Verdict::kNo;
}

Verdict view_dtype(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const auto dtype = dtype_argument(call);
  if (!self.placement.is_shard() || !dtype) return Verdict::kNo;  // the bits of a sum are not the sum of the bits
  if (c10::elementSize(*dtype) != c10::elementSize(self.dtype) && self.placement.dim == self.dim() - 1) return Verdict::kNo;
  return local(call, self.placement);
}

Verdict flatten(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto first = wrap_dim(call.integer(1, 0), self.dim()), last = wrap_dim(call.integer(2, -1), self.dim());
    if (!first || !last || *first > *last) return std::nullopt;
    std::vector<int64_t> out(self.sizes.begin(), self.sizes.begin() + *first + 1);
    for (int64_t i = *first + 1; i <= *last; ++i) out.back() *= self.sizes[i];
    out.insert(out.end(), self.sizes.begin() + *last + 1, self.sizes.end());
    return reshape_placement(self.sizes, self.placement, call.batch(), out);
  });
}

Verdict unflatten(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dim = wrap_dim(call.integer(1), self.dim());
    auto sizes = call.integers(2);
    if (!dim || !sizes) return std::nullopt;
    auto resolved = resolve_size(*sizes, self.sizes[*dim]);
    if (!resolved) return std::nullopt;
    std::vector<int64_t> out(self.sizes.begin(), self.sizes.begin() + *dim);
    out.insert(out.end(), resolved->begin(), resolved->end());
    out.insert(out.end(), self.sizes.begin() + *dim + 1, self.sizes.end());
    auto placement = reshape_placement(self.sizes, self.placement, call.batch(), out);
    if (placement && self.placement.dim == *dim) rewrite_size(call, 2, *sizes, placement->dim - *dim, *placement);
    return placement;
  });
}

Verdict expand(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto size = call.integers(1);
    if (!size || static_cast<int64_t>(size->size()) < self.dim()) return std::nullopt;
    const Placement out = self.placement.at(self.placement.dim + static_cast<int64_t>(size->size()) - self.dim());
    const int64_t wanted = (*size)[out.dim];
    if (wanted != -1 && wanted != self.sizes[self.placement.dim]) return std::nullopt;  // a batch of one row, repeated
    rewrite_size(call, 1, *size, out.dim, out);
    return out;
  });
}

Verdict squeeze_all(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    if (call.schema().name() == "aten::squeeze_") return std::nullopt;
    std::vector<int64_t> ones;
    for (int64_t d = 0; d < self.dim(); ++d) if (self.sizes[d] == 1) ones.push_back(d);
    // A micro-batch of one row has a dimension of size 1 more, which must stay.
    call.run_instead(call.schema().name() == "aten::squeeze_copy" ? "aten::squeeze_copy" : "aten::squeeze", "dims", {c10::IValue(ones)});
    return without_dims(self, ones);
  });
}

Verdict squeeze(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dims = call.integers(1);
    if (!dims) return std::nullopt;
    std::vector<int64_t> ones;
    for (int64_t dim : *dims) {
      auto wrapped = wrap_dim(dim, self.dim());
      if (!wrapped) return std::nullopt;
      if (*wrapped == self.placement.dim) return std::nullopt;  // squeezes when there is one row
      if (self.sizes[*wrapped] == 1 && std::find(ones.begin(), ones.end(), *wrapped) == ones.end()) ones.push_back(*wrapped);
    }
    return without_dims(self, ones);
  });
}

Verdict unsqueeze(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dim = wrap_dim(call.integer(1), self.dim() + 1);
    if (!dim) return std::nullopt;
    return self.placement.at(self.placement.dim + (*dim <= self.placement.dim ? 1 : 0));
  });
}

}  // namespace
}  // namespace koila
