// Memory outside a device's own, which its kernels can read and write all the same.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>

namespace koila {

// For the CPU a file, see memory/spill.h; for a CUDA device pinned host memory. The pointer says that it is on `device`. What it holds is
// undefined. Throws c10::OutOfMemoryError when there is none.
at::DataPtr allocate_outside(size_t bytes, c10::Device device);

// A step is over: what has not been asked for in several goes back.
void step_outside();

bool is_outside(const c10::StorageImpl& storage);

}  // namespace koila
