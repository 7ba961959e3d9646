// Random draws that recomputation can repeat.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace koila {

// One draw from the device's default generator: where a region's draws start from.
uint64_t draw_seed(at::Device device);

uint64_t mix_seed(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

// The device's default generator draws from `seed`, and stands afterwards where it stood before.
class RandomScope {
 public:
  RandomScope(at::Device device, uint64_t seed);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  at::Generator generator_;
  at::Generator saved_;
};

}  // namespace koila
