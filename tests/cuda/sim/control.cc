#include "tests/cuda/sim/control.h"

#include "tests/cuda/sim/call.h"
#include "tests/cuda/sim/devices.h"
#include "tests/cuda/sim/environment.h"
#include "tests/cuda/sim/heap.h"
#include "tests/cuda/sim/memory.h"
#include "tests/cuda/sim/pools.h"
#include "tests/cuda/sim/streams.h"
#include "tests/cuda/sim/vmm.h"

using namespace sim;

namespace {

bool exists(int device) { return device >= 0 && device < max_devices; }

}  // namespace

SIM_EXPORT void sim_reset() {
  for (int device = 0; device < max_devices; ++device) {
    release_physical_memory(device);
    forget_pools(device);
  }
  release_address_ranges();
  forget_arrays();
  forget_registered();
  forget_streams_and_events();
  heap().release_all();
  deactivate_devices();
  forget_current_device();
  clear_last_error();
  reset_hooks();
  apply_environment();
}

SIM_EXPORT void sim_set_devices(int count) { set_device_count(count); }

SIM_EXPORT void sim_set_capacity(int device, size_t bytes) {
  if (exists(device)) heap().set_capacity(device, bytes);
}

SIM_EXPORT void sim_fail(const char* function, int nth_from_now, int count, int code) { hook(function).fail(nth_from_now, count, code); }

SIM_EXPORT void sim_delay(const char* function, int microseconds) { hook(function).delay(microseconds); }

SIM_EXPORT void sim_reuse_addresses(int on) { heap().reuse_addresses(on != 0); }

SIM_EXPORT size_t sim_used(int device) { return exists(device) ? heap().usage(device).used : 0; }

SIM_EXPORT size_t sim_peak(int device) { return exists(device) ? heap().usage(device).peak : 0; }

SIM_EXPORT size_t sim_live_blocks(int device) { return exists(device) ? heap().usage(device).blocks : 0; }

SIM_EXPORT size_t sim_managed(int device) { return exists(device) ? heap().usage(device).managed : 0; }

SIM_EXPORT size_t sim_pinned() { return heap().pinned_bytes(); }

SIM_EXPORT size_t sim_registered() { return registered_bytes(); }

SIM_EXPORT uint64_t sim_calls(const char* function) { return hook(function).calls(); }

SIM_EXPORT size_t sim_streams() { return live_streams(); }

SIM_EXPORT size_t sim_events() { return live_events(); }
