// Views and rearrangements: where the batch's dimension goes, and which literals say its size. All are linear: Partial stays Partial.
#include <algorithm>
#include <limits>
#include <numeric>

#include "torchglue/placement/alignment.h"
#include "torchglue/placement/operands.h"
#include "torchglue/placement/reshape.h"

namespace koila {
namespace {

// reshapes
Verdict reshape(OpCall&);      // (self, size)
Verdict reshape_as(OpCall&);   // (self, other)
Verdict view_dtype(OpCall&);   // (self, dtype)
Verdict flatten(OpCall&);      // (self, start_dim, end_dim)
Verdict unflatten(OpCall&);    // (self, dim, sizes)
Verdict expand(OpCall&);       // (self, size)
Verdict squeeze_all(OpCall&);  // (self)
Verdict squeeze(OpCall&);      // (self, dim or dims)
Verdict unsqueeze(OpCall&);    // (self, dim)
// orders of dimensions
Verdict permute(OpCall&);      // (self, dims)
Verdict transpose(OpCall&);    // (self, dim0, dim1)
Verdict reverse_dims(OpCall&); // (self): t, T
Verdict swap_last(OpCall&);    // (self): mT, mH
Verdict movedim(OpCall&);      // (self, source, destination)
// parts
Verdict select(OpCall&);       // (self, dim, index)
Verdict slice(OpCall&);        // (self, dim, start, end, step)
Verdict narrow(OpCall&);       // (self, dim, start, length)
Verdict unbind(OpCall&);       // (self, dim)
Verdict split(OpCall&);        // (self, size, dim)
Verdict split_sizes(OpCall&);  // (self, sizes, dim)
Verdict chunk(OpCall&);        // (self, chunks, dim)
Verdict split_at(OpCall&);     // (self, indices, dim)
Verdict diagonal(OpCall&);     // (self, offset, dim1, dim2)
Verdict diag_embed(OpCall&);   // (self, offset, dim1, dim2)
Verdict windows(OpCall&);      // (self, dimension, size, step)
Verdict other_dims(OpCall&);   // works along `dims`, which must not hold the batch
template <int N>
Verdict last_dims(OpCall&);    // works within the last N dimensions
// sums of parts
Verdict cat(OpCall&);          // (tensors, dim)
Verdict stack(OpCall&);        // (tensors, dim)
Verdict repeat(OpCall&);       // (self, repeats)
Verdict repeat_each(OpCall&);  // (self, repeats, dim)
Verdict pad(OpCall&);          // (self, pad, ...)
Verdict channel_shuffle(OpCall&);

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

    {"aten::adjoint", swap_last},
    {"aten::mH", swap_last},
    {"aten::mT", swap_last},
    {"aten::matrix_H", swap_last},
    {"aten::moveaxis", movedim},
    {"aten::movedim", movedim},
    {"aten::numpy_T", reverse_dims},
    {"aten::permute", permute},
    {"aten::swapaxes", transpose},
    {"aten::swapdims", transpose},
    {"aten::t", reverse_dims},
    {"aten::transpose", transpose},

    {"aten::chunk", chunk},
    {"aten::diag_embed", diag_embed},
    {"aten::diagonal", diagonal},
    {"aten::flip", other_dims},
    {"aten::narrow", narrow},
    {"aten::narrow_copy", narrow},
    {"aten::roll", other_dims},
    {"aten::rot90", other_dims},
    {"aten::select", select},
    {"aten::slice", slice},
    {"aten::split", split},
    {"aten::split.sizes", split_sizes},
    {"aten::split_with_sizes", split_sizes},
    {"aten::tensor_split.indices", split_at},
    {"aten::tensor_split.sections", chunk},
    {"aten::tril", last_dims<2>},
    {"aten::triu", last_dims<2>},
    {"aten::unbind", unbind},
    {"aten::unfold", windows},
    {"aten::unsafe_chunk", chunk},
    {"aten::unsafe_split", split},
    {"aten::unsafe_split_with_sizes", split_sizes},
    {"aten::view_as_complex", last_dims<1>},
    {"aten::view_as_real", last_dims<0>},

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

const RegisterRagged kRagged{permute, reshape, reverse_dims, select, transpose, unsqueeze};

// What all these rules begin with: nothing to do for a Partial; otherwise only the first argument may be split.
enum class Begin { kPartial, kShard, kRefuse };

Begin begin(const OpCall& call) {
  if (linear_in_first(call)) return Begin::kPartial;
  return call.tensor(0).placement.is_shard() && others_replicate(call, {0}) ? Begin::kShard : Begin::kRefuse;
}

// `f(self)` answers where the batch goes, or nullopt.
template <typename F>
Verdict rearranged(OpCall& call, F&& f) {
  switch (begin(call)) {
    case Begin::kPartial:
      return local(call, Placement::partial());
    case Begin::kRefuse:
      return Verdict::kNo;
    case Begin::kShard:
      break;
  }
  const std::optional<Placement> out = f(call.tensor(0));
  return out ? local(call, *out) : Verdict::kNo;
}

// --- reshapes ---

// Rewrites size literal `k` (or leaves its -1 alone) so that it says the micro-batch's size.
void rewrite_size(OpCall& call, int arg, const std::vector<int64_t>& literals, int64_t k, const Placement& out) {
  if (literals[k] != -1) call.scale_literal(arg, static_cast<int>(k), out.outer * out.inner);
}

int64_t numel(const TensorSpec& t) {
  return std::accumulate(t.sizes.begin(), t.sizes.end(), int64_t{1}, std::multiplies<>());
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

std::optional<Placement> without_dims(const TensorSpec& self, const std::vector<int64_t>& dropped) {
  int64_t dim = self.placement.dim;
  for (int64_t d : dropped) {
    if (d == self.placement.dim) return std::nullopt;
    if (d < self.placement.dim) --dim;
  }
  return self.placement.at(dim);
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

// --- orders of dimensions ---

Verdict permute(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dims = call.integers(1);
    if (!dims) return std::nullopt;
    for (size_t i = 0; i < dims->size(); ++i) {
      if (wrap_dim((*dims)[i], self.dim()) == self.placement.dim) return self.placement.at(static_cast<int64_t>(i));
    }
    return std::nullopt;
  });
}

Placement swapped(const Placement& p, int64_t a, int64_t b) {
  return p.dim == a ? p.at(b) : p.dim == b ? p.at(a) : p;
}

Verdict transpose(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto a = wrap_dim(call.integer(1), self.dim()), b = wrap_dim(call.integer(2), self.dim());
    if (!a || !b) return std::nullopt;
    return swapped(self.placement, *a, *b);
  });
}

