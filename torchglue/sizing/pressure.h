// Memory that is had only after the caching allocator has emptied its cache.
#pragma once

#include <cstdint>

#include "runtime/abi.h"

namespace koila {

// Note [Pressure]
// A caching allocator that gets nothing from CUDA frees what it has cached and asks again. Once in a while that is how it should be; step after step it
// makes each of them wait for the device and pay for its memory anew. Then the micro-batch is too large, though nothing runs out.
class Pressure {
 public:
  // To be called at the end of each step in micro-batches. Whether allocations on the device failed, and came through at the second try, in this step
  // and in one of the two before. `ran_out`: in this step some did not come through; that has shrunk the micro-batch already. Where a few answers of
  // yes in a row did not help, it is not the micro-batch, and the answer is no until a step goes by without.
  bool persists(int device, bool ran_out);

 private:
  int64_t failed_[KOILA_CUDA_DEVICES] = {};  // in all, when the last step ended
  int score_[KOILA_CUDA_DEVICES] = {};
  int in_vain_[KOILA_CUDA_DEVICES] = {};
};

// The process's.
Pressure& pressure();

}  // namespace koila
