// A budget on the CPU: PyTorch's CPU allocator, counted and capped.
#pragma once

#include <cstdint>

namespace koila {

// What the last allocation that failed asked for, for the log and the report.
struct AllocationFailure {
  int device = -1;
  int64_t requested = 0;
  int64_t live = 0;
};
const AllocationFailure& last_allocation_failure();

// From now on CPU tensor memory is reserved with the runtime first; what does not fit raises c10::OutOfMemoryError, as CUDA's allocator
// does. Tensors allocated before keep their memory and are not counted. Call once.
void install_cpu_allocator();

}  // namespace koila
