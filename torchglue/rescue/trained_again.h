// Parameters that were frozen in the middle of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "torchglue/tape/tape.h"

namespace koila {

// While it lives: leaves that were trained when the step read them, and are frozen by now, are trained. What is made of them then hangs on them, as it did; whether they get a gradient is told by what they
// are when the engine comes to them, as in the plain run.
class TrainedAgain {
 public:
  explicit TrainedAgain(const Tape& tape) {
    for (const TapeValue& value : tape.values()) {
      const at::Tensor t = value.is_capture() && value.requires_grad ? value.lock() : at::Tensor();
      if (t.defined() && !t.requires_grad() && t.is_leaf() && !t.is_inference()) frozen_.push_back(t.set_requires_grad(true));
    }
  }
  ~TrainedAgain() {
    for (const at::Tensor& t : frozen_) t.set_requires_grad(false);
  }
  TrainedAgain(const TrainedAgain&) = delete;
  TrainedAgain& operator=(const TrainedAgain&) = delete;

 private:
  std::vector<at::Tensor> frozen_;
};

}  // namespace koila
