// Indexing: picking and placing entries by index. Indices count within other dimensions than the batch's, or into a table that is not split.
#include <algorithm>

#include "torchglue/placement/alignment.h"
#include "torchglue/placement/by_index.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict gather(OpCall&);         // (self, dim, index): every operand has the same dimensions
Verdict scatter(OpCall&);        // (self, dim, index, src or value)
Verdict take_along(OpCall&);     // (self, indices, dim): broadcast but for dim
Verdict index_select(OpCall&);   // (self, dim, index [n])
Verdict index_write(OpCall&);    // (self, dim, index [n], source or value)
Verdict index(OpCall&);          // (self, indices): self[i, :, j]
Verdict index_put(OpCall&);      // (self, indices, values)
Verdict masked_select(OpCall&);  // (self, mask)
Verdict select_write(OpCall&);   // (self, src, dim, index)
Verdict slice_write(OpCall&);    // (self, src, dim, start, end, step)
Verdict diagonal_write(OpCall&); // (self, src, offset, dim1, dim2)
Verdict take(OpCall&);           // (self, index): from all of self, flattened
Verdict search(OpCall&);         // (sorted_sequence, self)
Verdict bucketize(OpCall&);      // (self, boundaries), (elements, test_elements)

const RegisterRules kTable{
    {"aten::bucketize.Tensor", bucketize},
    {"aten::diagonal_scatter", diagonal_write},
    {"aten::gather", gather},
    {"aten::index.Tensor", index},
    {"aten::index_add", index_write},
    {"aten::index_copy", index_write},
    {"aten::index_fill", index_write},
    {"aten::index_put", index_put},
    {"aten::index_reduce", index_write},
    {"aten::index_select", index_select},
    {"aten::isin.Tensor_Tensor", bucketize},
    {"aten::masked_select", masked_select},
    {"aten::scatter", scatter},
    {"aten::scatter_add", scatter},
    {"aten::scatter_reduce", scatter},
    {"aten::searchsorted.Tensor", search},
    {"aten::select_scatter", select_write},
    {"aten::slice_scatter", slice_write},
    {"aten::take", take},
    {"aten::take_along_dim", take_along},
};

const RegisterRagged kRagged{gather, index, index_put, index_select, index_write, scatter};

bool reduces_by_sum(const OpCall& call) {
  const std::string& name = call.schema().name();
  if (name.starts_with("aten::scatter_add")) return true;
  const int reduce = call.find("reduce");
  if (reduce < 0 || !call.args()[reduce].value.isString()) return false;
  const std::string& how = call.args()[reduce].value.toStringRef();
  return (how == "add" || how == "sum") && call.boolean(call.find("include_self"), true);
}

// gather(self, dim, index): out[i][j] = self[i][index[i][j]] for dim = 1.
Verdict gather(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const TensorSpec& index = call.tensor(2);
  auto dim = wrap_dim(call.integer(1), self.dim());
  if (!dim || self.dim() != index.dim()) return Verdict::kNo;
  if (self.placement.is_partial()) return index.placement.is_replicate() ? local(call, Placement::partial()) : Verdict::kNo;
  const Placement p = call.first_split()->placement;
  if (!p.is_shard() || !call.require({2}, p)) return Verdict::kNo;
  if (p.dim == *dim) {
    // Each entry of the index picks from all of self.
    return self.placement.is_replicate() ? local(call, p) : Verdict::kNo;
  }
  return call.require({0}, p) ? local(call, p) : Verdict::kNo;
}

