// CPU tensors over device memory, for the length of one operator call.
//
// The simulated device's memory is memory of the host, so a CPU kernel can work on it in place: what is lent is a CPU tensor of the same
// sizes, strides and offset over the same bytes. Arguments that share a storage share it as CPU tensors too, and an argument that is given
// twice is the same CPU tensor twice, for kernels look for overlap by identity.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace sim {

class Bridge {
 public:
  // The CPU tensor to call the kernel with. What is no CUDA tensor is lent as it is. `written`: the kernel may write to it and resize it.
  at::Tensor lend(const at::Tensor& tensor, bool written);

  // Afterwards: what was written to takes over new sizes, and memory that the kernel had to make anew is moved to the device.
  void settle();

  // A result of the kernel, as a tensor of the device: the argument itself, a view of an argument, or a tensor in memory of the caching
  // allocator, which may throw c10::OutOfMemoryError. Results that share memory with a CPU argument stay where they are.
  at::Tensor give(const at::Tensor& result);

  // The device of the first CUDA argument, if there was any.
  std::optional<c10::Device> device() const { return device_; }

 private:
  struct LentTensor {
    at::Tensor original, lent;
    bool written;
  };
  struct LentStorage {
    c10::Storage original, lent;
  };
  struct MovedStorage {
    c10::Storage host, device;
  };

  const c10::Storage& lent_storage(const c10::Storage& original);
  const c10::Storage& moved_storage(const c10::Storage& host);
  void settle(const LentTensor& pair);

  c10::SmallVector<LentTensor, 8> tensors_;
  c10::SmallVector<LentStorage, 8> storages_;
  c10::SmallVector<MovedStorage, 4> moved_;
  std::optional<c10::Device> device_;
};

}  // namespace sim