Verdict reverse_dims(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    return self.placement.at(self.dim() - 1 - self.placement.dim);
  });
}

Verdict swap_last(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    if (self.dim() < 2) return std::nullopt;
    return swapped(self.placement, self.dim() - 2, self.dim() - 1);
  });
}

Verdict movedim(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto source = call.integers(1), destination = call.integers(2);
    if (!source || !destination || source->size() != destination->size()) return std::nullopt;
    std::vector<int64_t> order(self.dim(), -1);  // order[new] = old
    std::vector<bool> moved(self.dim(), false);
    for (size_t i = 0; i < source->size(); ++i) {
      auto from = wrap_dim((*source)[i], self.dim()), to = wrap_dim((*destination)[i], self.dim());
      if (!from || !to) return std::nullopt;
      order[*to] = *from;
      moved[*from] = true;
    }
    int64_t next = 0;
    for (int64_t& old : order) {
      if (old >= 0) continue;
      while (moved[next]) ++next;
      old = next++;
    }
    const auto place = std::find(order.begin(), order.end(), self.placement.dim) - order.begin();
    return self.placement.at(place);
  });
}

// --- parts ---

// Note [Outer factors are whole batches]
// Shard(d, outer, inner) is `outer` blocks of B*inner entries. A part made of whole blocks is a Shard with fewer of them, so the two
// halves of cat([x1, x2]) can be taken apart again. Any other part of the batch's dimension takes some rows and leaves others.
int64_t block(const OpCall& call, const Placement& p) { return call.batch() * p.inner; }

Verdict select(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dim = wrap_dim(call.integer(1), self.dim());
    if (!dim) return std::nullopt;
    return without_dims(self, {*dim});
  });
}

// Makes the literal that says `value`, a multiple of the block, say it for a micro-batch.
void rewrite_blocks(OpCall& call, int arg, int64_t value, const Placement& p) {
  if (value != 0) call.scale_literal(arg, -1, value / block(call, p) * p.inner);
}

std::optional<Placement> blocks(const OpCall& call, const Placement& p, int64_t start, int64_t end) {
  const int64_t size = block(call, p);
  if (start % size != 0 || end % size != 0 || end <= start) return std::nullopt;
  return Placement::shard(p.dim, (end - start) / size, p.inner);
}

Verdict slice(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dim = wrap_dim(call.integer(1, 0), self.dim());
    if (!dim) return std::nullopt;
    const Placement p = self.placement;
    if (*dim != p.dim) return p;
    if (call.integer(4, 1) != 1) return std::nullopt;
    const int64_t size = self.sizes[*dim];
    auto bound = [&](int64_t value) { return std::clamp<int64_t>(value < 0 ? value + size : value, 0, size); };
    const int64_t start = bound(call.integer(2, 0));
    const int64_t end = bound(call.integer(3, std::numeric_limits<int64_t>::max()));
    auto out = blocks(call, p, start, end);
    if (!out) return std::nullopt;
    if (!call.none(2) && call.integer(2) != 0) {
      if (start == 0) call.set_argument(2, int64_t{0});
      else rewrite_blocks(call, 2, start, p);
    }
    if (!call.none(3)) {
      if (end == size) call.set_argument(3, std::numeric_limits<int64_t>::max());
      else rewrite_blocks(call, 3, end, p);
    }
    return out;
  });
}