Verdict scatter(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  auto dim = wrap_dim(call.integer(1), self.dim());
  if (!dim) return Verdict::kNo;
  // Rows that lie along `dim` are those of what is written, to anywhere.
  const TensorSpec &index = call.tensor(2), &src = call.tensor(3);
  const Placement& rows = src.placement.is_shard() ? src.placement : index.placement;
  if (!self.placement.is_shard() && rows.is_shard() && rows.dim == *dim) {
    const bool fits = src.defined && src.dim() == self.dim() && index.dim() == self.dim() && reduces_by_sum(call);
    return fits && call.require({2}, rows) && call.require({3}, rows) && adds_up(call) ? local(call, Placement::partial()) : Verdict::kNo;
  }
  if (self.placement.is_shard() && self.placement.dim == *dim && src.defined && src.dim() == self.dim() && index.dim() == self.dim() && reduces_by_sum(call)) {
    const auto picked = rows_by_index(call, {2}, *dim, self.placement);
    return picked && call.require({3}, *picked) ? local(call, self.placement) : Verdict::kNo;
  }
  const Placement p = call.first_split()->placement;
  if (!p.is_shard() || p.dim == *dim) return Verdict::kNo;
  for (ArgRef ref : defined_operands(call)) {
    const TensorSpec& t = spec(call, ref);
    if (t.dim() == 0 && t.placement.is_replicate() && ref.arg == 3) continue;  // a value
    if (t.dim() != self.dim() || !call.require(ref, p)) return Verdict::kNo;
  }
  return local(call, p);
}

Verdict take_along(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  if (call.none(2) || self.dim() != call.tensor(1).dim()) return Verdict::kNo;
  auto dim = wrap_dim(call.integer(2), self.dim());
  auto out = align(call, defined_operands(call));
  return out && dim && *dim != out->dim ? local(call, *out) : Verdict::kNo;
}

Verdict index_select(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const TensorSpec& index = call.tensor(2);
  auto dim = wrap_dim(call.integer(1), self.dim());
  if (!dim) return Verdict::kNo;
  if (index.placement.is_replicate()) {
    if (self.placement.is_partial()) return local(call, Placement::partial());
    if (!self.placement.is_shard()) return Verdict::kNo;
    if (self.placement.dim != *dim) return local(call, self.placement);
    auto picked = rows_by_index(call, {2}, 0, self.placement);
    if (!picked) picked = rows_in_order(call, {2}, self.placement);
    return picked ? local(call, picked->at(*dim)) : Verdict::kNo;
  }
  // Rows of a table that is not split.
  if (!self.placement.is_replicate() || !index.placement.is_shard()) return Verdict::kNo;
  return local(call, index.placement.at(*dim));
}

Verdict index_write(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  auto dim = wrap_dim(call.integer(1), self.dim());
  if (!dim) return Verdict::kNo;
  const TensorSpec &index = call.tensor(2), &source = call.tensor(3);
  const bool adds = call.schema().name().starts_with("aten::index_add");
  const Placement& rows = source.placement.is_shard() ? source.placement : index.placement;
  if (adds && !self.placement.is_shard() && rows.is_shard() && rows.dim == (source.placement.is_shard() ? *dim : 0)) {
    const bool fits = index.dim() == 1 && source.dim() == self.dim();
    return fits && call.require({2}, rows.at(0)) && call.require({3}, rows.at(*dim)) && adds_up(call) ? local(call, Placement::partial()) : Verdict::kNo;
  }
  if (adds && self.placement.is_shard() && self.placement.dim == *dim) {
    const auto picked = index.dim() == 1 && source.dim() == self.dim() ? rows_by_index(call, {2}, 0, self.placement) : std::nullopt;
    return picked && call.require({3}, picked->at(*dim)) ? local(call, self.placement) : Verdict::kNo;
  }
  if (!index.placement.is_replicate()) return Verdict::kNo;
  const Placement p = call.first_split()->placement;
  if (!p.is_shard() || p.dim == *dim || !call.require({0}, p)) return Verdict::kNo;
  if (source.defined && source.dim() > 0) {
    if (source.dim() != self.dim() || !call.require({3}, p)) return Verdict::kNo;
  } else if (source.defined && !source.placement.is_replicate()) {
    return Verdict::kNo;
  }
  return local(call, p);
}

// --- self[indices] ---

// How self's dimensions and those of the broadcast indices make up the result, as NumPy has it: indexed dimensions that stand together are
// replaced where they stand; else the indices' dimensions come first. A mask stands for as many dimensions as it has, and gives one.
struct Picked {
  std::vector<bool> indexed;   // per dimension of self
  int64_t index_dims = 0;      // of the broadcast indices
  int64_t place = 0;           // where they stand in the result
  bool has_mask = false;

