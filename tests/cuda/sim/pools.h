// Stream-ordered memory. Work is done when its call returns, so an order of streams has nothing to wait for; and a pool keeps nothing back:
// what it has reserved is what is in use.
#pragma once

#include "tests/cuda/sim/call.h"

namespace sim {

// A null pool means the current device's current pool.
cudaError_t allocate_from_pool(void** address, std::size_t bytes, cudaMemPool_t pool);

// Pools that a program made go, and the device's default pool is current again.
void forget_pools(int device);

}  // namespace sim
