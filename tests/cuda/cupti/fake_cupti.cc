// A CUPTI for tests: it delivers the records that a test gives it, from a thread of its own as the real one does, or refuses as FAKE_CUPTI says:
// "subscribed" (another subscriber), "no_device" (subscribing fails), "no_memory2" (the activity cannot be enabled).
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shim/cupti/types.h"

using namespace koila::cupti;

namespace {

std::mutex mutex;
Requested* requested = nullptr;
Completed* completed = nullptr;
bool enabled = false;
int subscribers = 0, unsubscribed = 0, flushes = 0, source_asked = 0;
std::vector<MemoryRecord> waiting;

bool told(const char* what) {
  const char* mode = std::getenv("FAKE_CUPTI");
  return mode != nullptr && std::strcmp(mode, what) == 0;
}

void deliver() {
  std::vector<MemoryRecord> records;
  {
    const std::lock_guard lock(mutex);
    records.swap(waiting);
  }
  for (std::size_t next = 0; next < records.size();) {
    std::uint8_t* buffer = nullptr;
    std::size_t bytes = 0, most = 0;
    requested(&buffer, &bytes, &most);
    if (buffer == nullptr) return;
    std::size_t count = 0;
    while (next < records.size() && (count + 1) * sizeof(MemoryRecord) <= bytes && (most == 0 || count < most)) {
      std::memcpy(buffer + count++ * sizeof(MemoryRecord), &records[next++], sizeof(MemoryRecord));
    }
    completed(nullptr, 0, buffer, bytes, count * sizeof(MemoryRecord));
  }
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API Result cuptiSubscribe(Subscriber* subscriber, Callback*, void*) {
  if (told("subscribed")) return kMultipleSubscribers;
  if (told("no_device")) return 15;
  *subscriber = &subscribers;
  ++subscribers;
  return kSuccess;
}
API Result cuptiUnsubscribe(Subscriber) {
  ++unsubscribed;
  return kSuccess;
}
API Result cuptiActivityRegisterCallbacks(Requested* r, Completed* c) {
  requested = r;
  completed = c;
  return kSuccess;
}
API Result cuptiActivityEnable(int kind) {
  if (told("no_memory2") || kind != kKindMemory2) return 21;
  enabled = true;
  return kSuccess;
}
API Result cuptiActivityEnableAllocationSource(std::uint8_t enable) {
  source_asked = enable;
  return kSuccess;
}
API Result cuptiActivityFlushPeriod(std::uint32_t) { return kSuccess; }
API Result cuptiActivityFlushAll(std::uint32_t) {
  ++flushes;
  std::thread(deliver).join();
  return kSuccess;
}
// The record last given out is known by its address, as in the real one.
API Result cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid_bytes, MemoryRecord** record) {
  std::uint8_t* next = *record == nullptr ? buffer : reinterpret_cast<std::uint8_t*>(*record) + sizeof(MemoryRecord);
  if (next + sizeof(MemoryRecord) > buffer + valid_bytes) return 12;
  *record = reinterpret_cast<MemoryRecord*>(next);
  return kSuccess;
}
API Result cuptiGetResultString(Result result, const char** text) {
  *text = result == 15 ? "CUPTI_ERROR_NOT_INITIALIZED" : result == 21 ? "CUPTI_ERROR_INVALID_KIND" : "CUPTI_ERROR_OTHER";
  return kSuccess;
}

// What tests call.
API void fake_cupti_record(const MemoryRecord* record) {
  const std::lock_guard lock(mutex);
  if (enabled) waiting.push_back(*record);
}
API void fake_cupti_deliver() { std::thread(deliver).join(); }
API int fake_cupti_flushes() { return flushes; }
API int fake_cupti_held() { return subscribers - unsubscribed; }
API int fake_cupti_source_asked() { return source_asked; }
