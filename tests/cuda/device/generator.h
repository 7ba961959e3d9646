// Random numbers of the simulated device.
//
// Like CUDA's own, a generator is a seed and an offset, and a call draws what these two give: the CPU's generator, seeded by both. With
// SIM_CUDA_GENERATOR=cpu the default generator is the CPU's instead, so that a program draws the same on both devices.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

namespace sim {

// Default generator of a device; -1: of the current one. Lives for ever.
const at::Generator& default_generator(c10::DeviceIndex device);

at::Generator new_generator(c10::DeviceIndex device);

// The draws of one operator call.
class Draw {
 public:
  // A generator argument, or None in its place: replaced by one that a CPU kernel takes.
  void replace(c10::IValue& argument);
  // After the call. CUDA's generator goes on for a call that draws, and not for one that turns out to draw nothing (rrelu outside of training).
  void done();
  // As if nothing had been drawn.
  void undo();

 private:
  at::Generator device_, host_, before_;
};

}  // namespace sim
