// Random draws that recomputation can repeat.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace koila {

// Where an operator's draws start from: one draw of the device's default generator, so that the same seed gives the same run.
uint64_t fresh_seed(at::Device device);

uint64_t mix_seed(uint64_t seed, uint64_t a, uint64_t b);

// Where a generator stands.
class RandomState {
 public:
  explicit RandomState(at::Generator generator);
  explicit RandomState(at::Device device);  // its default generator
  void restore();
  const at::Generator& generator() const { return generator_; }

 protected:
  at::Generator generator_;

 private:
  // Of the CPU's generator: as it stands, with no heap block of 2.5 KiB for each operator that may draw.
  struct OnCpu {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };
  std::optional<OnCpu> on_cpu_;
  at::Generator elsewhere_;
};

// The device's default generator draws from `seed`, and stands afterwards where it stood before.
class RandomScope : private RandomState {
 public:
  RandomScope(at::Device device, uint64_t seed);
  ~RandomScope() { restore(); }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;
};

}  // namespace koila
