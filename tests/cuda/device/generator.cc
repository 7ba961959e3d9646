#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace sim {
namespace {

// As much as CUDA's generator goes on by for a call of few elements; it only has to be a multiple of four.
constexpr uint64_t kStep = 4;

uint64_t mixed(uint64_t seed, uint64_t offset) {
  uint64_t x = seed + 0x9e3779b97f4a7c15 * (offset + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(c10::kCUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}

  static c10::DeviceType device_type() { return c10::kCUDA; }

  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(false));
    return seed_;
  }

  // Sixteen bytes, as with CUDA.
  void set_state(const c10::TensorImpl& state) override {
    const uint64_t* from = static_cast<const uint64_t*>(state.data());
    TORCH_CHECK(state.numel() == 16 && state.is_cpu(), "a generator's state is sixteen bytes on the CPU");
    seed_ = from[0], offset_ = from[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::detail::empty_cpu({16}, c10::kByte);
    uint64_t* to = static_cast<uint64_t*>(state.mutable_data_ptr());
    to[0] = seed_, to[1] = offset_;
    return state.getIntrusivePtr();
  }

  at::Generator for_host() const { return at::detail::createCPUGenerator(mixed(seed_, offset_)); }

 private:
  DeviceGenerator* clone_impl() const override {
    auto* made = new DeviceGenerator(device_.index());
    made->seed_ = seed_, made->offset_ = offset_;
    return made;
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

bool draws_from_cpu() {
  static const bool chosen = [] {
    const char* text = std::getenv("SIM_CUDA_GENERATOR");
    return text && std::strcmp(text, "cpu") == 0;
  }();
  return chosen;
}

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto& made = *[] {
    auto* all = new std::vector<at::Generator>;
    for (c10::DeviceIndex i = 0; i < c10::cuda::device_count(); i++) all->push_back(new_generator(i));
    return all;
  }();
  return made.at(device < 0 ? c10::cuda::current_device() : device);
}

at::Generator new_generator(c10::DeviceIndex device) { return at::make_generator<DeviceGenerator>(device < 0 ? 0 : device); }

void Draw::replace(c10::IValue& argument) {
  if (argument.isGenerator()) {
    device_ = argument.toGenerator();
    if (device_.device().is_cpu()) {
      device_ = {};
      return;
    }
  } else if (draws_from_cpu()) {
    host_ = at::detail::getDefaultCPUGenerator();
    std::lock_guard lock(host_.mutex());
    before_ = host_.clone();
    return;
  } else {
    device_ = default_generator(-1);
  }
  std::lock_guard lock(device_.mutex());
  auto* generator = static_cast<DeviceGenerator*>(device_.unsafeGetGeneratorImpl());
  host_ = generator->for_host();
  generator->set_offset(generator->get_offset() + kStep);
  argument = host_;
}

void Draw::done() {
  if (!device_.defined() || at::check_generator<at::CPUGeneratorImpl>(host_)->engine().data().next_ != 0) return;
  undo();
  device_ = {};
}

void Draw::undo() {
  if (before_.defined()) {
    std::lock_guard lock(host_.mutex());
    auto* to = at::check_generator<at::CPUGeneratorImpl>(host_);
    auto* from = at::check_generator<at::CPUGeneratorImpl>(before_);
    to->set_engine(from->engine());
    to->set_next_float_normal_sample(from->next_float_normal_sample());
    to->set_next_double_normal_sample(from->next_double_normal_sample());
  } else if (device_.defined()) {
    std::lock_guard lock(device_.mutex());
    device_.set_offset(device_.get_offset() - kStep);
  }
}

}  // namespace sim
