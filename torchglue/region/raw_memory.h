// Memory that the program reads or writes through pointers, with no operator that would say so.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "torchglue/base/hot.h"

namespace koila {

// Note [Raw pointers]
// C++ programs read and write tensors through data_ptr() and accessors, the larger part of which is compiled into them. Each first asks the tensor
// whether it has a storage, by a virtual function that the preload stands in for. A deferred tensor is given its value at that moment, and memory
// that operators have read or made stays where it is. Most only look. What such a pointer writes nobody hears of: plain PyTorch's backward sees it in what
// was saved, and a step that is made again would not. So a digest of the memory is taken when the pointer is, and a step whose memory has another one by
// the time that it is split, or made again, is refused. Memory that is given back before is looked at then: who writes to it has it no longer either.
inline constexpr const char* kWrittenUnseen = "memory of a tensor that the step made or read was written to through a pointer or .data.";

class RawMemory {
 public:
  // The program is given the address of the tensor's memory, or is about to write to it unseen: `unseen`, where the tensor's version will not tell.
  void note(const c10::TensorImpl& tensor, bool unseen = false);
  // To be called before the next operator: what it is for may be gone afterwards. Most that write do so before it.
  bool is_fresh() const { return fresh_; }
  void look();
  // The memory is about to be given back.
  void before_free(const void* memory);
  // A region has made the value again, which may differ by rounding. What was written to the memory that it had is known by then.
  void made_again(const c10::StorageImpl* storage);
  // Whether any of it that `concerns` somebody has been written to since, but by operators.
  bool changed(const std::function<bool(const c10::StorageImpl*)>& concerns) const;
  bool any() const { return !blocks_.empty(); }
  // See SilentWrite.
  void begin_silent_write(const at::Tensor& t);
  void end_silent_write(const at::Tensor& t);
  // The step is over.
  void clear();

 private:
  struct Block {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    uint64_t digest = 0;
    std::optional<c10::VariableVersion> version;  // that operators count up
    uint32_t at_version = 0;
    bool written = false;  // a look has found it
    bool behind = false;   // an operator writes to it behind what the step has made there, and that is to be found: see note_write_behind()

    bool changed(const c10::StorageImpl& now) const;
  };
  Block* find(const c10::StorageImpl* storage);  // or null

  std::vector<Block> blocks_;
  bool fresh_ = false;  // noted since the last look
};

RawMemory& raw_memory();

// While an operator writes and does not count up the version that was noted (to running statistics, or through `.data`): what the program wrote through its pointer before is found, and who read
// the memory has been told of what is written now.
class SilentWrite {
 public:
  explicit SilentWrite(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (const at::Tensor& t : tensors_) raw_memory().begin_silent_write(t);
  }
  ~SilentWrite() {
    for (const at::Tensor& t : tensors_) raw_memory().end_silent_write(t);
  }
  SilentWrite(const SilentWrite&) = delete;
  SilentWrite& operator=(const SilentWrite&) = delete;

 private:
  const std::vector<at::Tensor> tensors_;
};

// Outside of operators, on the thread whose step it is: the tensor gets its value, and what may be written to is noted.
void before_raw_access(const c10::TensorImpl& tensor);
// The same where the program asks for a storage (untyped_storage()), through which, and through slices of it, it may write with no operator.
void before_storage_is_wrapped(const c10::StorageImpl* storage);

// What an access to a deferred storage gets that cannot be given its value first: on another thread, or past the tensor. Returns where that is for
// PyTorch's own error to say.
void refuse_raw_access_of_program(const c10::StorageImpl& storage);

// While it lives, has_storage() is asked by koila and means no access.
class NoRawAccess {
 public:
  NoRawAccess() : before_(std::exchange(active(), true)) {}
  ~NoRawAccess() { active() = before_; }
  NoRawAccess(const NoRawAccess&) = delete;
  NoRawAccess& operator=(const NoRawAccess&) = delete;
  static bool& active() { return is_active_; }

 private:
  KOILA_HOT static inline constinit thread_local bool is_active_ = false;
  const bool before_;
};

}  // namespace koila
