#include "torchglue/statistics/operators.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "torchglue/statistics/moments.h"

namespace koila {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Pair = std::tuple<at::Tensor, at::Tensor>;

// `t`, which has lost the dimensions `dims`, with 1 for each.
at::Tensor with_dims(at::Tensor t, at::IntArrayRef dims) {
  for (int64_t dim : dims) t = t.unsqueeze(dim);
  return t;
}

class Statistics : public torch::autograd::Function<Statistics> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, std::vector<int64_t> dims, const at::Tensor& mean, const at::Tensor& var,
                               int64_t count) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    ctx->set_materialize_grads(false);  // what has no gradient gives none on: a parameter's stays None
    ctx->save_for_backward({x, mean});
    ctx->saved_data["dims"] = std::move(dims);
    ctx->saved_data["count"] = count;
    return {mean.clone(), var.clone()};
  }

  // mean' / count + var' 2 (x - mean) / count.
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto dims = ctx->saved_data["dims"].toIntVector();
    const double count = static_cast<double>(ctx->saved_data["count"].toInt());
    const at::Tensor &x = saved[0], &mean = saved[1];
    at::Tensor gradient;
    if (gradients[0].defined() && gradients[1].defined() && all_but_channels(x, dims) && x.scalar_type() == mean.scalar_type()) {
      // One pass: batch norm's kernel for running statistics, with a variance of 1.
      return {std::get<0>(at::native_batch_norm(x, gradients[1] * (2 / count), gradients[0] / count, mean, at::ones_like(mean), /*training=*/false, 0.0, 0.0)),
              Variable(), Variable(), Variable(), Variable()};
    }
    if (gradients[1].defined()) gradient = (x.to(at::toOpMathType(x.scalar_type())) - with_dims(mean, dims)) * with_dims(gradients[1] * (2 / count), dims);
    if (gradients[0].defined()) {
      const at::Tensor of_mean = with_dims(gradients[0] / count, dims);
      gradient = gradient.defined() ? gradient + of_mean : of_mean.expand_as(x);
    }
    if (gradient.defined()) gradient = gradient.to(x.scalar_type());
    return {gradient, Variable(), Variable(), Variable(), Variable()};
  }
};

// With running statistics batch norm is PyTorch's own kernel, and its backward's sums are all that the gradients of mean and var need:
//   bias' = sum(y'), weight' = sum(y' (x - mean)) / sqrt(var + eps), hence
//   mean' = -bias' weight / sqrt(var + eps), var' = -weight' weight / (2 (var + eps)).
class Normalise : public torch::autograd::Function<Normalise> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& var, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, double eps) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    // The kernel wants all four in one type: the statistics'.
    const at::Tensor scale = weight && weight->defined() ? weight->to(mean.scalar_type()) : at::ones_like(mean);
    const at::Tensor shift = bias && bias->defined() ? bias->to(mean.scalar_type()) : at::zeros_like(mean);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, mean, var, scale});
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["weight"] = weight && weight->defined() ? static_cast<int64_t>(weight->scalar_type()) : int64_t{-1};
    ctx->saved_data["bias"] = bias && bias->defined() ? static_cast<int64_t>(bias->scalar_type()) : int64_t{-1};
    return std::get<0>(at::native_batch_norm(x, scale, shift, mean, var, /*training=*/false, 0.0, eps));
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    if (!gradients[0].defined()) return variable_list(6);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &mean = saved[1], &var = saved[2], &scale = saved[3];
    const double eps = ctx->saved_data["eps"].toDouble();
    auto [dx, dweight, dbias] = at::native_batch_norm_backward(gradients[0], x, scale, mean, var, {}, {}, /*train=*/false, eps, {true, true, true});
    const at::Tensor inverse = (var + eps).rsqrt();
    const at::Tensor dmean = -(dbias * scale * inverse);
    const at::Tensor dvar = dweight * scale * inverse.square() * -0.5;
    const auto for_parameter = [&](const at::Tensor& gradient, const char* name) {
      const int64_t dtype = ctx->saved_data[name].toInt();
      return dtype < 0 ? Variable() : gradient.to(static_cast<at::ScalarType>(dtype));
    };
    return {dx, dmean, dvar, for_parameter(dweight, "weight"), for_parameter(dbias, "bias"), Variable()};
  }
};

Pair statistics(const at::Tensor& x, at::IntArrayRef dims, const at::Tensor& mean, const at::Tensor& var, int64_t count) {
  const variable_list both = Statistics::apply(x, dims.vec(), mean, var, count);
  return {both[0], both[1]};
}

at::Tensor normalise(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& var, const std::optional<at::Tensor>& weight,
                     const std::optional<at::Tensor>& bias, double eps) {
  return Normalise::apply(x, mean, var, weight, bias, eps);
}

TORCH_LIBRARY(koila, m) {
  m.def("statistics(Tensor x, int[] dims, Tensor mean, Tensor var, int count) -> (Tensor, Tensor)");
  m.def("normalise(Tensor x, Tensor mean, Tensor var, Tensor? weight, Tensor? bias, float eps) -> Tensor");
}

TORCH_LIBRARY_IMPL(koila, Autograd, m) {
  m.impl("statistics", statistics);
  m.impl("normalise", normalise);
}

// Under no_grad below autograd, as in inference mode.
TORCH_LIBRARY_IMPL(koila, CompositeExplicitAutograd, m) {
  m.impl("statistics", statistics);
  m.impl("normalise", normalise);
}

}  // namespace

c10::OperatorHandle statistics_operator() {
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("koila::statistics", "");
  return op;
}

c10::OperatorHandle normalise_operator() {
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("koila::normalise", "");
  return op;
}

}  // namespace koila
