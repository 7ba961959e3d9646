// The account of tensors' memory, block by block: what each is for, what made it, and what was alive when the most was.
//
// Thread-safe. A block comes and goes at the cost of a look-up under a spin lock and a few additions; the rest is done once a step, or after a new
// peak, when as many blocks have gone as are alive.
#ifndef KOILA_RUNTIME_TENSOR_BOOK_H_
#define KOILA_RUNTIME_TENSOR_BOOK_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/leaks.h"
#include "runtime/ledger.h"
#include "runtime/names.h"
#include "runtime/pointer_table.h"
#include "runtime/report/data.h"

namespace koila {

// Note [What a block is for]
// When a block comes, all that is known is what the program is doing (koila_when); much of the rest shows later:
//   parameters       leaves of a graph, when its backward pass begins; made long before
//   gradients        what a backward pass makes in the size of a parameter, and what is a leaf's .grad at its end
//   optimizer state  what an optimizer's step() made and is alive when the next backward pass begins. Programs whose optimizers do not say that they are
//                    at work (LibTorch's): what was made without a graph after a backward pass, in the size of a parameter
//   inputs           what is made in a step before its graph begins; of the first step, where that cannot be told from what the program goes on to keep,
//                    what is gone when the second backward pass begins
// A block moves to its category when that is known, and in what is noted of the peak it moves as well, if it was alive then.

class TensorBook {
 public:
  // `trace`: to keep the latest kMaxTrace comings and goings, for trace().
  // In the child of a fork it takes the place of the parent's, whose locks may be held for ever: the numbers of names stay, and nothing else.
  explicit TensorBook(bool trace = false, const TensorBook* parents = nullptr)
      : keeps_trace_(trace), ops_(60'000, parents ? &parents->ops_ : nullptr), places_(60'000, parents ? &parents->places_ : nullptr) {}

  Names& ops() { return ops_; }
  Names& places() { return places_; }

  // `device`: KOILA_CPU or a CUDA ordinal; others, and addresses that are known already, are left out.
  void add(int device, std::uintptr_t address, std::int64_t bytes, const koila_origin& origin);
  // Nothing when it is none of the book's.
  void remove(int device, std::uintptr_t address);

  // The block is one of this category. Nothing when it is none of the book's.
  void set_category(std::uintptr_t address, koila_category category);
  // A backward pass begins: what the update before it made, and is still alive, is state. See Note [What a block is for].
  void begin_backward();
  // A backward pass is over.
  void end_step() { step_.fetch_add(1, std::memory_order_relaxed); }

  CategoryBytes live(int device) const;
  // What the update under way made and is alive, before it is known to be state.
  std::int64_t made_by_update(int device) const { return is_tensor_device(device) ? of(device).unsettled.load(std::memory_order_relaxed) : 0; }

  // What is alive on a device, the largest first.
  std::vector<Holder> holders(int device);
  // What is alive, by kind and by the step that made it.
  std::vector<SurvivorGroup> survivors();
  // Addresses of what a leak is made of, the latest first.
  std::vector<std::uintptr_t> addresses(const Leak& leak, std::size_t at_most);

  // What was alive at the peak of a device: the categories and the holders are of one moment, and add up to its bytes.
  struct Peak {
    std::int64_t bytes = 0;
    CategoryBytes by_category = {};
    std::int64_t step = 0;
    std::chrono::steady_clock::time_point at;
    std::vector<Holder> holders;
  };
  Peak peak(int device, bool with_holders = true);

  std::vector<LiveBlock> blocks();
  // Times count from `started`.
  std::vector<TraceEvent> trace(std::chrono::steady_clock::time_point started) const;

 private:
  struct Tensor {
    std::int64_t bytes = 0;
    std::int64_t step = 0;
    std::int64_t number = 0;  // in the order in which they came
    std::uint32_t place = 0;
    std::uint16_t op = 0;
    std::int8_t device = KOILA_CPU;
    std::uint8_t category = KOILA_OTHER;
    std::uint8_t when = KOILA_SETUP;
  };
  // The figures are written under the lock, and read at any time.
  struct alignas(64) Holdings {
    SpinLock lock;
    std::atomic<bool> listed{true};          // the peak's holders are known
    std::atomic<std::int64_t> came{0};       // blocks, so far
    std::atomic<std::int64_t> live{0};
    std::atomic<std::int64_t> by_category[KOILA_CATEGORIES] = {};
    std::atomic<std::int64_t> unsettled{0};  // what updates made, not yet known to be state
    std::atomic<std::int64_t> highest{0};
    std::atomic<std::int64_t> blocks{0};     // that are alive
    Peak peak;
    std::int64_t peak_number = 0;  // blocks up to that number had come
    std::vector<Tensor> freed;     // of these, until the holders are listed: what went since
  };
  struct Traced {
    std::chrono::steady_clock::time_point at;
    std::uintptr_t address = 0;
    std::int64_t bytes = 0;
    std::uint32_t place = 0;
    std::uint16_t op = 0;
    std::int8_t device = KOILA_CPU;
    std::uint8_t category = KOILA_OTHER;
    bool alloc = true;
  };

  static constexpr int kDevices = kCudaDevices + 1;
  static bool is_tensor_device(int device) { return device >= KOILA_CPU && device < kCudaDevices; }
  Holdings& of(int device) { return holdings_[device - KOILA_CPU]; }
  const Holdings& of(int device) const { return holdings_[device - KOILA_CPU]; }

  koila_category category_of_new(const koila_origin& origin, std::int64_t bytes) const;
  bool is_parameter_size(std::int64_t bytes) const;
  void add_parameter_size(std::int64_t bytes);
  // Made in an update, or beside one, and not yet told from state.
  static bool is_unsettled(const Tensor& tensor) { return tensor.category == KOILA_WORKSPACE && tensor.when >= KOILA_IN_OPTIMIZER; }
  // Under the lock: the block came, or went (-1).
  static void count(Holdings& holdings, const Tensor& tensor, std::int64_t sign);
  void move(Tensor& tensor, koila_category to);
  void raise_peak(Holdings& holdings, std::int64_t live);  // under the lock
  void keep_freed(int device, Holdings& holdings, const Tensor& tensor);
  void list_holders(int device, Holdings& holdings);
  std::vector<Holder> by_kind(const std::vector<Tensor>& tensors) const;
  void move_in_peak(Holdings& holdings, const Tensor& tensor, koila_category to);
  void add_trace(const Tensor& tensor, std::uintptr_t address, bool alloc);

  const bool keeps_trace_;
  Names ops_;
  Names places_;
  PointerTable<Tensor> tensors_;
  Holdings holdings_[kDevices];
  std::atomic<std::int64_t> step_{0};
  std::atomic<std::int64_t> backward_passes_{0};  // that have begun

  std::mutex sizes_mutex_;  // of making another list
  std::atomic<const std::vector<std::int64_t>*> parameter_sizes_{nullptr};  // sorted; never freed, since it may be read at any time

  mutable std::mutex trace_mutex_;
  std::vector<Traced> trace_;  // a ring
  std::size_t trace_next_ = 0;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_TENSOR_BOOK_H_
