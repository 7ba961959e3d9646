// An operator of one's own in C++, with its placement rule beside it: x / sqrt(mean(x * x) + eps) * weight over the last dimension, in one pass
// each way. rms_norm.py trains with it.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "koila/rule.h"

namespace {

at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, double eps) {
  TORCH_CHECK(input.is_cpu() && input.scalar_type() == at::kFloat && input.dim() >= 2 && weight.sizes() == input.sizes().slice(input.dim() - 1),
              "rms_norm takes float [..., n] with a batch dimension, and a weight [n], on the CPU");
  const at::Tensor x = input.contiguous(), w = weight.contiguous();
  at::Tensor out = at::empty_like(x);
  const int64_t width = w.numel();
  const float* from = x.const_data_ptr<float>();
  const float* scale = w.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel() / width, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += from[row * width + i] * from[row * width + i];
      const float r = 1 / std::sqrt(squares / static_cast<float>(width) + static_cast<float>(eps));
      for (int64_t i = 0; i < width; ++i) to[row * width + i] = from[row * width + i] * r * scale[i];
    }
  });
  return out;
}

class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tiny::rms_norm", "").typed<at::Tensor(const at::Tensor&, const at::Tensor&, double)>();
    context->save_for_backward({x, weight});
    context->saved_data["eps"] = eps;
    return op.call(x, weight, eps);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor r = x.square().mean(-1, true).add(context->saved_data["eps"].toDouble()).rsqrt();
    const at::Tensor scaled = grads[0] * weight;
    const at::Tensor by_weight = (grads[0] * x * r).flatten(0, -2).sum(0);
    return {scaled * r - x * r.pow(3) * (scaled * x).mean(-1, true), by_weight, at::Tensor()};
  }
};

at::Tensor with_gradient(const at::Tensor& x, const at::Tensor& weight, double eps) { return RmsNorm::apply(x, weight, eps); }

}  // namespace

TORCH_LIBRARY(tiny, m) { m.def("rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor"); }
TORCH_LIBRARY_IMPL(tiny, CPU, m) { m.impl("rms_norm", &forward); }
TORCH_LIBRARY_IMPL(tiny, Autograd, m) { m.impl("rms_norm", &with_gradient); }

// Each row by itself, whichever dimension the rows are: any but the one that the norm is taken over.
KOILA_RULE("tiny::rms_norm(x: Shard(any but -1), weight: Replicate) -> Shard(any)")
