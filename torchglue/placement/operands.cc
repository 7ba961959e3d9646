#include "torchglue/placement/operands.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <numeric>

namespace koila {

std::optional<int64_t> wrap_dim(int64_t dim, int64_t ndim) {
  if (dim < 0) dim += ndim;
  if (dim < 0 || dim >= ndim) return std::nullopt;
  return dim;
}

namespace {

void append_defined(const OpCall& call, int arg, ArgRefs& refs) {
  if (arg < 0 || arg >= static_cast<int>(call.args().size())) return;
  const OpCall::Arg& a = call.args()[arg];
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i].defined) refs.push_back({arg, a.is_tensor_list ? static_cast<int>(i) : -1});
  }
}

}  // namespace

ArgRefs defined_operands(const OpCall& call) {
  ArgRefs refs;
  for (int arg = 0; arg < static_cast<int>(call.args().size()); ++arg) append_defined(call, arg, refs);
  return refs;
}

ArgRefs defined_operands(const OpCall& call, std::initializer_list<int> args) {
  ArgRefs refs;
  for (int arg : args) append_defined(call, arg, refs);
  return refs;
}

const TensorSpec& spec(const OpCall& call, ArgRef ref) {
  return ref.element < 0 ? call.tensor(ref.arg) : call.list(ref.arg)[ref.element];
}

bool others_replicate(const OpCall& call, std::initializer_list<int> args) {
  for (ArgRef ref : defined_operands(call)) {
    if (std::find(args.begin(), args.end(), ref.arg) != args.end()) continue;
    if (!spec(call, ref).placement.is_replicate()) return false;
  }
  return true;
}

bool any_shard(const OpCall& call, const ArgRefs& refs) {
  return std::any_of(refs.begin(), refs.end(), [&](ArgRef ref) { return spec(call, ref).placement.is_shard(); });
}

bool any_partial(const OpCall& call, const ArgRefs& refs) {
  return std::any_of(refs.begin(), refs.end(), [&](ArgRef ref) { return spec(call, ref).placement.is_partial(); });
}

Verdict local(OpCall& call, const Placement& all_outputs) {
  const int n = static_cast<int>(call.schema().returns().size());
  for (int i = 0; i < n; ++i) call.output(i, all_outputs);
  return Verdict::kLocal;
}

bool linear_in_first(const OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  return self.defined && self.placement.is_partial() && others_replicate(call, {0});
}

std::optional<c10::ScalarType> dtype_argument(const OpCall& call) {
  const int arg = call.find("dtype");
  if (call.none(arg) || call.args()[arg].is_tensor) return std::nullopt;
  return static_cast<c10::ScalarType>(call.integer(arg));
}

bool cast_is_linear(c10::ScalarType from, c10::ScalarType to) {
  if (to == c10::ScalarType::Bool) return from == c10::ScalarType::Bool;
  if (c10::isIntegralType(to, /*includeBool=*/false)) return c10::isIntegralType(from, /*includeBool=*/true);
  return true;
}

std::optional<std::vector<int64_t>> reduced_dims(const OpCall& call, int64_t ndim) {
  std::vector<int64_t> all(ndim);
  std::iota(all.begin(), all.end(), 0);
  const int arg = call.find("dim");
  if (call.none(arg)) return all;
  auto dims = call.integers(arg);
  if (!dims) return std::nullopt;
  if (dims->empty()) return all;
  for (int64_t& dim : *dims) {
    auto wrapped = wrap_dim(dim, ndim);
    if (!wrapped) return std::nullopt;
    dim = *wrapped;
  }
  return dims;
}

bool divides_once(c10::ScalarType of, c10::ScalarType to) {
  return of != c10::ScalarType::Half && of != c10::ScalarType::BFloat16 && (to == c10::ScalarType::Float || to == c10::ScalarType::Double);
}

Verdict mean_of_sum(OpCall& call) {
  const TensorSpec& self = call.tensor(0);
  const auto dims = reduced_dims(call, self.dim());
  if (!dims || self.dtype == c10::ScalarType::Half) return Verdict::kNo;  // the sum may overflow where the mean does not
  double entries = 1;
  for (int64_t dim : *dims) entries *= static_cast<double>(self.sizes[dim]);
  call.divide_outputs_by({}, [entries](const std::vector<c10::IValue>&) { return at::scalar_tensor(entries, at::kDouble); });
  return local(call, Placement::partial());
}

}  // namespace koila
