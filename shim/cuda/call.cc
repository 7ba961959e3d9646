#include "shim/cuda/call.h"

#include <dlfcn.h>

#include <atomic>
#include <string>

#include "runtime/cabi.h"
#include "shim/cupti/collector.h"
#include "shim/library_name.h"
#include "shim/resolve.h"

namespace koila::cuda {

namespace {

constexpr const char* kNames[] = {
#define KOILA_CUDA(name, parameters) #name,
#include "shim/cuda/functions.inc"
#undef KOILA_CUDA
    "cudaGetDevice",
    "cudaGetDevice",
};
static_assert(std::size(kNames) == kFunctions);

// Call sites by address and function, for ever. There is no lock: the child of a fork may come here, where another thread was at it.
class CallSites {
 public:
  const CallSite* find(Function function, const void* caller) {
    for (std::size_t i = first(function, caller);; i = (i + 1) % kSize) {
      const CallSite* site = sites_[i].load(std::memory_order_acquire);
      if (site == nullptr) return add(function, caller);
      if (site->caller == caller && site->function == function) return site;
    }
  }

 private:
  static constexpr std::size_t kSize = 4096;

  static std::size_t first(Function function, const void* caller) {
    return static_cast<std::size_t>((reinterpret_cast<std::uintptr_t>(caller) * 31 + function) * 0x9e3779b97f4a7c15U >> 52);
  }

  const CallSite* add(Function function, const void* caller) {
    const CallSite* made = make(function, caller);
    if (used_.load(std::memory_order_relaxed) > kSize / 2) return made;  // of generated code without end, each call site is looked up at each call
    for (std::size_t i = first(function, caller);; i = (i + 1) % kSize) {
      const CallSite* site = nullptr;
      if (sites_[i].compare_exchange_strong(site, made, std::memory_order_acq_rel, std::memory_order_acquire)) {
        used_.fetch_add(1, std::memory_order_relaxed);
        return made;
      }
      if (site->caller == caller && site->function == function) return site;
    }
  }

  static const CallSite* make(Function function, const void* caller) {
    auto* site = new CallSite;  // never freed, for calls may come from anywhere to the very end
    site->caller = caller;
    site->function = function;
    site->real = shim::find_real_for(kNames[function], "libcudart", caller);
    shim::keep_loaded(site->real);
    const auto beside = [&](Function other) { return shim::find_beside(site->real, kNames[other]); };
    site->get_device = beside(k_cudaGetDevice);
    site->malloc = beside(k_cudaMalloc);
    site->mem_get_info = beside(k_cudaMemGetInfo);
    Dl_info info;
    const bool in_library = dladdr(caller, &info) != 0 && !shim::is_program(info.dli_fbase);
    std::string library = in_library ? shim::library_name(info.dli_fname) : "";
    if (library.empty()) library = "program";
    site->is_torch = library == "c10_cuda";
    if (Runtime* runtime = Runtime::get(); runtime != nullptr) {
      for (int kind = 0; kind < kMemoryKinds; ++kind) site->sources[kind] = runtime->device_memory().source(static_cast<MemoryKind>(kind), library);
    }
    return site;
  }

  std::atomic<const CallSite*> sites_[kSize] = {};
  std::atomic<std::size_t> used_{0};
};

CallSites call_sites;

// Calls under way on this thread. Not to be allocated on first use: the allocator may be what is being hooked.
__attribute__((tls_model("initial-exec"))) thread_local int depth = 0;

// What is to begin when the program uses CUDA for the first time, the books being open. It may come back to the hooks.
void on_first_cuda(const Runtime& runtime) {
  if (!runtime.wants_cupti()) return;
  ++depth;
  cupti::start();
  --depth;
}

// Both are of the first call; the flags spare the others the look behind them.
std::atomic<bool> is_started{false}, is_open{false};

// Null in a process that koila stays out of.
Runtime* started_runtime() {
  if (!is_started.load(std::memory_order_acquire)) {
    start_runtime();
    is_started.store(true, std::memory_order_release);
  }
  return Runtime::get();
}

void open_books(Runtime& runtime) {
  if (is_open.load(std::memory_order_acquire)) return;
  runtime.keep_books();
  if (!is_open.exchange(true, std::memory_order_acq_rel)) on_first_cuda(runtime);
}

}  // namespace

Call::Call(Function function, const void* caller) {
  Runtime* runtime = started_runtime();
  site_ = call_sites.find(function, caller);
  // A program may ask for these functions by name where no CUDA runtime is.
  if (depth++ > 0 || runtime == nullptr || site_->real == nullptr) return;
  open_books(*runtime);
  runtime_ = runtime;
  cupti::poll();
}

Call::~Call() { --depth; }

int Call::device() const {
  int device = 0;
  if (site_->get_device == nullptr || reinterpret_cast<cudaGetDevice_t*>(site_->get_device)(&device) != kSuccess) return 0;
  return device;
}

void Call::meet(int device) const {
  runtime_->meet_device(device, [&] {
    std::size_t free = 0, total = 0;
    return memory(free, total) ? static_cast<std::int64_t>(total) : 0;
  });
}

bool Call::memory(std::size_t& free, std::size_t& total) const {
  return site_->mem_get_info != nullptr && reinterpret_cast<cudaMemGetInfo_t*>(site_->mem_get_info)(&free, &total) == kSuccess;
}

Error Call::fail_for_real() const {
  void* nothing = nullptr;
  if (site_->function == k_driver) return kOutOfMemory;  // the driver has no last error
  if (site_->malloc != nullptr) reinterpret_cast<cudaMalloc_t*>(site_->malloc)(&nothing, std::size_t{1} << 60);
  return kOutOfMemory;
}

}  // namespace koila::cuda
