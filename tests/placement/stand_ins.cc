// CPU kernels of operators that have one on CUDA devices alone: what they compute, in terms of other operators, with the results that they have there. The program of the cases has them, and tests that
// import torch load them as a library (tests/conformance/test_stand_ins.py holds their results against PyTorch's own meta kernels).
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace koila::stand_ins {
namespace {

using at::Tensor;
using torch::jit::Stack;

// The arguments of a call by name.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, const Stack& stack) : schema_(op.schema()), values_(stack.end() - static_cast<ptrdiff_t>(schema_.arguments().size()), stack.end()) {}

  c10::IValue value(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (const auto at = schema_.argumentIndexWithName(name)) return values_[static_cast<size_t>(*at)];
    }
    return {};
  }
  Tensor tensor(std::initializer_list<const char*> names) const {
    const c10::IValue v = value(names);
    return v.isTensor() ? v.toTensor() : Tensor();
  }
  bool is_causal() const {
    const c10::IValue causal = value({"is_causal"}), mask = value({"custom_mask_type"});
    return causal.isBool() ? causal.toBool() : mask.isInt() && mask.toInt() == 1;
  }
  const std::string& name() const { return schema_.name(); }
  bool heads_last() const { return name().starts_with("aten::_flash_attention") || name().starts_with("aten::_efficient_attention"); }

 private:
  const c10::FunctionSchema& schema_;
  std::vector<c10::IValue> values_;
};

// Query, key and value with their heads first, and what is added to the products.
struct Attention {
  explicit Attention(const Arguments& arguments) {
    const auto heads_first = [&](const Tensor& t) { return arguments.heads_last() ? t.transpose(1, 2) : t; };
    query = heads_first(arguments.tensor({"query"}));
    key = heads_first(arguments.tensor({"key"}));
    value = heads_first(arguments.tensor({"value"}));
    bias = arguments.tensor({"attn_bias", "bias"});
    const c10::IValue given = arguments.value({"scale"});
    scale = given.isDouble() ? given.toDouble() : 1 / std::sqrt(static_cast<double>(query.size(-1)));
    scores = query.matmul(key.transpose(-2, -1)) * scale;
    if (bias.defined()) scores = scores + bias;
    const Tensor places = at::arange(key.size(2), query.options());
    if (const Tensor slopes = arguments.tensor({"alibi_slopes"}); slopes.defined()) scores = scores + slopes.view({-1, query.size(1), 1, 1}) * places;
    if (const Tensor used = arguments.tensor({"seqused_k"}); used.defined()) {
      scores = scores.masked_fill(places >= used.view({-1, 1, 1, 1}), -std::numeric_limits<double>::infinity());
    }
    if (arguments.is_causal()) {
      const Tensor seen = at::ones({query.size(2), key.size(2)}, query.options().dtype(at::kBool)).tril();
      scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
    }
  }
  Tensor query, key, value, bias, scores;
  double scale = 1;
};

// [N, H, L] as a kernel returns it: with a dimension more, padded to a multiple of 32, or without entries where it was not asked for.
Tensor as_returned(const Arguments& arguments, Tensor sums) {
  if (arguments.name().find("cudnn") != std::string::npos) return sums.unsqueeze(-1);
  if (arguments.name().find("efficient") == std::string::npos) return sums;
  const c10::IValue asked = arguments.value({"compute_log_sumexp"});
  if (asked.isBool() && !asked.toBool()) return sums.narrow(2, 0, 0);
  return at::constant_pad_nd(sums, {0, (32 - sums.size(2) % 32) % 32}, std::numeric_limits<double>::infinity());
}

Tensor as_computed(const Arguments& arguments, const Tensor& sums, int64_t length) {
  return arguments.name().find("cudnn") != std::string::npos ? sums.squeeze(-1) : sums.narrow(2, 0, length);
}

// What lies in memory that a kernel has not written to: another value each time.
int64_t nobodys_value() {
  static std::atomic<int64_t> calls{0};
  return ++calls;
}

void forward(const c10::OperatorHandle& op, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Arguments arguments(op, *stack);
  const Attention attention(arguments);
  const Tensor sums = attention.scores.logsumexp(-1);
  const Tensor out = (attention.scores - sums.unsqueeze(-1)).exp().matmul(attention.value);
  torch::jit::drop(*stack, op.schema().arguments().size());
  int64_t lengths[] = {attention.query.size(2), attention.key.size(2)};
  size_t next = 0;
  for (const c10::Argument& result : op.schema().returns()) {
    const std::string& name = result.name();
    if (name == "output") {
      stack->emplace_back(arguments.heads_last() ? out.transpose(1, 2).contiguous() : out);
    } else if (name.find("sumexp") != std::string::npos) {
      stack->emplace_back(as_returned(arguments, sums));
    } else if (name.starts_with("max_")) {
      stack->emplace_back(lengths[next++]);
    } else if (name == "rng_state") {
      stack->emplace_back(at::full({2}, nobodys_value(), at::kLong).to(at::kUInt64));
    } else if (name.starts_with("philox_")) {
      stack->emplace_back(at::full({}, nobodys_value(), at::kLong));
    } else {
      stack->emplace_back(name.starts_with("cum_seq") ? Tensor() : at::empty({0}, out.options()));
    }
  }
}

