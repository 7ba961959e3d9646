// Results that PyTorch's own operators save for backward, and those that stand for them in micro-batches do not.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace koila {

// Note [Results that plain saves]
// The largest entry along the batch, a norm or a softmax along it is made of simpler operators (stages/staged.cc). PyTorch's own node saves its result: where the program writes to it before backward,
// plain raises an error, or, where the write went through .data, has other gradients. What stands for the operator knows nothing of that, so such a write is refused.
// Thread contract: the owner's.
class SavedResults {
 public:
  void note(const at::Tensor& result);
  bool has(const c10::StorageImpl* storage) const;
  void forget() { noted_.clear(); }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> noted_;
};

}  // namespace koila
