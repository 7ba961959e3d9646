// What the tests call. Plain C, for ctypes; linking against the library is enough for the rest: it registers its kernels when it is loaded.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// Initialises the caching allocator as PyTorch does, once. 0, or -1 with a reason in sim_cuda_error().
int sim_cuda_start(void);
const char* sim_cuda_error(void);

int sim_cuda_devices(void);
int sim_cuda_current_device(void);
void sim_cuda_set_device(int device);
void sim_cuda_empty_cache(void);

// Figures of the caching allocator, in bytes: 0 allocated, 1 reserved, 2 requested, 3 active; or counts: 4 out-of-memory errors, 5 retries,
// 6 allocations, 7 segments. `which`: 0 current, 1 peak, 2 allocated in all, 3 freed in all (of a count that never falls only 0).
int64_t sim_cuda_stat(int device, int figure, int which);
void sim_cuda_reset_peak(int device);
void sim_cuda_set_fraction(int device, double fraction);
void sim_cuda_memory(int device, int64_t* free_bytes, int64_t* total_bytes);

// The default generator's sixteen bytes.
void sim_cuda_get_generator(int device, void* state);
void sim_cuda_set_generator(int device, const void* state);
void sim_cuda_seed(int device, uint64_t seed);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
