#include "torchglue/base/random_state.h"

#include <ATen/Context.h>

#include <mutex>
#include <utility>

namespace koila {

at::Generator default_generator(at::Device device) { return at::globalContext().defaultGenerator(device); }

RandomState::RandomState(at::Generator generator) : generator_(std::move(generator)) {
  if (!generator_.device().is_cpu()) {
    elsewhere_ = generator_.clone();
    return;
  }
  auto* from = at::check_generator<at::CPUGeneratorImpl>(generator_);
  on_cpu_.emplace(OnCpu{from->engine(), from->next_float_normal_sample(), from->next_double_normal_sample()});
}
RandomState::RandomState(at::Device device) : RandomState(default_generator(device)) {}

void RandomState::restore() const {
  at::Generator generator = generator_;
  std::lock_guard lock(generator.mutex());
  if (on_cpu_) {
    auto* to = at::check_generator<at::CPUGeneratorImpl>(generator);
    to->set_engine(on_cpu_->engine);
    to->set_next_float_normal_sample(on_cpu_->next_float);
    to->set_next_double_normal_sample(on_cpu_->next_double);
  } else {
    generator.set_state(elsewhere_.get_state());
  }
}

bool RandomState::has_moved() const {
  if (!on_cpu_) return generator_.unsafeGetGeneratorImpl()->get_offset() != elsewhere_.unsafeGetGeneratorImpl()->get_offset();
  at::Generator generator = generator_;
  auto* now = at::check_generator<at::CPUGeneratorImpl>(generator);
  const auto before = on_cpu_->engine.data(), after = now->engine().data();
  return before.next_ != after.next_ || before.left_ != after.left_ || before.state_ != after.state_ || on_cpu_->next_float != now->next_float_normal_sample() ||
         on_cpu_->next_double != now->next_double_normal_sample();
}

}  // namespace koila
