// Copies between a device's memory and what lies outside it, beside the work that goes on.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <utility>

namespace koila {

// Note [Copies on the side]
// A copy on the side stream begins when all that the current stream was asked for so far is done: it reads what is there by then. Whoever
// uses what was copied joins first. Memory that one stream allocated and the other uses is told to the allocator by used_here().
// The CPU has no streams: there everything happens at once.
//
// Thread contract: one thread at a time.
class SideStream {
 public:
  explicit SideStream(c10::Device device) : device_(device) {
    if (device.is_cuda()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  }

  // Runs f with the side stream as the current one.
  template <class F>
  void run(F&& f) {
    if (!stream_) return f();
    c10::Event reached(device_.type());
    reached.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    reached.block(*stream_);
    const c10::StreamGuard guard(*stream_);
    f();
    waits_ = true;
  }

  // What the current stream does from here on comes after all copies.
  void join() {
    if (!stream_ || !std::exchange(waits_, false)) return;
    c10::Event copied(device_.type());
    copied.record(*stream_);
    copied.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

  // The stream that is the current one uses this memory, which another allocated: it is not to be given away before that use is over.
  static void used_here(const c10::DataPtr& memory, c10::Device device) {
    if (!device.is_cuda()) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.recordDataPtrOnStream(memory, guard.getStream(device));
  }

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
  bool waits_ = false;
};

}  // namespace koila
