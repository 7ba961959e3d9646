// Host memory outside the CPU budget: an unlinked, memory-mapped file in KOILA_SPILL_DIR. The kernel may write it to disk.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace koila {

// `bytes` of zeroed memory, page-aligned; unmapped, and its disk space given back, when the pointer dies. Throws c10::OutOfMemoryError
// when the folder cannot be written or is full: the space is claimed here, so that no later write can fail.
at::DataPtr spill_allocate(size_t bytes);

// Has the bytes, somewhere in such memory, read in from the file ahead of their use.
void spill_read_ahead(const void* data, size_t bytes);

}  // namespace koila