  int64_t dims_before(int64_t dim) const { return dim - std::count(indexed.begin(), indexed.begin() + dim, true); }
  // Where a dimension of self that is not indexed goes.
  int64_t kept(int64_t dim) const {
    const int64_t n = dims_before(dim);
    return n < place ? n : n + index_dims;
  }
};

std::optional<Picked> picked(const TensorSpec& self, const std::vector<TensorSpec>& indices) {
  Picked result;
  result.indexed.assign(self.dim(), false);
  int64_t dim = 0;
  std::vector<int64_t> runs;  // first dimension of each group of indexed dimensions that stand together
  bool in_run = false;
  for (const TensorSpec& index : indices) {
    if (!index.defined) {
      in_run = false;
      ++dim;
      continue;
    }
    const bool mask = index.dtype == c10::ScalarType::Bool || index.dtype == c10::ScalarType::Byte;
    const int64_t taken = mask ? index.dim() : 1;
    if (taken == 0) return std::nullopt;
    if (dim + taken > self.dim()) return std::nullopt;
    if (!in_run) runs.push_back(dim);
    in_run = true;
    for (int64_t i = 0; i < taken; ++i) result.indexed[dim++] = true;
    result.has_mask |= mask;
    result.index_dims = std::max<int64_t>(result.index_dims, mask ? 1 : index.dim());
  }
  if (dim > self.dim() || runs.empty()) return std::nullopt;
  result.place = runs.size() == 1 ? result.dims_before(runs[0]) : 0;
  return result;
}

// The index of a dimension of self among a call's indices.
ArgRef index_of(const OpCall& call, int64_t dim) {
  const auto& indices = call.list(1);
  int64_t at = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (at == dim) return {1, static_cast<int>(i)};
    const bool mask = indices[i].defined && (indices[i].dtype == c10::ScalarType::Bool || indices[i].dtype == c10::ScalarType::Byte);
    at += mask ? indices[i].dim() : 1;
  }
  return {1, -1};
}

// The rows that self[i] picks from, or writes to, where i goes along the batch's dimension: see Note [Rows by index]. All indices have one dimension, or one entry.
std::optional<Placement> picked_by_index(OpCall& call, const Picked& plan) {
  const TensorSpec& self = call.tensor(0);
  if (plan.has_mask || plan.index_dims != 1) return std::nullopt;
  const ArgRef by_row = index_of(call, self.placement.dim);
  if (self.placement.ragged && defined_operands(call, {1}).size() == 1) {
    const auto back = rows_in_order(call, by_row, self.placement);
    return back ? std::optional(back->at(plan.place)) : std::nullopt;
  }
  const auto picked = rows_by_index(call, by_row, 0, self.placement);
  if (!picked) return std::nullopt;
  for (ArgRef ref : defined_operands(call, {1})) {
    const TensorSpec& t = spec(call, ref);
    if (ref == by_row || t.dim() == 0 || t.sizes[0] == 1) continue;
    if (!call.require(ref, *picked)) return std::nullopt;
  }
  return picked->at(plan.place);
}

// self[mask], the mask's first dimension being the batch's: each row gives as many entries as its part of the mask picks.
Verdict pick_masked(OpCall& call, const Picked& plan) {
  const TensorSpec& self = call.tensor(0);
  const auto& indices = call.list(1);
  const auto masks = std::count_if(indices.begin(), indices.end(), [](const TensorSpec& index) { return index.defined; });
  const auto first = std::find(plan.indexed.begin(), plan.indexed.end(), true) - plan.indexed.begin();
  if (masks != 1 || first != self.placement.dim || self.placement.outer != 1 || self.placement.ragged) return Verdict::kNo;
  const OpCall::ArgRef mask{1, static_cast<int>(first)};
  if (!call.require(mask, self.placement.at(0))) return Verdict::kNo;
  auto rows = call.rows_under(mask, plan.place);
  return rows ? local(call, Placement::shard(plan.place, std::move(rows))) : Verdict::kNo;
}

