// Writes to inference tensors, which have no version.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "torchglue/base/storage_map.h"

namespace koila {

// Note [Versions of inference tensors]
// What a program makes in torch.inference_mode() has no version counter, and so nothing of PyTorch's tells that it has been written to; nor does the counter of an ordinary tensor that a view made
// in that mode, such as view(dtype), looks at. Whoever records operators to make them again has to know. Each write in place to a tensor of that mode is counted here, by the storage, which all that look
// at it share, and added to what their own counters say.
class InferenceWrites {
 public:
  // An operator has written to the tensor. Nothing is counted where it is no inference tensor. Any thread.
  void count(const at::Tensor& tensor);
  // Of the tensor's storage; grows with each write. 0: nobody has written to it. Any thread.
  uint32_t version(const at::Tensor& tensor) const;
  // Of storages that are gone. A step is over.
  void forget_the_dead();

 private:
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  StorageMap<uint32_t> versions_;
  uint32_t last_ = 0;
};

InferenceWrites& inference_writes();

}  // namespace koila