void backward(const c10::OperatorHandle& op, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Arguments arguments(op, *stack);
  const Attention attention(arguments);
  Tensor gradient = arguments.tensor({"grad_out", "grad_out_"});
  if (arguments.heads_last()) gradient = gradient.transpose(1, 2);
  const Tensor sums = as_computed(arguments, arguments.tensor({"logsumexp"}), attention.query.size(2));
  const Tensor weights = (attention.scores - sums.unsqueeze(-1)).exp();
  const Tensor of_weights = gradient.matmul(attention.value.transpose(-2, -1));
  const Tensor of_scores = weights * (of_weights - (of_weights * weights).sum(-1, /*keepdim=*/true));
  const auto returned = [&](const Tensor& t) { return arguments.heads_last() ? t.transpose(1, 2).contiguous() : t; };
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->emplace_back(returned(of_scores.matmul(attention.key) * attention.scale));
  stack->emplace_back(returned(of_scores.transpose(-2, -1).matmul(attention.query) * attention.scale));
  stack->emplace_back(returned(weights.transpose(-2, -1).matmul(gradient)));
  if (op.schema().returns().size() > 3) stack->emplace_back(attention.bias.defined() ? at::sum_to(of_scores, attention.bias.sizes()) : Tensor());
}

std::vector<int64_t> all_but_channels(const Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < input.dim(); ++d) dims.push_back(d);
  return dims;
}

std::tuple<Tensor, Tensor> batch_norm_stats(const Tensor& input, double eps) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto [var, mean] = at::var_mean(input, all_but_channels(input), /*unbiased=*/false);
  return {mean, (var + eps).rsqrt()};
}

// Of several processes with `count` entries each: [processes, C]. Moves the running statistics, of which the schema says nothing.
std::tuple<Tensor, Tensor> batch_norm_gather_stats(const Tensor&, const Tensor& means, const Tensor& invstds, const std::optional<Tensor>& running_mean, const std::optional<Tensor>& running_var,
                                                   double momentum, double eps, int64_t count) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Tensor mean = means.mean(0);
  const Tensor var = (invstds.pow(-2) - eps + (means - mean).square()).mean(0);
  const double all = static_cast<double>(count * means.size(0));
  if (running_mean && running_mean->defined()) running_mean->mul_(1 - momentum).add_(mean, momentum);
  if (running_var && running_var->defined()) running_var->mul_(1 - momentum).add_(var, momentum * all / (all - 1));
  return {mean, (var + eps).rsqrt()};
}

Tensor batch_norm_elemt(const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, const Tensor& mean, const Tensor& invstd, double) {
  std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
  sizes[1] = input.size(1);
  Tensor out = (input - mean.view(sizes)) * invstd.view(sizes);
  if (weight && weight->defined()) out = out * weight->view(sizes);
  return bias && bias->defined() ? out + bias->view(sizes) : out;
}

Tensor scaled_grouped_mm(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b, const std::optional<Tensor>&, const std::optional<Tensor>&,
                         const std::optional<Tensor>&, std::optional<at::ScalarType>, bool) {
  TORCH_CHECK(self.dim() == 3 && mat2.dim() == 3, "a stand-in for products of groups of one size");
  return (self.to(at::kFloat) * scale_a.unsqueeze(-1)).matmul(mat2.to(at::kFloat) * scale_b.unsqueeze(-2)).to(at::kBFloat16);
}

// As cuDNN wants it: one block of memory, which the weights look at afterwards.
Tensor flatten_weight(at::TensorList weights, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool) {
  std::vector<Tensor> flat;
  for (const Tensor& weight : weights) flat.push_back(weight.reshape(-1));
  const Tensor buffer = at::cat(flat);
  int64_t first = 0;
  for (const Tensor& weight : weights) {
    const Tensor part = buffer.narrow(0, first, weight.numel()).view(weight.sizes());
    first += weight.numel();
    const_cast<Tensor&>(weight).set_(part);
  }
  return buffer;
}

// There is no allocator to tell. As on a device, a tensor without memory is nothing to tell of.
void record_stream(Tensor& tensor, at::Stream) { TORCH_CHECK(tensor.numel() == 0 || tensor.storage().data() != nullptr, "a stream was recorded of a tensor without memory"); }

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  for (const char* name : {"_cudnn_attention_forward", "_efficient_attention_forward", "_flash_attention_forward", "_scaled_dot_product_cudnn_attention",
                           "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&forward>());
  }
  for (const char* name : {"_cudnn_attention_backward", "_efficient_attention_backward", "_flash_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
                           "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_flash_attention_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&backward>());
  }
  m.impl("batch_norm_elemt", batch_norm_elemt);
  m.impl("batch_norm_gather_stats", batch_norm_gather_stats);
  m.impl("batch_norm_stats", batch_norm_stats);
  m.impl("_scaled_grouped_mm", scaled_grouped_mm);
  m.impl("_cudnn_rnn_flatten_weight", flatten_weight);
  m.impl("record_stream", record_stream);
}

}  // namespace
}  // namespace koila::stand_ins
