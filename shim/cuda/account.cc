#include "shim/cuda/account.h"

#include <algorithm>

#include "runtime/cuda_use.h"
#include "shim/cupti/collector.h"

namespace koila::cuda {

namespace {

// Note [Allocations that are made to fail]
// A caching allocator whose request fails empties its cache and asks once more. For a failure on purpose (KOILA_INJECT_OOM) to come out as an
// out-of-memory, the same request by the same thread fails twice. Who allocates from a pool (PyTorch's backend:cudaMallocAsync) does not ask once more: there the next
// request of that size would be another one.
struct Failed {
  int place = 0;
  std::size_t bytes = 0;
  bool armed = false;
};
__attribute__((tls_model("initial-exec"))) thread_local Failed failed;

bool fails_again(int place, std::size_t bytes) {
  const bool again = failed.armed && failed.place == place && failed.bytes == bytes;
  failed.armed = false;
  return again;
}

}  // namespace

bool reserve(const Call& call, int place, std::size_t bytes, bool asks_again) {
  Runtime& runtime = call.runtime();
  if (place >= 0) call.meet(place);
  const bool again = fails_again(place, bytes);
  const int refused = again ? 2 : runtime.hold(place, static_cast<std::int64_t>(bytes));
  if (refused == 0) return true;
  if (refused == 2 && !again && asks_again) failed = {place, bytes, true};
  runtime.on_pressure(place);
  return false;
}

void cancel(const Call& call, int place, std::size_t bytes, Error error) {
  call.runtime().device_memory().cancel(place, static_cast<std::int64_t>(bytes));
  if (error != kOutOfMemory) return;
  call.runtime().on_pressure(place);
  std::size_t free = 0, total = 0;
  if (place >= 0 && call.memory(free, total)) call.runtime().on_used(place, static_cast<std::int64_t>(total - free));
}

void settle(const Call& call, MemoryKind kind, int place, std::size_t asked, std::size_t given, const void* address) {
  if (place >= 0 && call.is_torch()) note_torch_uses_cuda();
  cupti::seen(address);
  call.runtime().device_memory().add(reinterpret_cast<std::uintptr_t>(address),
                                     {static_cast<std::int64_t>(given), static_cast<std::int16_t>(place), call.source(kind)},
                                     static_cast<std::int64_t>(asked));
}

void lower_to_budget(const Call& call, int device, std::size_t* free, std::size_t* total) {
  if (!is_device(device) || free == nullptr || total == nullptr) return;
  call.meet(device);
  call.runtime().on_used(device, static_cast<std::int64_t>(*total - *free));
  const Account& account = call.runtime().ledger().of(device);
  if (account.budget() == 0) return;
  const auto budget = static_cast<std::size_t>(account.budget());
  const auto live = static_cast<std::size_t>(std::max<std::int64_t>(0, account.live()));
  *free = std::min(*free, budget > live ? budget - live : 0);
  *total = std::min(*total, budget);
}

}  // namespace koila::cuda
