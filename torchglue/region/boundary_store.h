// Where the full-size values between stages lie, and their gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>

#include "runtime/fork_lock.h"

namespace koila {

// Note [Boundaries]
// What one stage leaves to the next is as large as the batch. It stays in the device's memory while there is plenty; else it goes outside: for
// the CPU to an unlinked file that is mapped into memory, and for a CUDA device to pinned host memory, which the device addresses like
// its own. So a boundary is an ordinary tensor wherever it lies, and whoever reads it needs to know nothing. What is in the device's memory is
// moved outside when a micro-batch runs out, before the micro-batch shrinks; but not what the program holds: it may have its address.
//
// Thread contract: the owner of the step, or the engine's thread that works for it. keep_in_place() any thread, and pointers die on any.
class BoundaryStore {
 public:
  // A new tensor in a storage of `bytes`, for a value of the full batch. Throws c10::OutOfMemoryError when there is no memory anywhere.
  at::Tensor empty(size_t bytes, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, at::ScalarType dtype, at::Device device);

  // The same like `full`, of that type, all zeros.
  at::Tensor zeros_like(const at::Tensor& full, at::ScalarType dtype);

  // The value may be moved outside from now on.
  void add(const c10::StorageImpl* storage);
  // Never again: its address has been given away.
  void keep_in_place(const c10::StorageImpl* storage);

  // Moves outside what live regions alone hold on the device. False when there is nothing, or no room.
  bool evict(at::Device device);

  // Whether it lies outside.
  bool outside(const c10::StorageImpl* storage) const;
  // A step is over.
  void step();
  // Asks for the bytes of a CPU tensor to be read in: they will be used soon. Does nothing for what is not outside, as
  // the part of a boundary is not that had to be copied out of it.
  void read_ahead(const at::Tensor& part) const;

 private:
  at::DataPtr allocate(size_t bytes, at::Device device);
  bool scarce(size_t bytes, at::Device device) const;
  bool move_outside(c10::StorageImpl& storage, at::Device device);

  // Steps for which boundaries still go outside at once: something had to be moved.
  int pressed_ = 0;
  ForkLock mutex_;  // of inside_
  ska::flat_hash_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> inside_;
};

BoundaryStore& boundaries();

}  // namespace koila
