// A call of the tape, to be made again.
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <string>

#include "torchglue/tape/tape.h"

namespace koila {

// Its type and sizes, for a reason.
std::string describe(const TapeValue& value);

// The call's arguments, with these tensors.
torch::jit::Stack arguments_of(const TapeOp& op, const std::function<at::Tensor(const TapeRef&)>& tensor_of);

// Every tensor of its results, lists flattened.
template <class F>
void for_each_result(const torch::jit::Stack& results, F&& f) {
  for (const c10::IValue& r : results) {
    if (r.isTensor()) {
      f(r.toTensor());
    } else if (r.isList()) {
      for (const c10::IValue& element : r.toListRef()) f(element.toTensor());
    }
  }
}

}  // namespace koila
