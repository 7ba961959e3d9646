// Random draws that recomputation can repeat.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace koila {

// Where a region's draws start from: another number each time, made from the state of the device's default generator and not drawn from
// it. So the program's own draws (data, shuffles) go on as if the region had drawn nothing.
uint64_t fresh_seed(at::Device device);

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
