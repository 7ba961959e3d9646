#include "tests/cuda/sim/streams.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <unordered_map>

#include "tests/cuda/sim/devices.h"

namespace sim {
namespace {

constexpr int greatest_priority = -5;
constexpr int least_priority = 0;

struct Stream {
  int device = 0;
  int priority = 0;
  unsigned flags = 0;
  unsigned long long id = 0;
};

struct Event {
  unsigned flags = 0;
  bool recorded = false;
  std::chrono::steady_clock::time_point at;
};

struct Queues {
  std::mutex mutex;
  unsigned long long streams_made = 2;
  std::unordered_map<cudaStream_t, std::unique_ptr<Stream>> streams;
  std::unordered_map<cudaEvent_t, std::unique_ptr<Event>> events;

  // The default streams, of the process and of the thread, belong to the current device.
  const Stream* find(cudaStream_t handle) {
    static const Stream defaults;
    if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) return &defaults;
    auto found = streams.find(handle);
    return found == streams.end() ? nullptr : found->second.get();
  }

  Event* find(cudaEvent_t handle) {
    auto found = events.find(handle);
    return found == events.end() ? nullptr : found->second.get();
  }
};

Queues& queues() {
  static Queues& leaked = *new Queues;
  return leaked;
}

cudaError_t check(cudaStream_t stream) {
  const std::lock_guard lock(queues().mutex);
  return queues().find(stream) != nullptr ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t check(cudaEvent_t event) {
  const std::lock_guard lock(queues().mutex);
  return queues().find(event) != nullptr ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t make(cudaStream_t* out, unsigned flags, int priority) {
  if (out == nullptr) return cudaErrorInvalidValue;
  int device;
  if (const cudaError_t error = use_device(&device)) return error;
  const std::lock_guard lock(queues().mutex);
  auto stream = std::make_unique<Stream>();
  *stream = {device, std::clamp(priority, greatest_priority, least_priority), flags, ++queues().streams_made};
  *out = reinterpret_cast<cudaStream_t>(stream.get());
  queues().streams.emplace(*out, std::move(stream));
  return cudaSuccess;
}

cudaError_t make(cudaEvent_t* out, unsigned flags) {
  if (out == nullptr) return cudaErrorInvalidValue;
  int device;
  if (const cudaError_t error = use_device(&device)) return error;
  const std::lock_guard lock(queues().mutex);
  auto event = std::make_unique<Event>();
  event->flags = flags;
  *out = reinterpret_cast<cudaEvent_t>(event.get());
  queues().events.emplace(*out, std::move(event));
  return cudaSuccess;
}

cudaError_t record(cudaEvent_t handle, cudaStream_t stream) {
  const std::lock_guard lock(queues().mutex);
  Event* event = queues().find(handle);
  if (event == nullptr || queues().find(stream) == nullptr) return cudaErrorInvalidResourceHandle;
  event->recorded = true;
  event->at = std::chrono::steady_clock::now();
  return cudaSuccess;
}

// Asks one thing of a stream.
template <typename T, typename Ask>
cudaError_t ask(cudaStream_t handle, T* out, Ask&& ask) {
  if (out == nullptr) return cudaErrorInvalidValue;
  const std::lock_guard lock(queues().mutex);
  const Stream* stream = queues().find(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  *out = ask(*stream);
  return cudaSuccess;
}

}  // namespace

std::size_t live_streams() {
  const std::lock_guard lock(queues().mutex);
  return queues().streams.size();
}

std::size_t live_events() {
  const std::lock_guard lock(queues().mutex);
  return queues().events.size();
}

void forget_streams_and_events() {
  const std::lock_guard lock(queues().mutex);
  queues().streams.clear();
  queues().events.clear();
}

}  // namespace sim

using namespace sim;

SIM_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  SIM_CALL();
  if (least != nullptr) *least = least_priority;
  if (greatest != nullptr) *greatest = greatest_priority;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  SIM_CALL();
  return result(make(stream, cudaStreamDefault, 0));
}

SIM_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  SIM_CALL();
  return result(make(stream, flags, 0));
}

SIM_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  SIM_CALL();
  return result(make(stream, flags, priority));
}

SIM_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  SIM_CALL();
  const std::lock_guard lock(queues().mutex);
  return result(queues().streams.erase(stream) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

SIM_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  SIM_CALL();
  return result(check(stream));
}

SIM_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  SIM_CALL();
  return result(check(stream));
}

SIM_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  SIM_CALL();
  if (const cudaError_t error = check(stream)) return result(error);
  return result(check(event));
}

SIM_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  SIM_CALL();
  return result(ask(stream, priority, [](const Stream& s) { return s.priority; }));
}

SIM_EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags) {
  SIM_CALL();
  return result(ask(stream, flags, [](const Stream& s) { return s.flags; }));
}

SIM_EXPORT cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  SIM_CALL();
  return result(ask(stream, id, [](const Stream& s) { return s.id; }));
}