Verdict narrow(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dim = wrap_dim(call.integer(1), self.dim());
    if (!dim || call.args()[2].is_tensor) return std::nullopt;
    const Placement p = self.placement;
    if (*dim != p.dim) return p;
    int64_t start = call.integer(2);
    if (start < 0) start += self.sizes[*dim];
    auto out = blocks(call, p, start, start + call.integer(3));
    if (!out) return std::nullopt;
    if (start == 0) call.set_argument(2, int64_t{0});
    else rewrite_blocks(call, 2, start, p);
    rewrite_blocks(call, 3, call.integer(3), p);
    return out;
  });
}

Verdict unbind(OpCall& call) { return select(call); }

Verdict split(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dim = wrap_dim(call.integer(2, 0), self.dim());
    if (!dim) return std::nullopt;
    const Placement p = self.placement;
    if (*dim != p.dim) return p;
    const int64_t size = call.integer(1);
    if (size <= 0 || self.sizes[*dim] % size != 0) return std::nullopt;
    auto out = blocks(call, p, 0, size);
    if (out) rewrite_blocks(call, 1, size, p);
    return out;
  });
}

Verdict split_sizes(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dim = wrap_dim(call.integer(2, 0), self.dim());
    auto sizes = call.integers(1);
    if (!dim || !sizes || sizes->empty()) return std::nullopt;
    const Placement p = self.placement;
    if (*dim != p.dim) return p;
    // One placement stands for all elements of the list.
    if (std::any_of(sizes->begin(), sizes->end(), [&](int64_t size) { return size != sizes->front(); })) return std::nullopt;
    auto out = blocks(call, p, 0, sizes->front());
    if (!out) return std::nullopt;
    for (size_t i = 0; i < sizes->size(); ++i) call.scale_literal(1, static_cast<int>(i), out->outer * out->inner);
    return out;
  });
}

Verdict chunk(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dim = wrap_dim(call.integer(2, 0), self.dim());
    if (!dim) return std::nullopt;
    const Placement p = self.placement;
    if (*dim != p.dim) return p;
    const int64_t chunks = call.integer(1);
    if (chunks <= 0 || p.outer % chunks != 0) return std::nullopt;
    return Placement::shard(p.dim, p.outer / chunks, p.inner);
  });
}

Verdict split_at(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dim = wrap_dim(call.integer(2, 0), self.dim());
    if (!dim || *dim == self.placement.dim) return std::nullopt;
    return self.placement;
  });
}

Verdict diagonal(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto a = wrap_dim(call.integer(2, 0), self.dim()), b = wrap_dim(call.integer(3, 1), self.dim());
    if (!a || !b) return std::nullopt;
    return without_dims(self, {*a, *b});
  });
}

Verdict diag_embed(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto a = wrap_dim(call.integer(2, -2), self.dim() + 1), b = wrap_dim(call.integer(3, -1), self.dim() + 1);
    if (!a || !b || self.placement.dim == self.dim() - 1) return std::nullopt;
    int64_t old = 0;  // the other dimensions keep their order around the two new ones
    for (int64_t d = 0; d <= self.dim(); ++d) {
      if (d == *a || d == *b) continue;
      if (old++ == self.placement.dim) return self.placement.at(d);
    }
    return std::nullopt;
  });
}

Verdict windows(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dim = wrap_dim(call.integer(1), self.dim());
    if (!dim || *dim == self.placement.dim) return std::nullopt;
    return self.placement;
  });
}

Verdict other_dims(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    auto dims = call.integers(call.find("dims"));
    if (!dims || (dims->empty() && call.schema().name() != "aten::flip")) return std::nullopt;  // roll over all entries
    for (int64_t dim : *dims) {
      auto wrapped = wrap_dim(dim, self.dim());
      if (!wrapped || *wrapped == self.placement.dim) return std::nullopt;
    }
    return self.placement;
  });
}

template <int N>
Verdict last_dims(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    if (self.placement.dim >= self.dim() - N) return std::nullopt;
    return self.placement;
  });
}

Verdict channel_shuffle(OpCall& call) {
  return rearranged(call, [&](const TensorSpec& self) -> std::optional<Placement> {
    if (self.placement.dim == 1) return std::nullopt;
    return self.placement;
  });
}

// --- sums of parts ---

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
  for (ArgRef part : parts) {
    const Placement& each = spec(call, part).placement;
    if (!each.is_shard() || each.dim != p.dim || each.inner != p.inner) return Verdict::kNo;
    outer += each.outer;
  }
  return local(call, Placement::shard(p.dim, outer, p.inner));
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

}  // namespace
}  // namespace koila
