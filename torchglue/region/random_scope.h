// Random draws that recomputation can repeat.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "torchglue/base/random_state.h"

namespace koila {

// Where an operator's draws start from: one draw of the device's default generator, so that the same seed gives the same run.
uint64_t fresh_seed(at::Device device);

uint64_t mix_seed(uint64_t seed, uint64_t a, uint64_t b);

// The device's default generator draws from `seed`, and stands afterwards where it stood before.
class RandomScope : private RandomState {
 public:
  RandomScope(at::Device device, uint64_t seed);
  ~RandomScope() { restore(); }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;
};

}  // namespace koila
