#include "torchglue/memory/cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <malloc.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "runtime/fork_lock.h"
#include "torchglue/memory/before_free.h"
#include "torchglue/memory/cuda_allocator.h"
#include "torchglue/memory/origin.h"
#include "torchglue/memory/outside.h"
#include "torchglue/oom/allocation_failure.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

std::string human(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", b / (int64_t{1} << 30));
  if (bytes >= int64_t{1} << 20) return fmt::format("{:.2f} MiB", b / (int64_t{1} << 20));
  return fmt::format("{:.1f} KiB", b / 1024);
}

// Note [Where the size is kept]
// A deleter gets one pointer, and needs the size to give it back; and PyTorch's raw_allocate() demands that this pointer is the data
// itself. So the size stands in the last bytes of the block. (In front of the data it would have to be 64 bytes, for the alignment, and large
// tensors would touch a page more each.)
constexpr size_t kTrailer = sizeof(size_t);

char* trailer_of(void* block) { return static_cast<char*>(block) + ::malloc_usable_size(block) - kTrailer; }

// What was served from outside, by its address: the size is not in it. Who asks raw_allocate() gives an address back, and nothing else.
class Served {
 public:
  void add(at::DataPtr memory) {
    const std::lock_guard lock(mutex_);
    count_.fetch_add(1, std::memory_order_relaxed);
    void* data = memory.get();
    memory_.insert_or_assign(data, std::move(memory));
  }
  // False when it is none of them.
  bool remove(void* data) {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    at::DataPtr memory;
    const std::lock_guard lock(mutex_);
    const auto found = memory_.find(data);
    if (found == memory_.end()) return false;
    memory = std::move(found->second);
    memory_.erase(found);
    count_.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }

 private:
  std::atomic<int64_t> count_{0};
  ForkLock mutex_;
  std::unordered_map<void*, at::DataPtr> memory_;
};

Served& served() {
  static auto* served = new Served;  // never destroyed: tensors may outlive static destruction
  return *served;
}

void free_counted(void* data) {
  if (data == nullptr) return;
  tell_before_free(data);
  if (served().remove(data)) return;
  size_t bytes = 0;
  std::memcpy(&bytes, trailer_of(data), sizeof bytes);
  c10::profiledCPUMemoryReporter().Delete(data);
  session().runtime->give_back(KOILA_CPU, reinterpret_cast<uintptr_t>(data), bytes);
  c10::free_cpu(data);
}

class CountedCpuAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      Session& s = session();
      const koila_runtime* runtime = s.runtime;
      if (s.meets_cuda()) attach_cuda_allocator();  // where only accounts are kept, no operator comes by
      int tries = 0;
      for (int refused; (refused = runtime->reserve(KOILA_CPU, bytes)) != 0;) {
        const Offload::Answer answer = s.offload.ask(KOILA_CPU, bytes, refused == kOnPurpose && tries++ < 2);
        if (answer == Offload::Answer::kTryAgain) continue;
        if (answer == Offload::Answer::kServe) {
          if (at::DataPtr outside = serve_from_outside(bytes)) return outside;
        }
        fail(bytes, refused);
      }
      try {
        data = c10::alloc_cpu(bytes + kTrailer);
      } catch (...) {
        runtime->release(KOILA_CPU, bytes);
        note_allocation_failure({KOILA_CPU, static_cast<int64_t>(bytes), runtime->live_bytes(KOILA_CPU)});
        throw;
      }
      std::memcpy(trailer_of(data), &bytes, sizeof bytes);
      c10::profiledCPUMemoryReporter().New(data, bytes);  // as PyTorch's own allocator does
      runtime->on_tensor(KOILA_CPU, reinterpret_cast<uintptr_t>(data), static_cast<int64_t>(bytes), origin_now(/*with_place=*/true));
    }
    return {data, data, &free_counted, at::Device(at::kCPU)};
  }

  at::DeleterFnPtr raw_deleter() const override { return &free_counted; }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr int kOnPurpose = 2;  // see koila_runtime::reserve

  // See Note [Serving from outside]. Null: there is no room outside either.
  static at::DataPtr serve_from_outside(size_t bytes) {
    try {
      at::DataPtr memory = allocate_outside(bytes, at::kCPU);
      void* data = memory.get();
      served().add(std::move(memory));
      session().offload.served(KOILA_CPU, bytes);
      return {data, data, &free_counted, at::Device(at::kCPU)};
    } catch (const c10::OutOfMemoryError&) {
      return {nullptr, at::Device(at::kCPU)};
    }
  }

  [[noreturn]] static void fail(size_t bytes, int refused) {
    const koila_runtime* runtime = session().runtime;
    const int64_t live = runtime->live_bytes(KOILA_CPU);
    note_allocation_failure({KOILA_CPU, static_cast<int64_t>(bytes), live});
    c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
    if (refused == kOnPurpose) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CPU out of memory. Tried to allocate ", human(static_cast<int64_t>(bytes)),
                       " (made to fail by KOILA_INJECT_OOM); ", human(live), " are in use.");
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CPU out of memory. Tried to allocate ", human(static_cast<int64_t>(bytes)), "; ", human(live),
                     " of the budget of ", human(runtime->budget_bytes(KOILA_CPU)), " (KOILA_CPU_MEMORY) are in use.");
  }
};

}  // namespace

void install_cpu_allocator() {
  static auto* allocator = new CountedCpuAllocator;  // never destroyed: tensors may outlive static destruction
  c10::SetCPUAllocator(allocator, /*priority=*/100);
}

}  // namespace koila