Verdict masked_select(OpCall& call) {
  const TensorSpec &self = call.tensor(0), &mask = call.tensor(1);
  if (self.sizes != mask.sizes || self.dim() == 0) return Verdict::kNo;
  const Placement p = call.first_split()->placement;
  if (!p.is_shard() || p.dim != 0 || p.outer != 1 || p.ragged || !call.require({0}, p) || !call.require({1}, p)) return Verdict::kNo;
  auto rows = call.rows_under({1}, 0);
  return rows ? local(call, Placement::shard(0, std::move(rows))) : Verdict::kNo;
}

Verdict index(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const auto plan = picked(self, call.list(1));
  if (!plan) return Verdict::kNo;
  const ArgRefs indices = defined_operands(call, {1});
  if (others_replicate(call, {0})) {
    if (self.placement.is_partial()) return local(call, Placement::partial());
    const int64_t dim = self.placement.dim;
    if (!plan->indexed[dim]) return local(call, self.placement.at(plan->kept(dim)));
  }
  if (self.placement.is_shard() && plan->has_mask) return pick_masked(call, *plan);
  if (self.placement.is_shard()) {
    const auto picked = plan->indexed[self.placement.dim] ? picked_by_index(call, *plan) : std::nullopt;
    return picked ? local(call, *picked) : Verdict::kNo;
  }
  // A table that is not split, looked up by indices that are. How many entries a mask picks depends on its values.
  if (!self.placement.is_replicate() || plan->has_mask) return Verdict::kNo;
  auto out = align(call, indices);
  return out ? local(call, out->at(plan->place + out->dim)) : Verdict::kNo;
}

// self[mask] = values, the batch's dimension under the mask: the same values go to every place, however many there are, or each row has its own, as many as its part of the mask picks.
Verdict fill_masked(OpCall& call, const Picked& plan) {
  const TensorSpec& self = call.tensor(0);
  const TensorSpec& values = call.tensor(2);
  const auto& indices = call.list(1);
  const auto masks = std::count_if(indices.begin(), indices.end(), [](const TensorSpec& index) { return index.defined; });
  const auto first = std::find(plan.indexed.begin(), plan.indexed.end(), true) - plan.indexed.begin();
  const auto after = self.dim() - first - std::count(plan.indexed.begin(), plan.indexed.end(), true);
  const OpCall::ArgRef mask{1, static_cast<int>(first)};
  if (!plan.has_mask || masks != 1) return Verdict::kNo;
  if (values.dim() > after) {
    const int64_t dim = values.dim() - after - 1;
    if (first != self.placement.dim || self.placement.outer != 1 || values.sizes[dim] == 1) return Verdict::kNo;
    auto rows = call.rows_under(mask, plan.place);
    if (!rows || !call.require({2}, Placement::shard(dim, std::move(rows)))) return Verdict::kNo;
  } else if (!values.placement.is_replicate()) {
    return Verdict::kNo;
  }
  return call.require(mask, self.placement.at(self.placement.dim - first)) ? local(call, self.placement) : Verdict::kNo;
}

// The values broadcast to what self[indices] would give, and are split along its dimension `rows.dim`.
bool values_along(OpCall& call, const Picked& plan, const Placement& rows) {
  const TensorSpec &self = call.tensor(0), &values = call.tensor(2);
  const int64_t kept = self.dim() - std::count(plan.indexed.begin(), plan.indexed.end(), true);
  const int64_t dim = rows.dim - (kept + plan.index_dims) + values.dim();
  if (dim < 0 || values.sizes[dim] == 1) return values.placement.is_replicate();
  return call.require({2}, rows.at(dim));
}

// self[i] += values, rows by the entries of i.
Verdict add_at(OpCall& call, const Picked& plan) {
  const TensorSpec &self = call.tensor(0), &values = call.tensor(2);
  if (plan.has_mask || !call.boolean(call.find("accumulate"))) return Verdict::kNo;
  const int64_t kept = self.dim() - std::count(plan.indexed.begin(), plan.indexed.end(), true);
  if (!any_shard(call, defined_operands(call, {1}))) {  // the values say which rows are whose
    if (!values.placement.is_shard()) return Verdict::kNo;
    const int64_t dim = values.placement.dim + kept + plan.index_dims - values.dim();  // of self[i]
    const bool along = dim >= plan.place && dim < plan.place + plan.index_dims;
    for (ArgRef ref : defined_operands(call, {1})) {
      const TensorSpec& t = spec(call, ref);
      const int64_t own = dim - plan.place - plan.index_dims + t.dim();
      if (along && (own < 0 || t.sizes[own] == 1)) continue;
      if (!along || !call.require(ref, values.placement.at(own))) return Verdict::kNo;
    }
    return adds_up(call) ? local(call, Placement::partial()) : Verdict::kNo;
  }
  const auto rows = align(call, defined_operands(call, {1}));
  return rows && values_along(call, plan, rows->at(plan.place + rows->dim)) && adds_up(call) ? local(call, Placement::partial()) : Verdict::kNo;
}

