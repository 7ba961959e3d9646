#include "torchglue/stages/extremes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"
#include "torchglue/placement/operands.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"

namespace koila {

namespace {

at::Tensor reduced(std::string_view name, const at::Tensor& x, at::IntArrayRef dims, bool keep) {
  if (name == "aten::amax" || name == "aten::max") return x.amax(dims, keep);
  if (name == "aten::amin" || name == "aten::min") return x.amin(dims, keep);
  return name == "aten::any" ? x.any(dims, keep) : x.all(dims, keep);
}

// Nothing of the region may hang on the value from here on: it is an ordinary tensor, and the region is closed.
void take_out(Region& region, const at::Tensor& value, bool whole = true) {
  region.end_stage();
  const auto entry = deferred_registry().find(value.unsafeGetTensorImpl());
  if (entry.region == nullptr) return;
  const auto its = entry.region->shared_from_this();
  its->end_stage();
  its->hand_over(entry.value, value, whole);
}

at::Tensor without(at::Tensor t, std::vector<int64_t> dims) {
  std::sort(dims.begin(), dims.end());
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) t = t.squeeze(*dim);
  return t;
}

void answer(torch::jit::Stack* stack, const OpCall& call, at::Tensor result) {
  torch::jit::drop(*stack, call.args().size());
  stack->emplace_back(std::move(result));
}

}  // namespace

bool run_extreme(const c10::OperatorHandle&, torch::jit::Stack* stack, const OpCall& call, const std::shared_ptr<Region>& region) {
  const NoAutocastGuard no_autocast;
  const at::Tensor x = torch::jit::peek(*stack, 0, call.args().size()).toTensor();
  const std::string& name = call.schema().name();
  const std::vector<int64_t> dims = *reduced_dims(call, x.dim());
  const int64_t batch_dim = call.tensor(0).placement.dim;
  const bool keep = call.boolean(call.find("keepdim"));
  const bool with_gradient = c10::AutogradState::get_tls_state().get_grad_mode() && x.requires_grad() && x.is_floating_point() && name != "aten::any" && name != "aten::all";
  // Which entries are the largest is a comparison of bits: micro-batches of another size would round x otherwise, and find none.
  if (with_gradient) {
    take_out(*region, x, /*whole=*/false);
    boundaries().keep_value(storage_of(x));
  }
  at::Tensor found;  // keeps its dimensions
  {
    const at::NoGradGuard no_grad;
    std::vector<int64_t> others;
    std::copy_if(dims.begin(), dims.end(), std::back_inserter(others), [&](int64_t d) { return d != batch_dim; });
    const at::Tensor of_rows = others.empty() ? x.detach() : reduced(name, x.detach(), others, /*keep=*/true);
    materialise_tensor(of_rows);
    const NoInterceptGuard no_intercept;
    found = reduced(name, of_rows, {batch_dim}, /*keep=*/true);
  }
  if (with_gradient) {
    {
      const NoInterceptGuard no_intercept;
      if (!found.isfinite().all().item<bool>()) return false;
    }
    // Its gradient is shared evenly by all entries that are as large. The terms of the sum are zero.
    const at::Tensor largest = x.eq(found);
    const at::Tensor count = largest.sum(dims, /*keepdim=*/true, x.scalar_type());
    materialise_tensor(count);
    at::Tensor zero = at::where(largest, (x - found) / count, at::zeros({}, x.options())).sum(dims, /*keepdim=*/true);
    take_out(*region, zero);
    found = zero + found;
  }
  answer(stack, call, keep ? found : without(found, dims));
  return true;
}

bool run_norm(const c10::OperatorHandle&, torch::jit::Stack* stack, const OpCall& call, const std::shared_ptr<Region>& region) {
  const NoAutocastGuard no_autocast;
  const at::Tensor given = torch::jit::peek(*stack, 0, call.args().size()).toTensor();
  const int order = call.find(call.find("ord") >= 0 ? "ord" : "p");
  const double p = call.number(order, 2);
  const at::ScalarType result = dtype_argument(call).value_or(given.scalar_type());
  if ((p != 1 && p != 2) || !c10::isFloatingType(given.scalar_type()) || c10::isReducedFloatingType(result) || c10::isReducedFloatingType(given.scalar_type())) return false;
  const std::vector<int64_t> dims = *reduced_dims(call, given.dim());
  const bool keep = call.boolean(call.find("keepdim"));
  const at::Tensor x = result == given.scalar_type() ? given : given.to(result);
  at::Tensor y = (p == 1 ? x.abs() : x.square()).sum(dims, /*keepdim=*/true);
  if (p == 2) {
    take_out(*region, y);
    const at::Tensor none = y.detach().eq(0);  // whose gradient is zero, and not infinite
    y = y.masked_fill(none, 1).sqrt().masked_fill(none, 0);
  }
  answer(stack, call, keep ? y : without(y, dims));
  return true;
}

}  // namespace koila
