// What an allocator said when it had nothing to give, for the log and the report.
#pragma once

#include <cstdint>

#include "runtime/abi.h"

namespace koila {

struct AllocationFailure {
  int device = KOILA_CPU;
  int64_t requested = 0;  // bytes; 0: nobody said
  int64_t live = 0;
};

// To be called by an allocator right before it throws, on the thread that asked. On a thread that koila does not follow that is a refusal,
// which is reported here.
void note_allocation_failure(const AllocationFailure& failure);

// The last one of this process. Out of memory that no allocator announced (a library's workspace) leaves the one before.
AllocationFailure last_allocation_failure();

}  // namespace koila
