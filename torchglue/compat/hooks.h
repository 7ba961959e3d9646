// Hooks of tensors, and which output of its node one belongs to. PyTorch keeps the number in each kind of hook, and shows it nowhere else.
#pragma once

#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <optional>
#include <string_view>
#include <typeinfo>

namespace koila {

// Laid out as torch/csrc/autograd/python_hook.h has it, which includes Python's headers.
struct PythonHookLayout : torch::autograd::FunctionPreHook {
  void* dict;
  size_t value_idx;
};

// None: a kind that is not known.
inline std::optional<size_t> output_of(const torch::autograd::FunctionPreHook& hook) {
  const std::string_view name = typeid(hook).name();
  const auto is = [&](std::string_view kind) { return name.find(kind) != std::string_view::npos; };
  if (is("PyFunctionTensorPreHook")) return static_cast<const PythonHookLayout&>(hook).value_idx;
  if (is("CppFunctionTensorPreHook")) return static_cast<const torch::autograd::CppFunctionTensorPreHook&>(hook).value_idx_;
  if (is("CppFunctionSingleTensorPreHook")) return static_cast<const torch::autograd::CppFunctionSingleTensorPreHook&>(hook).value_idx_;
  return std::nullopt;
}

// Of a kind that is known.
inline void set_output_of(torch::autograd::FunctionPreHook& hook, size_t output) {
  const std::string_view name = typeid(hook).name();
  const auto is = [&](std::string_view kind) { return name.find(kind) != std::string_view::npos; };
  if (is("PyFunctionTensorPreHook")) static_cast<PythonHookLayout&>(hook).value_idx = output;
  if (is("CppFunctionTensorPreHook")) static_cast<torch::autograd::CppFunctionTensorPreHook&>(hook).value_idx_ = output;
  if (is("CppFunctionSingleTensorPreHook")) static_cast<torch::autograd::CppFunctionSingleTensorPreHook&>(hook).value_idx_ = output;
}

// Whether a hook of the program's waits for the tensor's gradient, or for that to be retained.
inline bool is_hooked(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta != nullptr && (!meta->hooks_.empty() || meta->retains_grad_);
}

}  // namespace koila
