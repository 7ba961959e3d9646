// Parts of a tensor: slices, pieces, diagonals, windows; and what stays within a part, such as a flip. All are linear: Partial stays Partial.
#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "torchglue/placement/operands.h"
#include "torchglue/placement/parts_of_rows.h"
#include "torchglue/placement/rearranged.h"

namespace koila {
namespace {

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

const RegisterRules kTable{
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
};

const RegisterRagged kRagged{chunk, narrow, select, slice, split, split_sizes};

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

// A slice is worth its own entries only where it has a good part of them: a loop over the rows one by one is not.
constexpr int64_t kPartOfEntries = 32;
constexpr int64_t kEntriesAtMost = 1 << 18;  // of a dimension: whose they are is written down one by one

// What lies within [start, end) of the batch's dimension, with the bounds at arguments 2 and 3: see Note [Parts of the batch]. Nothing where it is little.
std::optional<Placement> take_within(OpCall& call, const TensorSpec& self, int64_t start, int64_t end) {
  const Placement& p = self.placement;
  if (p.counts != 0 || self.sizes[p.dim] > kEntriesAtMost || end <= start || (end - start) * kPartOfEntries < self.sizes[p.dim]) return std::nullopt;
  const auto entries = call.remember(entries_of_rows(p, call.batch()));
  if (!call.none(2)) call.count_before(2, start, entries);
  if (!call.none(3)) call.count_before(3, end, entries);
  return split_by_entries(call, entries_within(*entries, start, end), p.dim);
}

// Parts of the batch's dimension, one after the other. `sizes` are at argument 1 then.
Verdict take_parts(OpCall& call, const std::vector<int64_t>& sizes) {
  const TensorSpec& self = call.tensor(0);
  const Placement& p = self.placement;
  if (call.schema().name() == "aten::tensor_split") return Verdict::kNo;  // slice(), which it is made of, gives each part a node of its own
  if (p.counts != 0 || self.sizes[p.dim] > kEntriesAtMost || sizes.size() > static_cast<size_t>(kPartOfEntries) || std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; })) return Verdict::kNo;
  if (std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) != self.sizes[p.dim]) return Verdict::kNo;
  const auto entries = call.remember(entries_of_rows(p, call.batch()));
  std::vector<Placement> parts;
  int64_t start = 0;
  for (const int64_t size : sizes) {
    parts.push_back(split_by_entries(call, entries_within(*entries, start, start + size), p.dim));
    start += size;
  }
  call.set_argument(1, sizes);
  call.count_parts(1, entries);
  const std::string& name = call.schema().name();
  if (name.find("with_sizes") == std::string::npos) call.run_instead(name.starts_with("aten::unsafe") ? "aten::unsafe_split_with_sizes" : name.ends_with("_copy") ? "aten::split_with_sizes_copy" : "aten::split_with_sizes", "", {});
  call.output_elements(std::move(parts));
  return Verdict::kLocal;
}

// Sizes of parts of `size`, the last one smaller.
std::vector<int64_t> sizes_of_parts(int64_t whole, int64_t size) {
  std::vector<int64_t> sizes;
  for (int64_t start = 0; start < whole; start += size) sizes.push_back(std::min(size, whole - start));
  return sizes;
}

// Makes the literal that says `value`, a multiple of the block, say it for a micro-batch.
void rewrite_blocks(OpCall& call, int arg, int64_t value, const Placement& p) {
  if (value != 0) call.scale_literal(arg, -1, value / block(call, p) * p.inner);
}

std::optional<Placement> blocks(const OpCall& call, const Placement& p, int64_t start, int64_t end) {
  if (p.ragged) return std::nullopt;
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
    if (!out) return take_within(call, self, start, end);
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
    if (!out) {
      const auto part = take_within(call, self, start, start + call.integer(3));
      if (part) call.run_instead(call.schema().name() == "aten::narrow" ? "aten::slice" : "aten::slice_copy", "Tensor", {int64_t{1}});
      return part;
    }
    if (start == 0) call.set_argument(2, int64_t{0});
    else rewrite_blocks(call, 2, start, p);
    rewrite_blocks(call, 3, call.integer(3), p);
    return out;
  });
}

Verdict unbind(OpCall& call) { return select(call); }

// Pieces along the dimension at argument 2: `in_blocks` answers where each is as many whole batches, and `sizes` says how large they are.
template <typename InBlocks, typename Sizes>
Verdict pieces(OpCall& call, InBlocks&& in_blocks, Sizes&& sizes) {
  const MovedInput input = moved_input(call);
  if (input != MovedInput::kShard) return input == MovedInput::kPartial ? local(call, Placement::partial()) : Verdict::kNo;
  const TensorSpec& self = call.tensor(0);
  const auto dim = wrap_dim(call.integer(2, 0), self.dim());
  if (!dim) return Verdict::kNo;
  const Placement p = self.placement;
  if (*dim != p.dim) return local(call, p);
  const auto block = p.ragged ? std::nullopt : in_blocks(p, self.sizes[*dim]);
  return block ? local(call, *block) : take_parts(call, sizes(self.sizes[*dim]));
}

Verdict split(OpCall& call) {
  const int64_t size = call.integer(1);
  if (size <= 0) return Verdict::kNo;
  const auto in_blocks = [&](const Placement& p, int64_t whole) -> std::optional<Placement> {
    auto out = whole % size == 0 ? blocks(call, p, 0, size) : std::nullopt;
    if (out) rewrite_blocks(call, 1, size, p);
    return out;
  };
  return pieces(call, in_blocks, [&](int64_t whole) { return sizes_of_parts(whole, size); });
}

Verdict split_sizes(OpCall& call) {
  const auto sizes = call.integers(1);
  if (!sizes || sizes->empty()) return Verdict::kNo;
  const auto in_blocks = [&](const Placement& p, int64_t) -> std::optional<Placement> {
    if (std::any_of(sizes->begin(), sizes->end(), [&](int64_t size) { return size != sizes->front(); })) return std::nullopt;
    auto out = blocks(call, p, 0, sizes->front());
    if (!out) return std::nullopt;
    for (size_t i = 0; i < sizes->size(); ++i) call.scale_literal(1, static_cast<int>(i), out->outer * out->inner);
    return out;
  };
  return pieces(call, in_blocks, [&](int64_t) { return *sizes; });
}

Verdict chunk(OpCall& call) {
  const int64_t chunks = call.integer(1);
  if (chunks <= 0) return Verdict::kNo;
  const auto in_blocks = [&](const Placement& p, int64_t) -> std::optional<Placement> {
    return p.outer % chunks == 0 ? std::optional(Placement::shard(p.dim, p.outer / chunks, p.inner)) : std::nullopt;
  };
  return pieces(call, in_blocks, [&](int64_t whole) { return sizes_of_parts(whole, std::max<int64_t>(1, (whole + chunks - 1) / chunks)); });
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

}  // namespace
}  // namespace koila