Verdict index_put(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const auto plan = picked(self, call.list(1));
  if (!plan || self.placement.ragged) return Verdict::kNo;
  if (!self.placement.is_shard()) return add_at(call, *plan);
  if (plan->indexed[self.placement.dim] && plan->has_mask) return fill_masked(call, *plan);
  if (plan->indexed[self.placement.dim]) {
    const auto picked = picked_by_index(call, *plan);
    return picked && values_along(call, *plan, *picked) ? local(call, self.placement) : Verdict::kNo;
  }
  if (!others_replicate(call, {0, 2})) return Verdict::kNo;
  return values_along(call, *plan, self.placement.at(plan->kept(self.placement.dim))) ? local(call, self.placement) : Verdict::kNo;
}

// --- the rest ---

Verdict select_write(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  auto dim = wrap_dim(call.integer(2), self.dim());
  if (!dim) return Verdict::kNo;
  if (self.placement.is_partial() && call.tensor(1).placement.is_partial()) return local(call, Placement::partial());
  Placement p = self.placement;
  if (p.is_replicate()) {
    const Placement& src = call.tensor(1).placement;
    p = src.at(src.dim + (*dim <= src.dim ? 1 : 0));
    if (!src.is_shard()) return Verdict::kNo;
  }
  if (!p.is_shard() || p.dim == *dim) return Verdict::kNo;
  return call.require({0}, p) && call.require({1}, p.at(p.dim - (*dim < p.dim ? 1 : 0))) ? local(call, p) : Verdict::kNo;
}

Verdict slice_write(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  auto dim = wrap_dim(call.integer(2, 0), self.dim());
  if (self.placement.is_partial() && call.tensor(1).placement.is_partial()) return local(call, Placement::partial());
  const Placement p = call.first_split()->placement;
  if (!dim || !p.is_shard() || p.dim == *dim) return Verdict::kNo;
  return call.require({0}, p) && call.require({1}, p) ? local(call, p) : Verdict::kNo;
}

Verdict diagonal_write(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  auto a = wrap_dim(call.integer(3, 0), self.dim()), b = wrap_dim(call.integer(4, 1), self.dim());
  const Placement p = self.placement;
  if (!a || !b || !p.is_shard() || p.dim == *a || p.dim == *b) return Verdict::kNo;
  return call.require({1}, p.at(p.dim - (*a < p.dim ? 1 : 0) - (*b < p.dim ? 1 : 0))) ? local(call, p) : Verdict::kNo;
}

Verdict take(OpCall& call) {
  const Placement p = call.tensor(1).placement;
  return p.is_shard() && others_replicate(call, {1}) ? local(call, p) : Verdict::kNo;
}

Verdict search(OpCall& call) {
  const TensorSpec& sorted = call.tensor(0);
  const TensorSpec& self = call.tensor(1);
  const Placement p = call.first_split()->placement;
  if (!p.is_shard()) return Verdict::kNo;
  // One sequence for all.
  if (sorted.dim() == 1) {
    const bool alone = self.placement.is_shard() && others_replicate(call, {1});
    return alone ? local(call, p) : Verdict::kNo;
  }
  if (p.dim >= sorted.dim() - 1) return Verdict::kNo;
  for (ArgRef ref : defined_operands(call)) {
    if (!call.require(ref, p)) return Verdict::kNo;
  }
  return local(call, p);
}

Verdict bucketize(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  return self.placement.is_shard() && others_replicate(call, {0}) ? local(call, self.placement) : Verdict::kNo;
}

}  // namespace
}  // namespace koila
