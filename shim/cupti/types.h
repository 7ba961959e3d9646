// As much of CUPTI as is called. The preload is built without CUPTI's headers, for whoever builds it need not have them, and what it runs beside is
// any CUPTI from 12 on; tests/cuda/cupti/layout_test.cc holds all this against the header.
#ifndef KOILA_SHIM_CUPTI_TYPES_H_
#define KOILA_SHIM_CUPTI_TYPES_H_

#include <cstddef>
#include <cstdint>

namespace koila::cupti {

// Enumerations by value; a newer CUPTI may answer with values that are not named here.
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kMultipleSubscribers = 39;

constexpr int kKindMemory2 = 49;

enum Operation : int { kAllocation = 1, kRelease = 2 };
enum RecordedMemory : int { kPinned = 2, kDevice = 3, kArray = 4, kManaged = 5, kDeviceStatic = 6, kManagedStatic = 7 };

// CUpti_ActivityMemory4. All but `source`, the last, is in CUpti_ActivityMemory3 as well, an older CUPTI's record: one that has
// cuptiActivityEnableAllocationSource has `source`.
struct __attribute__((packed, aligned(8))) MemoryRecord {
  int kind;
  int operation;  // Operation
  int memory;     // RecordedMemory
  std::uint32_t correlation_id;
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t timestamp;
  std::uint64_t program_counter;
  std::uint32_t process_id;
  std::uint32_t device_id;
  std::uint32_t context_id;
  std::uint32_t stream_id;
  const char* name;
  std::uint32_t is_async;
  std::uint32_t pad1;
  struct __attribute__((packed, aligned(8))) {
    int type;
    std::uint32_t pad2;
    std::uint64_t address;
    std::uint64_t release_threshold;
    std::uint64_t size;
    std::uint64_t utilized_size;
  } pool;
  const char* source;  // path of the library that asked; null when it cannot be told
};

using Subscriber = void*;
using Requested = void(std::uint8_t** buffer, std::size_t* bytes, std::size_t* max_records);
using Completed = void(void* context, std::uint32_t stream, std::uint8_t* buffer, std::size_t bytes, std::size_t valid_bytes);
using Callback = void(void* data, int domain, std::uint32_t id, const void* details);

}  // namespace koila::cupti

// Every function of CUPTI that is called: KOILA_CUPTI_FUNCTION(name, parameters).
#define KOILA_CUPTI_FUNCTIONS                                                                                                             \
  KOILA_CUPTI_FUNCTION(cuptiSubscribe, (koila::cupti::Subscriber * subscriber, koila::cupti::Callback * callback, void* data))            \
  KOILA_CUPTI_FUNCTION(cuptiUnsubscribe, (koila::cupti::Subscriber subscriber))                                                           \
  KOILA_CUPTI_FUNCTION(cuptiActivityRegisterCallbacks, (koila::cupti::Requested * requested, koila::cupti::Completed * completed))        \
  KOILA_CUPTI_FUNCTION(cuptiActivityEnable, (int kind))                                                                                   \
  KOILA_CUPTI_FUNCTION(cuptiActivityGetNextRecord, (std::uint8_t * buffer, std::size_t valid_bytes, koila::cupti::MemoryRecord * *record)) \
  KOILA_CUPTI_FUNCTION(cuptiActivityFlushPeriod, (std::uint32_t milliseconds))                                                            \
  KOILA_CUPTI_FUNCTION(cuptiActivityFlushAll, (std::uint32_t flag))                                                                       \
  KOILA_CUPTI_FUNCTION(cuptiGetResultString, (koila::cupti::Result result, const char** text))

// Not in every CUPTI from 12 on.
#define KOILA_CUPTI_OPTIONAL_FUNCTIONS KOILA_CUPTI_FUNCTION(cuptiActivityEnableAllocationSource, (std::uint8_t enable))

#endif  // KOILA_SHIM_CUPTI_TYPES_H_
