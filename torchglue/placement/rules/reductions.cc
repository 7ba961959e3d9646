// Reductions and what else works along one dimension. Over the batch only sums split (to Partial), and means, which are sums; variances
// need every row first.
#include <algorithm>

#include "torchglue/placement/alignment.h"
#include "torchglue/placement/operands.h"

namespace koila {
namespace {

Verdict reduce(OpCall&);      // over dimensions other than the batch's
Verdict staged(OpCall&);      // the same, and over the batch once every row is there: variances, logsumexp
Verdict sum(OpCall&);         // linear
Verdict mean(OpCall&);        // linear; micro-batches hold shares in proportion to their rows
Verdict count(OpCall&);       // a sum of something that is not linear
Verdict softmax(OpCall&);     // along one dimension; of the batch once its sum is known
Verdict along(OpCall&);       // keeps the shape, mixes entries along `dim`
Verdict sum_along(OpCall&);   // the same, linear
Verdict any_of_dims(OpCall&); // any, all
Verdict extreme(OpCall&);     // amax: of each row, and of the batch once every row has been seen
Verdict pairs_along(OpCall&); // the same of two tensors of one shape
Verdict histogram(OpCall&);   // (self, bins, min, max): counts
Verdict cross(OpCall&);       // (self, other, dim)

const RegisterRules kTable{
    {"aten::all", any_of_dims},
    {"aten::amax", extreme},
    {"aten::amin", extreme},
    {"aten::aminmax", reduce},
    {"aten::any", any_of_dims},
    {"aten::argmax", reduce},
    {"aten::argmin", reduce},
    {"aten::count_nonzero", count},
    {"aten::histc", histogram},
    {"aten::kthvalue", reduce},
    {"aten::linalg_vector_norm", staged},
    {"aten::logsumexp", staged},
    {"aten::max", extreme},
    {"aten::max.dim", reduce},
    {"aten::mean", mean},
    {"aten::median.dim", reduce},
    {"aten::min", extreme},
    {"aten::min.dim", reduce},
    {"aten::mode", reduce},
    {"aten::nanmedian.dim", reduce},
    {"aten::nansum", count},
    {"aten::norm", staged},
    {"aten::prod", reduce},
    {"aten::std", staged},
    {"aten::std_mean", staged},
    {"aten::sum", sum},
    {"aten::var", staged},
    {"aten::var_mean", staged},

    {"aten::_log_softmax", softmax},
    {"aten::_log_softmax_backward_data", pairs_along},
    {"aten::_safe_softmax", along},
    {"aten::_softmax", softmax},
    {"aten::_softmax_backward_data", pairs_along},
    {"aten::argsort", along},
    {"aten::cummax", along},
    {"aten::cummin", along},
    {"aten::cumprod", along},
    {"aten::cumsum", sum_along},
    {"aten::glu", along},
    {"aten::linalg_cross", cross},
    {"aten::log_softmax.int", softmax},
    {"aten::logcumsumexp", along},
    {"aten::softmax.int", softmax},
    {"aten::sort", along},
    {"aten::topk", along},
};

const RegisterRagged kRagged{along, count, extreme, mean, reduce, softmax, staged, sum, sum_along};

bool contains(const std::vector<int64_t>& dims, int64_t dim) { return std::find(dims.begin(), dims.end(), dim) != dims.end(); }

// Where the batch is once `dims`, which do not hold it, are reduced.
Placement after_reduction(const OpCall& call, const Placement& p, const std::vector<int64_t>& dims) {
  if (call.boolean(call.find("keepdim"))) return p;
  return p.at(p.dim - std::count_if(dims.begin(), dims.end(), [&](int64_t d) { return d < p.dim; }));
}

// The reduced dimensions, when the first argument is the only one that is split and it is a Shard.
std::optional<std::vector<int64_t>> dims_of_shard(const OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  if (!self.placement.is_shard() || !others_replicate(call, {0})) return std::nullopt;
  return reduced_dims(call, self.dim());
}

Verdict reduce(OpCall& call) {
  auto dims = dims_of_shard(call);
  const Placement p = call.tensor(0).placement;
  if (!dims || contains(*dims, p.dim)) return Verdict::kNo;
  return local(call, after_reduction(call, p, *dims));
}

Verdict any_of_dims(OpCall& call) {
  const int dim = call.find("dim");
  if (!call.none(dim) && call.integers(dim) && call.integers(dim)->empty()) return Verdict::kNo;  // [] means none here, elsewhere all
  return extreme(call);
}

Verdict extreme(OpCall& call) {
  auto dims = dims_of_shard(call);
  const TensorSpec& self = call.tensor(0);
  if (!dims || !contains(*dims, self.placement.dim)) return reduce(call);
  if (c10::isComplexType(self.dtype)) return Verdict::kNo;
  local(call, Placement::partial());
  return Verdict::kStaged;
}

bool result_is_linear(const OpCall& call) {
  const auto dtype = dtype_argument(call);
  return !dtype || cast_is_linear(call.tensor(0).dtype, *dtype);
}

Verdict sum(OpCall& call) {
  if (linear_in_first(call)) return result_is_linear(call) ? local(call, Placement::partial()) : Verdict::kNo;
  return count(call);
}

Verdict count(OpCall& call) {
  auto dims = dims_of_shard(call);
  if (!dims) return Verdict::kNo;
  const Placement p = call.tensor(0).placement;
  return local(call, contains(*dims, p.dim) ? Placement::partial() : after_reduction(call, p, *dims));
}

Verdict mean(OpCall& call) {
  if (linear_in_first(call)) return result_is_linear(call) ? local(call, Placement::partial()) : Verdict::kNo;
  auto dims = dims_of_shard(call);
  if (!dims) return Verdict::kNo;
  const Placement p = call.tensor(0).placement;
  if (!contains(*dims, p.dim)) return local(call, after_reduction(call, p, *dims));
  const c10::ScalarType type = call.tensor(0).dtype;
  if (p.ragged || divides_once(type, dtype_argument(call).value_or(type))) {
    call.run_instead("aten::sum", call.find("dim") < 0 ? "" : "dim_IntList", {});
    return mean_of_sum(call);
  }
  call.scale_outputs_by_rows();
  return local(call, Placement::partial());
}

Verdict staged(OpCall& call) {
  auto dims = dims_of_shard(call);
  const TensorSpec& self = call.tensor(0);
  if (!dims || !contains(*dims, self.placement.dim)) return reduce(call);
  if (!c10::isFloatingType(self.dtype)) return Verdict::kNo;
  local(call, Placement::partial());
  return Verdict::kStaged;
}

Verdict softmax(OpCall& call) {
  if (const Verdict verdict = along(call); verdict != Verdict::kNo) return verdict;
  const TensorSpec& self = call.tensor(0);
  if (!self.placement.is_shard() || !others_replicate(call, {0}) || !c10::isFloatingType(self.dtype)) return Verdict::kNo;
  const auto dtype = dtype_argument(call);
  if (dtype && !c10::isFloatingType(*dtype)) return Verdict::kNo;
  local(call, self.placement);
  return Verdict::kStaged;
}

Verdict along(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  if (!self.placement.is_shard() || !others_replicate(call, {0})) return Verdict::kNo;
  auto dim = wrap_dim(call.integer(call.find("dim")), self.dim());
  if (!dim || *dim == self.placement.dim) return Verdict::kNo;
  return local(call, self.placement);
}

Verdict pairs_along(OpCall& call) {
  const Placement p = call.first_split()->placement;
  auto dim = wrap_dim(call.integer(call.find("dim")), call.tensor(0).dim());
  if (!p.is_shard() || !dim || *dim == p.dim || !call.require({0}, p) || !call.require({1}, p)) return Verdict::kNo;
  return local(call, p);
}

Verdict histogram(OpCall& call) {
  // Without bounds the smallest and the largest entry of the batch decide.
  if (!call.tensor(0).placement.is_shard() || call.number(2) >= call.number(3)) return Verdict::kNo;
  return local(call, Placement::partial());
}

Verdict sum_along(OpCall& call) {
  if (linear_in_first(call)) return result_is_linear(call) ? local(call, Placement::partial()) : Verdict::kNo;
  return along(call);
}

Verdict cross(OpCall& call) {
  auto out = align(call, defined_operands(call));
  if (!out) return Verdict::kNo;
  auto dim = wrap_dim(call.integer(call.find("dim")), std::max(call.tensor(0).dim(), call.tensor(1).dim()));
  return dim && *dim != out->dim ? local(call, *out) : Verdict::kNo;
}

}  // namespace
}  // namespace koila
