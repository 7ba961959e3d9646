// Runs operators as the interceptor does: begin, the call itself, commit.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>
#include <vector>

#include "torchglue/tape/tape.h"

namespace koila {

class Recorder {
 public:
  explicit Recorder(Tape& tape) : tape_(tape) {}

  std::vector<c10::IValue> call(const char* name, const char* overload, const std::vector<c10::IValue>& arguments) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    tape_.begin(op, arguments);
    torch::jit::Stack stack(arguments.begin(), arguments.end());
    op.callBoxed(stack);
    tape_.commit(arguments, stack);
    return {stack.begin(), stack.end()};
  }

  at::Tensor operator()(const char* name, const std::vector<c10::IValue>& arguments) { return call(name, "", arguments)[0].toTensor(); }
  at::Tensor operator()(const char* name, const char* overload, const std::vector<c10::IValue>& arguments) {
    return call(name, overload, arguments)[0].toTensor();
  }

  at::Tensor linear(const at::Tensor& x, const at::Tensor& w) { return (*this)("aten::linear", {x, w, c10::IValue()}); }
  at::Tensor tanh(const at::Tensor& x) { return (*this)("aten::tanh", {x}); }
  at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return (*this)("aten::add", "Tensor", {a, b, 1}); }
  at::Tensor sum(const at::Tensor& x) { return (*this)("aten::sum", {x, c10::IValue()}); }

 private:
  Tape& tape_;
};

}  // namespace koila
