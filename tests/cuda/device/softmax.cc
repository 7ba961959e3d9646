// Softmax of half-precision values into floats, and back. CUDA has that in one kernel, which autocast asks for; the CPU's kernel refuses.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "fallback.h"

namespace sim {
namespace {

using torch::jit::Stack;

// (self, dim, half_to_float, out): of the values as floats.
void softmax(const c10::OperatorHandle& op, Stack* stack) {
  c10::IValue& self = torch::jit::peek(*stack, 0, 4);
  c10::IValue& half_to_float = torch::jit::peek(*stack, 2, 4);
  if (half_to_float.toBool()) {
    self = self.toTensor().to(c10::kFloat);
    half_to_float = false;
  }
  run_on_host(op, stack);
}

// (grad_output, output, dim, input_dtype, grad_input): of floats, and then as halves.
void softmax_backward(const c10::OperatorHandle& op, Stack* stack) {
  const at::ScalarType computed = torch::jit::peek(*stack, 0, 5).toTensor().scalar_type();
  c10::IValue& wanted = torch::jit::peek(*stack, 3, 5);
  if (wanted.toScalarType() == computed) return run_on_host(op, stack);
  wanted = computed;
  c10::IValue& out = torch::jit::peek(*stack, 4, 5);
  const at::Tensor narrow = out.toTensor();
  out = at::empty(narrow.sizes(), narrow.options().dtype(computed));
  run_on_host(op, stack);
  const at::Tensor wide = torch::jit::pop(*stack).toTensor();
  torch::jit::push(*stack, narrow.copy_(wide));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  for (const char* name : {"_softmax.out", "_log_softmax.out"}) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&softmax>());
  for (const char* name : {"_softmax_backward_data.out", "_log_softmax_backward_data.out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&softmax_backward>());
}

}  // namespace sim
