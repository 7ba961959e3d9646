// Products of experts' matrices, and of matrices of few bits with their scales: rows of the left one go by themselves.
#include <algorithm>

#include "torchglue/placement/contraction.h"
#include "torchglue/placement/operands.h"
#include "torchglue/placement/rearranged.h"

namespace koila {
namespace {

Verdict grouped(OpCall&);          // (self, mat2, offs): see groups()
Verdict scaled_grouped(OpCall&);   // (self, mat2, scale_a, scale_b, offs): the same, with a scale for each row of self and each column of mat2
Verdict scaled(OpCall&);           // (self [M, K], mat2 [K, N], scale_a, scale_b, bias, scale_result)
Verdict scaled_by_recipe(OpCall&); // (self, mat2, scale_a list, recipe_a, ..., bias)

const RegisterRules kTable{
    {"aten::_grouped_mm", grouped},
    {"aten::_scaled_grouped_mm", scaled_grouped},
    {"aten::_scaled_mm", scaled},
    {"aten::_scaled_mm_v2", scaled_by_recipe},
};

// Where the batch falls in the result. Offsets say which entries of the dimension that the groups lie along belong to which group: counted within the whole batch, so a batch along
// that dimension does not split, and neither does one that is summed over.
//   [G, M, K] x [G, K, N] -> [G, M, N]      no offsets
//   [M, K]    x [G, K, N] -> [M, N]         the groups lie along M
//   [G, M, K] x [K, N]    -> [M, N]         along N
//   [M, K]    x [K, N]    -> [G, M, N]      along K
std::optional<Placement> groups(OpCall& call) {
  const bool a = call.tensor(0).dim() == 3, b = call.tensor(1).dim() == 3;
  if (call.none(call.find("offs")) != (a && b) || !call.none(call.find("bias"))) return std::nullopt;
  const auto placement = contract(call, {{{0}, labels(a ? "gmk" : "mk")}, {{1}, labels(b ? "gkn" : "kn")}}, labels(a == b ? "gmn" : "mn"));
  if (!placement || !placement->is_shard()) return std::nullopt;
  const int64_t m = a == b ? 1 : 0, n = m + 1;
  const bool along_groups = (!a && b && placement->dim == m) || (a && !b && placement->dim == n);
  return along_groups ? std::nullopt : placement;
}

Verdict grouped(OpCall& call) {
  if (!call.none(call.find("offs")) && !call.tensor(call.find("offs")).placement.is_replicate()) return Verdict::kNo;
  const auto placement = groups(call);
  return placement ? local(call, *placement) : Verdict::kNo;
}

Verdict scaled_grouped(OpCall& call) {
  const TensorSpec &self = call.tensor(0), &mat2 = call.tensor(1), &scale_a = call.tensor(2), &scale_b = call.tensor(3);
  // A scale for each row [G, M] and each column [G, N]; those of blocks lie in an order of their own.
  const bool rows = self.dim() == 3 && mat2.dim() == 3 && scale_a.dtype == c10::ScalarType::Float && scale_a.sizes == decltype(scale_a.sizes){self.sizes[0], self.sizes[1]} &&
                    scale_b.dtype == c10::ScalarType::Float && scale_b.sizes == decltype(scale_b.sizes){mat2.sizes[0], mat2.sizes[2]};
  if (!rows || !call.none(call.find("scale_result"))) return Verdict::kNo;
  const auto placement = groups(call);
  if (!placement) return Verdict::kNo;
  const bool by_group = placement->dim == 0, by_row = placement->dim == 1;
  if (by_group || by_row ? !call.require({2}, *placement) : !scale_a.placement.is_replicate()) return Verdict::kNo;
  if (by_group ? !call.require({3}, *placement) : by_row ? !scale_b.placement.is_replicate() : !call.require({3}, placement->at(1))) return Verdict::kNo;
  return local(call, *placement);
}

// Rows of self [M, K], each with a scale of its own [M, 1], or one scale for all.
bool rows_with_scales(OpCall& call, ArgRef scale_a, ArgRef scale_b, std::initializer_list<int> split) {
  const TensorSpec &self = call.tensor(0), &a = spec(call, scale_a), &b = spec(call, scale_b);
  if (self.dim() != 2 || !self.placement.is_shard() || self.placement.dim != 0 || !others_replicate(call, split)) return false;
  if (a.dtype != c10::ScalarType::Float || b.dtype != c10::ScalarType::Float || !b.placement.is_replicate()) return false;
  const int64_t columns = call.tensor(1).sizes[1];
  if (numel(a) == 1 && a.placement.is_replicate() && numel(b) == 1) return true;
  const bool by_row = a.dim() == 2 && a.sizes[0] == self.sizes[0] && a.sizes[1] == 1 && b.dim() == 2 && b.sizes[0] == 1 && b.sizes[1] == columns;
  return by_row && call.require(scale_a, self.placement);
}

Verdict scaled(OpCall& call) {
  if (call.tensor(1).dim() != 2 || !rows_with_scales(call, {2}, {3}, {0, 2})) return Verdict::kNo;
  return local(call, call.tensor(0).placement);
}

Verdict scaled_by_recipe(OpCall& call) {
  constexpr int64_t kByTensor = 0, kByRow = 1;  // at::blas::ScalingType
  const int scale_a = call.find("scale_a"), scale_b = call.find("scale_b");
  const auto recipe_a = call.integers(call.find("recipe_a")), recipe_b = call.integers(call.find("recipe_b")), dims = call.integers(call.find("contraction_dim"));
  if (call.tensor(1).dim() != 2 || call.list(scale_a).size() != 1 || call.list(scale_b).size() != 1 || !recipe_a || recipe_a != recipe_b || recipe_a->size() != 1) return Verdict::kNo;
  if ((recipe_a->front() != kByTensor && recipe_a->front() != kByRow) || (dims && !dims->empty())) return Verdict::kNo;
  if (!rows_with_scales(call, {scale_a, 0}, {scale_b, 0}, {0, scale_a})) return Verdict::kNo;
  return local(call, call.tensor(0).placement);
}

}  // namespace
}  // namespace koila
