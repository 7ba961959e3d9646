#include "torchglue/memory/cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <malloc.h>

#include <cstring>
#include <string>

#include "torchglue/memory/allocation_failure.h"
#include "torchglue/memory/cuda_allocator.h"
#include "torchglue/memory/outside.h"
#include "torchglue/session.h"

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

void free_counted(void* data) {
  if (data == nullptr) return;
  size_t bytes = 0;
  std::memcpy(&bytes, trailer_of(data), sizeof bytes);
  session().runtime->release(KOILA_CPU, bytes);
  c10::free_cpu(data);
}

class CountedCpuAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      const koila_runtime* runtime = session().runtime;
      if (session().meets_cuda()) attach_cuda_allocator();  // where only accounts are kept, no operator comes by
      int tries = 0;
      for (int refused; (refused = runtime->reserve(KOILA_CPU, bytes)) != 0;) {
        const Offload::Answer answer = session().offload.ask(KOILA_CPU, bytes, refused == kOnPurpose && tries++ < 2);
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
      return allocate_outside(bytes, at::kCPU);
    } catch (const c10::OutOfMemoryError&) {
      return {nullptr, at::Device(at::kCPU)};
    }
  }

  [[noreturn]] static void fail(size_t bytes, int refused) {
    const koila_runtime* runtime = session().runtime;
    const int64_t live = runtime->live_bytes(KOILA_CPU);
    note_allocation_failure({KOILA_CPU, static_cast<int64_t>(bytes), live});
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
