// Where a generator stands, so that the same draws can be made again.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <optional>

namespace koila {

at::Generator default_generator(at::Device device);

// Where a generator stands.
class RandomState {
 public:
  explicit RandomState(at::Generator generator);
  explicit RandomState(at::Device device);  // its default generator
  void restore() const;
  // Whether anything has been drawn since.
  bool has_moved() const;
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

}  // namespace koila
