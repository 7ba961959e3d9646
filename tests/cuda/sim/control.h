// How a test steers the simulated CUDA runtime (libcudart.so.13 of this folder).
//
// Link the simulation and call these, or find them with dlsym(handle, "sim_fail"): every copy of the library has its own state, and a preload never
// hooks them. All functions may be called from any thread. Function names are those of the public API without a version suffix: "cudaMalloc",
// "cuMemCreate", "cuMemAlloc". A `_ptsz` or `_ptds` twin counts under its own name and under the original's.
//
// The environment is read when the library is loaded, and sim_reset() goes back to it:
//   SIM_DEVICES=2                              number of devices (1)
//   SIM_CAPACITY=8GiB or 0:1GiB,1:512MiB       bytes, KiB, MiB, GiB, TiB; of all devices or of each (8GiB)
//   SIM_FAIL=cudaMalloc:3:1:2,...              function:nth:count:code, as in sim_fail()
//   SIM_DELAY=cudaFree:50,...                  function:microseconds, as in sim_delay()
//   SIM_REUSE=0                                as in sim_reuse_addresses()
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Frees every allocation, stream, event, reservation and handle, forgets counts, failures and delays, and returns to the environment's devices and
// capacities. Every pointer handed out before is dead. Of last errors and current devices only the calling thread's are cleared.
void sim_reset(void);

// 0 to 16; with 0 the runtime answers cudaErrorNoDevice. Memory on a device taken away stays until freed.
void sim_set_devices(int count);

// What is in use already stays, even beyond the new capacity.
void sim_set_capacity(int device, size_t bytes);

// Makes calls number nth_from_now, ..., nth_from_now + count - 1 of the function (1 = the next one; count -1 = for ever) return `code` and do
// nothing else. A cuda* function takes a cudaError_t and sets the last error, a cu* function takes a CUresult. Several rules may be set;
// the first that matches wins. A code of 0 removes the function's rules.
void sim_fail(const char* function, int nth_from_now, int count, int code);

// Every later call of the function sleeps this long just before it returns: memory that it frees is already free for other threads,
// memory that it allocates is already counted. 0 removes the delay.
void sim_delay(const char* function, int microseconds);

// On (the default): a freed address is the next one handed out for the same size on the same device. Off: no address is ever handed out twice.
void sim_reuse_addresses(int on);

// Bytes of device memory in use: allocations rounded up to 512 bytes each, and physical handles of cuMemCreate until released and unmapped.
size_t sim_used(int device);
size_t sim_peak(int device);

// Number of device allocations (linear, pool and arrays; not managed memory) and of physical handles that are alive.
size_t sim_live_blocks(int device);

// Bytes of cudaMallocManaged by the device that was current; counts neither in sim_used() nor against the capacity. Rounded as above.
size_t sim_managed(int device);

// Bytes of page-locked host memory: allocated (rounded as above) and registered (exact).
size_t sim_pinned(void);
size_t sim_registered(void);

// How often a function was called, calls that failed included.
uint64_t sim_calls(const char* function);

// Streams and events that are alive, the default streams left out.
size_t sim_streams(void);
size_t sim_events(void);

#ifdef __cplusplus
}
#endif
