#include "shim/cupti/collector.h"

#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <mutex>

#include "runtime/log.h"
#include "runtime/runtime.h"
#include "shim/cupti/library.h"
#include "shim/cupti/unseen.h"
#include "shim/library_name.h"

namespace koila::cupti {

namespace detail {
std::atomic<bool> active{false};
}

namespace {

// Note [When CUPTI delivers]
// CUPTI hands over buffers that are full, from a thread of its own. Allocations are few, so a buffer of the usual size would be full never, and
// what is in it could only be had by a flush at exit, where CUDA and CUPTI may be gone. So a buffer takes one record, which fills it, and is
// handed over within the period; and whoever passes a hook asks for the rest now and then. At exit nothing is asked for: what CUPTI still has then
// is lost.
constexpr std::size_t kBufferBytes = 16 << 10;
constexpr std::size_t kRecordsPerBuffer = 1;
constexpr std::uint32_t kPeriodMilliseconds = 200;

struct State {
  Library cupti;
  bool has_source = false;
  std::atomic<std::int64_t> asked{0};  // when a hook last asked
  std::timed_mutex mutex;              // of unseen
  Unseen unseen;
};

// Leaked: CUPTI's thread may deliver to the very end.
State* state = nullptr;

std::int64_t now_milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// CUPTI calls these; nothing may be thrown over it.
template <class F>
void quietly(F f) noexcept {
  try {
    f();
  } catch (...) {
  }
}

void requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(alignof(MemoryRecord), kBufferBytes));
  *bytes = *buffer != nullptr ? kBufferBytes : 0;
  *max_records = kRecordsPerBuffer;
}

int place_of(const MemoryRecord& record) {
  if (record.memory == kPinned) return KOILA_PINNED;
  if (record.memory == kManaged || record.memory == kManagedStatic) return KOILA_MANAGED;
  return static_cast<int>(record.device_id);
}

void take(const MemoryRecord& record) {
  if (record.kind != kKindMemory2 || record.memory < kPinned || record.memory > kManagedStatic) return;
  if (record.operation == kRelease) return state->unseen.released(record.address);
  if (record.operation != kAllocation) return;
  const int place = place_of(record);
  if (!is_device(place)) return;
  const std::string library = state->has_source ? shim::library_name(record.source) : "";
  state->unseen.allocated(record.address, static_cast<std::int64_t>(record.bytes), place, library, /*hooked=*/library == "koila");
}

void completed(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) {
  quietly([&] {
    const std::lock_guard lock(state->mutex);
    MemoryRecord* record = nullptr;
    while (valid_bytes > 0 && state->cupti.cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == kSuccess && record != nullptr) take(*record);
  });
  std::free(buffer);
}

void nothing(void*, int, std::uint32_t, const void*) {}

// Whether CUPTI reports from here on; else why not.
bool begin(std::string& why) {
  const Library& cupti = state->cupti;
  Subscriber subscriber = nullptr;
  // Not for its callbacks: whoever holds the subscription is the one user of CUPTI in the process. A profiler that came first keeps it.
  if (const Result result = cupti.cuptiSubscribe(&subscriber, &nothing, nullptr); result != kSuccess) {
    why = result == kMultipleSubscribers ? "a profiler uses CUPTI in this process already" : cupti.text_of(result);
    return false;
  }
  Result result = cupti.cuptiActivityRegisterCallbacks(&requested, &completed);
  // Without the library's name, or with a delivery that comes late, there is still something to tell.
  if (result == kSuccess && cupti.cuptiActivityEnableAllocationSource != nullptr) state->has_source = cupti.cuptiActivityEnableAllocationSource(1) == kSuccess;
  if (result == kSuccess) cupti.cuptiActivityFlushPeriod(kPeriodMilliseconds);
  if (result == kSuccess) result = cupti.cuptiActivityEnable(kKindMemory2);
  if (result == kSuccess) return true;
  why = cupti.text_of(result);
  cupti.cuptiUnsubscribe(subscriber);
  return false;
}

// Runs before the report is written, for it was registered after that; and from here on no hook asks CUPTI any more.
void add_note() {
  quietly([] {
    const std::string note = describe();
    detail::active.store(false);
    if (!note.empty()) Runtime::get()->events().add_note(note);
  });
}

// CUDA does not go on in the child of a fork, and the lock may be another thread's there.
void stop_in_child() { detail::active.store(false); }

}  // namespace

void start() {
  static std::once_flag once;
  std::call_once(once, [] {
    quietly([] {
      std::string why;
      state = new State;
      if (!load(state->cupti, why) || !begin(why)) {
        log::write(KOILA_LOG_WARN, "KOILA_CUPTI has no effect: " + why);
        return;
      }
      detail::active.store(true);
      pthread_atfork(nullptr, nullptr, &stop_in_child);
      std::atexit(&add_note);
    });
  });
}

void detail::seen(std::uint64_t address) {
  quietly([&] {
    const std::lock_guard lock(state->mutex);
    state->unseen.seen(address);
  });
}

void detail::poll() {
  const std::int64_t now = now_milliseconds();
  std::int64_t asked = state->asked.load(std::memory_order_relaxed);
  if (now - asked < kPeriodMilliseconds || !state->asked.compare_exchange_strong(asked, now)) return;
  state->cupti.cuptiActivityFlushAll(0);
}

std::string describe() {
  if (!detail::active.load()) return "";
  // The process does not wait for a delivery that hangs.
  const std::unique_lock lock(state->mutex, std::chrono::milliseconds(100));
  return lock ? state->unseen.describe() : "by CUPTI: a delivery was under way at exit";
}

}  // namespace koila::cupti
