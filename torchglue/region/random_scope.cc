#include "torchglue/region/random_scope.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <atomic>
#include <cstring>

namespace koila {

namespace {

at::Generator default_generator(at::Device device) { return at::globalContext().defaultGenerator(device); }

// splitmix64's finaliser (Steele, Lea and Flood, 2014).
uint64_t finalise(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t fresh_seed(at::Device device) {
  static std::atomic<uint64_t> count{0};
  at::Generator generator = default_generator(device);
  at::Tensor state;
  {
    std::lock_guard lock(generator.mutex());
    state = generator.get_state();
  }
  uint64_t seed = ++count;
  const auto* bytes = state.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i + 8 <= state.numel(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, 8);
    seed = finalise(seed ^ word);
  }
  return seed;
}

uint64_t mix_seed(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  for (uint64_t x : {a, b, c}) seed = finalise(seed + 0x9e3779b97f4a7c15ULL + x);
  return seed;
}

RandomScope::RandomScope(at::Device device, uint64_t seed) : generator_(default_generator(device)), saved_(generator_.clone()) {
  std::lock_guard lock(generator_.mutex());
  generator_.set_current_seed(seed);
}

RandomScope::~RandomScope() {
  std::lock_guard lock(generator_.mutex());
  if (generator_.device().is_cpu()) {
    auto* to = at::check_generator<at::CPUGeneratorImpl>(generator_);
    const auto* from = at::check_generator<at::CPUGeneratorImpl>(saved_);
    auto* source = const_cast<at::CPUGeneratorImpl*>(from);
    to->set_engine(source->engine());
    to->set_next_float_normal_sample(source->next_float_normal_sample());
    to->set_next_double_normal_sample(source->next_double_normal_sample());
  } else {
    generator_.set_state(saved_.get_state());
  }
}

}  // namespace koila
