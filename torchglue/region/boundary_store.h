// Where the full-size values between stages lie, and their gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/fork_lock.h"
#include "torchglue/region/program.h"
#include "torchglue/sizing/boundary_bytes.h"

namespace koila {

class Region;

// Note [Boundaries]
// What one stage leaves to the next is as large as the batch. It stays in the device's memory while there is plenty; else it goes outside: for
// the CPU to an unlinked file that is mapped into memory, and for a CUDA device to pinned host memory, which the device addresses like
// its own. So a boundary is an ordinary tensor wherever it lies, and whoever reads it needs to know nothing. What is in the device's memory is
// moved outside when a micro-batch runs out, before the micro-batch shrinks; but not what the program holds: it may have its address. Where there is no
// outside it is let go and made again by the row (rows_again.cc).
//
// Thread contract: the owner of the step, or the engine's thread that works for it. keep_in_place() any thread, and pointers die on any.
class BoundaryStore {
 public:
  // A new tensor in a storage of `bytes`, for a value of the full batch. Throws c10::OutOfMemoryError when there is no memory anywhere.
  at::Tensor empty(size_t bytes, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, at::ScalarType dtype, at::Device device);

  // The same like `full`, of that type, all zeros.
  at::Tensor zeros_like(const at::Tensor& full, at::ScalarType dtype);

  // The value, of that region, may be moved outside or let go from now on. Without a region it is a sum of gradients, which may not.
  void add(const c10::StorageImpl* storage, std::weak_ptr<Region> maker, ValueId value);
  // Not let go: what would be made again is not the same. Its bits are looked at, or it is written to (before the write, or after it).
  void keep_value(const c10::StorageImpl* storage);
  // Never again: its address has been given away.
  void keep_in_place(const c10::StorageImpl* storage);

  // Moves outside what live regions alone hold on the device; where that may not be, or there is no room, lets go of some of it. False when there was nothing.
  bool evict(at::Device device);

  // See Note [Boundaries that are let go].
  static bool let_go(const c10::StorageImpl* storage);
  // Rows of a boundary that was let go, as an operand with that placement has them. Undefined where it has its memory, which it may have got for this.
  at::Tensor rows(const at::Tensor& full, const Placement& placement, int64_t batch, Rows rows);

  // What there is of them.
  BoundaryBytes bytes(int device_number);
  // Whether it is one, which may be moved or let go of: then it is held by who reads it, and by nobody else.
  bool is_one(const c10::StorageImpl* storage);
  // Whether it lies outside.
  bool outside(const c10::StorageImpl* storage) const;
  // A step is over.
  void step();
  // Asks for the bytes of a CPU tensor to be read in: they will be used soon. Does nothing for what is not outside, as
  // the part of a boundary is not that had to be copied out of it.
  void read_ahead(const at::Tensor& part) const;

 private:
  at::DataPtr allocate(size_t bytes, at::Device device);
  int64_t lacking(size_t bytes, at::Device device);
  static bool in_memory(const c10::StorageImpl& storage);
  bool may_go(const c10::StorageImpl* storage) const;
  bool move_outside(c10::StorageImpl& storage, at::Device device);
  bool move_all_outside(at::Device device);

  struct Kept {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::weak_ptr<Region> maker;  // none: it is not let go
    ValueId value;
    bool in_place = false;  // its address has been given away
  };
  struct Candidate {
    at::Storage storage;
    std::shared_ptr<Region> maker;
    ValueId value;
    const Region* reader;  // the last
  };
  struct Made {
    const c10::StorageImpl* storage;
    Rows rows;
    at::Tensor part;
  };
  struct Chains;
  std::vector<Candidate> candidates(at::Device device);
  // At least so many bytes, as far as there are; 0: a share of them.
  bool let_go_of_some(at::Device device, size_t bytes);

  // Steps for which boundaries still go outside at once: something had to be moved.
  int pressed_ = 0;
  ForkLock mutex_;  // of known_
  ska::flat_hash_map<const c10::StorageImpl*, Kept> known_;  // wherever they lie
  int nested_ = 0;          // rows that are made for others' sake
  std::vector<Made> made_;  // for the outermost
};

BoundaryStore& boundaries();

}  // namespace koila
