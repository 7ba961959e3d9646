// The arguments of a call, for when it has to be made again.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

namespace koila {

class KeptArguments {
 public:
  // The last `count` values of the stack.
  KeptArguments(const torch::jit::Stack& stack, size_t count) : bottom_(stack.size() - count), values_(stack.end() - static_cast<ptrdiff_t>(count), stack.end()) {}

  // Whatever the call has left on the stack goes.
  void put_back(torch::jit::Stack& stack) const {
    stack.resize(bottom_);
    stack.insert(stack.end(), values_.begin(), values_.end());
  }

  at::ArrayRef<c10::IValue> values() const { return values_; }
  size_t bottom() const { return bottom_; }  // height of the stack below them

 private:
  size_t bottom_;
  c10::SmallVector<c10::IValue, 8> values_;
};

}  // namespace koila