SIM_EXPORT cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  SIM_CALL();
  int current;
  if (const cudaError_t error = use_device(&current)) return result(error);
  return result(ask(stream, device, [current](const Stream& s) { return s.id == 0 ? current : s.device; }));
}

// A capture records nothing, and the stream does not say that it is under way: work is done at once all the same.
SIM_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  SIM_CALL();
  unsigned long long id;
  return result(ask(stream, &id, [](const Stream& s) { return s.id; }));
}

SIM_EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t, const cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                     cudaStreamCaptureMode) {
  SIM_CALL();
  unsigned long long id;
  return result(ask(stream, &id, [](const Stream& s) { return s.id; }));
}

SIM_EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  SIM_CALL();
  return result(ask(stream, graph, [](const Stream&) { return cudaGraph_t{}; }));
}

SIM_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  SIM_CALL();
  return result(ask(stream, status, [](const Stream&) { return cudaStreamCaptureStatusNone; }));
}

SIM_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t*,
                                                const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  SIM_CALL();
  if (id != nullptr) *id = 0;
  return result(ask(stream, status, [](const Stream&) { return cudaStreamCaptureStatusNone; }));
}

SIM_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  SIM_CALL();
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  if (mode == nullptr) return result(cudaErrorInvalidValue);
  std::swap(*mode, current);
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  SIM_CALL();
  if (function == nullptr) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = check(stream)) return result(error);
  function(data);
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned int) {
  SIM_CALL();
  if (callback == nullptr) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = check(stream)) return result(error);
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) {
  SIM_CALL();
  return result(make(event, cudaEventDefault));
}

SIM_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  SIM_CALL();
  return result(make(event, flags));
}

SIM_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  SIM_CALL();
  const std::lock_guard lock(queues().mutex);
  return result(queues().events.erase(event) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

SIM_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  SIM_CALL();
  return result(record(event, stream));
}

SIM_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  SIM_CALL();
  return result(record(event, stream));
}

SIM_EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  SIM_CALL();
  return result(check(event));
}

SIM_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  SIM_CALL();
  return result(check(event));
}

SIM_EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  SIM_CALL();
  const std::lock_guard lock(queues().mutex);
  const Event* first = queues().find(start);
  const Event* last = queues().find(end);
  for (const Event* event : {first, last}) {
    if (event == nullptr || !event->recorded || (event->flags & cudaEventDisableTiming) != 0) return result(cudaErrorInvalidResourceHandle);
  }
  if (milliseconds == nullptr) return result(cudaErrorInvalidValue);
  *milliseconds = std::chrono::duration<float, std::milli>(last->at - first->at).count();
  return cudaSuccess;
}

SIM_TWIN(cudaStreamQuery_ptsz, cudaStreamQuery, (cudaStream_t stream), (stream))
SIM_TWIN(cudaStreamSynchronize_ptsz, cudaStreamSynchronize, (cudaStream_t stream), (stream))
SIM_TWIN(cudaStreamWaitEvent_ptsz, cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned int flags), (stream, event, flags))
SIM_TWIN(cudaStreamGetPriority_ptsz, cudaStreamGetPriority, (cudaStream_t stream, int* priority), (stream, priority))
SIM_TWIN(cudaStreamGetFlags_ptsz, cudaStreamGetFlags, (cudaStream_t stream, unsigned int* flags), (stream, flags))
SIM_TWIN(cudaStreamGetId_ptsz, cudaStreamGetId, (cudaStream_t stream, unsigned long long* id), (stream, id))
SIM_TWIN(cudaStreamGetDevice_ptsz, cudaStreamGetDevice, (cudaStream_t stream, int* device), (stream, device))
SIM_TWIN(cudaStreamBeginCapture_ptsz, cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode), (stream, mode))
SIM_TWIN(cudaStreamBeginCaptureToGraph_ptsz, cudaStreamBeginCaptureToGraph,
         (cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t* nodes, const cudaGraphEdgeData* edges, size_t count, cudaStreamCaptureMode mode),
         (stream, graph, nodes, edges, count, mode))
SIM_TWIN(cudaStreamEndCapture_ptsz, cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t* graph), (stream, graph))
SIM_TWIN(cudaStreamIsCapturing_ptsz, cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus* status), (stream, status))
SIM_TWIN(cudaStreamGetCaptureInfo_ptsz, cudaStreamGetCaptureInfo,
         (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
          const cudaGraphEdgeData** edges, size_t* count),
         (stream, status, id, graph, dependencies, edges, count))
SIM_TWIN(cudaLaunchHostFunc_ptsz, cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void* data), (stream, function, data))
SIM_TWIN(cudaStreamAddCallback_ptsz, cudaStreamAddCallback, (cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned int flags),
         (stream, callback, data, flags))
SIM_TWIN(cudaEventRecord_ptsz, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
SIM_TWIN(cudaEventRecordWithFlags_ptsz, cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned int flags),
         (event, stream, flags))
