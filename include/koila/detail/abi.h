// koila's C ABI (koila/koila.h) as the headers reach it: through dlsym, so that nothing is linked. Not for programs to call.
#ifndef KOILA_DETAIL_ABI_H_
#define KOILA_DETAIL_ABI_H_

#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdint>
#include <optional>

#include "koila/koila.h"

namespace koila::detail {

// The functions where this process has koila, preloaded or linked; null where it has not, and where it has one that is older than these headers.
struct Abi {
  static constexpr int kCpu = KOILA_CPU;

  decltype(&koila_version) version = nullptr;
  decltype(&koila_live_bytes) live_bytes = nullptr;
  decltype(&koila_reset_peak) reset_peak = nullptr;
  decltype(&koila_memory) memory = nullptr;
  decltype(&koila_budget_bytes) budget_bytes = nullptr;
  decltype(&koila_begin_budget) begin_budget = nullptr;
  decltype(&koila_end_budget) end_budget = nullptr;
  decltype(&koila_begin_track) begin_track = nullptr;
  decltype(&koila_track_peak) track_peak = nullptr;
  decltype(&koila_end_track) end_track = nullptr;
  decltype(&koila_live_groups) live_groups = nullptr;
  decltype(&koila_add_listener) add_listener = nullptr;
  decltype(&koila_remove_listener) remove_listener = nullptr;
  decltype(&koila_write_report) write_report = nullptr;

  static const Abi& get() {
    static const Abi abi = [] {
      Abi found;
      const bool whole = find(found.version, "koila_version") && find(found.live_bytes, "koila_live_bytes") && find(found.reset_peak, "koila_reset_peak") &&
                         find(found.memory, "koila_memory") && find(found.budget_bytes, "koila_budget_bytes") &&
                         find(found.begin_budget, "koila_begin_budget") && find(found.end_budget, "koila_end_budget") &&
                         find(found.begin_track, "koila_begin_track") && find(found.track_peak, "koila_track_peak") &&
                         find(found.end_track, "koila_end_track") && find(found.live_groups, "koila_live_groups") &&
                         find(found.add_listener, "koila_add_listener") && find(found.remove_listener, "koila_remove_listener") &&
                         find(found.write_report, "koila_write_report");
      return whole ? found : Abi();
    }();
    return abi;
  }
  explicit operator bool() const { return version != nullptr; }

 private:
  template <class F>
  static bool find(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
  }
};

// For what there is no other way to do.
inline const Abi& need_koila(const char* caller) {
  const Abi& koila = Abi::get();
  TORCH_CHECK(koila, caller, ": koila is not in this process; run the program with LD_PRELOAD=libkoila.so (or koila run -- PROGRAM), or link it to libkoila.so "
                             "ahead of torch (docs/cpp.md)");
  return koila;
}

[[noreturn]] inline void throw_not_counted(const char* caller, c10::Device device) {
  TORCH_CHECK(false, caller, ": koila is in this process and does not count memory on ", device,
              "; it counts on the CPU and on CUDA devices, and nowhere with KOILA_MODE=off or where its log says that it stays out");
}

// The device with its number: the current one of its kind where it names none.
inline c10::Device with_index(c10::Device device) {
  if (device.is_cpu()) return c10::DeviceType::CPU;
  if (device.has_index()) return device;
  return c10::impl::hasDeviceGuardImpl(device.type()) ? c10::impl::VirtualGuardImpl(device.type()).getDevice() : c10::Device(device.type(), 0);
}

// As koila numbers it; nothing for kinds of devices that koila does not know.
inline std::optional<int> device_number(c10::Device device) {
  if (device.is_cpu()) return Abi::kCpu;
  if (!device.is_cuda()) return std::nullopt;
  return with_index(device).index();
}
inline c10::Device device_of_number(int number) {
  return number < 0 ? c10::Device(c10::DeviceType::CPU) : c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(number));
}

}  // namespace koila::detail

#endif  // KOILA_DETAIL_ABI_H_
