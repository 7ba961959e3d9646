// The types that shim/cupti/types.h copies, held against CUPTI's header.
#include <cupti.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "shim/cupti/types.h"

namespace koila::cupti {
namespace {

#define SAME(ours, theirs)                                                                              \
  static_assert(offsetof(MemoryRecord, ours) == offsetof(CUpti_ActivityMemory4, theirs), #ours);        \
  static_assert(sizeof(MemoryRecord::ours) == sizeof(CUpti_ActivityMemory4::theirs), #ours)

SAME(kind, kind);
SAME(operation, memoryOperationType);
SAME(memory, memoryKind);
SAME(correlation_id, correlationId);
SAME(address, address);
SAME(bytes, bytes);
SAME(timestamp, timestamp);
SAME(program_counter, PC);
SAME(process_id, processId);
SAME(device_id, deviceId);
SAME(context_id, contextId);
SAME(stream_id, streamId);
SAME(name, name);
SAME(is_async, isAsync);
SAME(pool, memoryPoolConfig);
SAME(pool.utilized_size, memoryPoolConfig.utilizedSize);
SAME(source, source);
#undef SAME
static_assert(sizeof(MemoryRecord) == sizeof(CUpti_ActivityMemory4));
static_assert(alignof(MemoryRecord) == alignof(CUpti_ActivityMemory4));

// What is read of a record before `source` came is where it was.
static_assert(offsetof(MemoryRecord, source) == sizeof(CUpti_ActivityMemory3));
static_assert(offsetof(CUpti_ActivityMemory3, bytes) == offsetof(MemoryRecord, bytes));
static_assert(offsetof(CUpti_ActivityMemory3, deviceId) == offsetof(MemoryRecord, device_id));

static_assert(kSuccess == CUPTI_SUCCESS);
static_assert(kMultipleSubscribers == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
static_assert(kKindMemory2 == CUPTI_ACTIVITY_KIND_MEMORY2);
static_assert(kAllocation == int{CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION});
static_assert(kRelease == int{CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE});
static_assert(kPinned == int{CUPTI_ACTIVITY_MEMORY_KIND_PINNED});
static_assert(kDevice == int{CUPTI_ACTIVITY_MEMORY_KIND_DEVICE});
static_assert(kArray == int{CUPTI_ACTIVITY_MEMORY_KIND_ARRAY});
static_assert(kManaged == int{CUPTI_ACTIVITY_MEMORY_KIND_MANAGED});
static_assert(kDeviceStatic == int{CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC});
static_assert(kManagedStatic == int{CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC});

// Enumerations are passed as int, and whatever a pointer points to.
template <class T>
constexpr std::size_t passed = sizeof(T);
template <>
constexpr std::size_t passed<void> = 0;
template <class>
struct Sizes;
template <class R, class... P>
struct Sizes<R(P...)> {
  static constexpr std::size_t count = sizeof...(P);
  static constexpr std::size_t size[] = {passed<R>, passed<P>...};
};
template <class A, class B>
constexpr bool same_call() {
  if (Sizes<A>::count != Sizes<B>::count) return false;
  for (std::size_t i = 0; i <= Sizes<A>::count; ++i) {
    if (Sizes<A>::size[i] != Sizes<B>::size[i]) return false;
  }
  return true;
}
#define KOILA_CUPTI_FUNCTION(name, parameters) static_assert(same_call<Result parameters, decltype(::name)>(), #name);
KOILA_CUPTI_FUNCTIONS
KOILA_CUPTI_OPTIONAL_FUNCTIONS
#undef KOILA_CUPTI_FUNCTION
static_assert(same_call<Requested, std::remove_pointer_t<CUpti_BuffersCallbackRequestFunc>>());
static_assert(same_call<Completed, std::remove_pointer_t<CUpti_BuffersCallbackCompleteFunc>>());
static_assert(same_call<Callback, std::remove_pointer_t<CUpti_CallbackFunc>>());

TEST(CuptiLayout, IsTheHeaders) {}  // it compiled

}  // namespace
}  // namespace koila::cupti
