#include "torchglue/region/random_scope.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <utility>

namespace koila {

namespace {

// splitmix64's finaliser (Steele, Lea and Flood, 2014).
uint64_t finalise(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t fresh_seed(at::Device device) {
  at::Generator generator = default_generator(device);
  std::lock_guard lock(generator.mutex());
  if (device.is_cpu()) return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  // A counter-based generator: one step of four draws, the smallest there is.
  const uint64_t offset = generator.get_offset();
  generator.set_offset(offset + 4);
  return mix_seed(generator.current_seed(), offset, 0);
}

uint64_t mix_seed(uint64_t seed, uint64_t a, uint64_t b) {
  for (uint64_t x : {a, b}) seed = finalise(seed + 0x9e3779b97f4a7c15ULL + x);
  return seed;
}

RandomScope::RandomScope(at::Device device, uint64_t seed) : RandomState(device) {
  std::lock_guard lock(generator_.mutex());
  generator_.set_current_seed(seed);
}

}  // namespace koila
