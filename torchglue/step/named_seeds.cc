#include "torchglue/step/named_seeds.h"

#include <c10/core/AutogradState.h>

#include <utility>

namespace koila {

void NamedSeeds::add(const at::Tensor& tensor, int dim) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->second.tensor.expired()) {
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }
  waiting_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                            NamedSeed{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), dim, tensor.size(dim), true, nullptr});
}

bool NamedSeeds::excludes(int64_t batch) const {
  bool waits = false;
  for (const auto& [impl, seed] : waiting_) {
    if (!seed.in_step || seed.tensor.expired()) continue;
    if (seed.batch == batch) return false;
    waits = true;
  }
  return waits;
}

std::optional<NamedSeed> NamedSeeds::take(const at::Tensor& tensor) {
  const auto it = waiting_.find(tensor.unsafeGetTensorImpl());
  if (it == waiting_.end()) return std::nullopt;
  NamedSeed seed = std::move(it->second);
  waiting_.erase(it);
  if (seed.dim >= tensor.dim() || tensor.size(seed.dim) != seed.batch) return std::nullopt;
  return seed;
}

std::shared_ptr<SizePolicy> NamedSeeds::policy_of(int64_t batch) const { return policy_ != nullptr && policy_->batch() == batch ? policy_ : nullptr; }

void NamedSeeds::begin(const std::shared_ptr<SizePolicy>& policy) {
  for (auto& [impl, seed] : waiting_) {
    if (seed.in_step && seed.batch == policy->batch()) seed.policy = policy;
  }
  // Without gradients nothing tells where a step ends.
  policy_ = c10::AutogradState::get_tls_state().get_grad_mode() ? policy : nullptr;
}

void NamedSeeds::step_over() {
  policy_.reset();
  for (auto& [impl, seed] : waiting_) {
    seed.in_step = false;
    seed.policy.reset();
  }
}

void NamedSeeds::clear() {
  waiting_.clear();
  policy_.reset();
}

}  // namespace koila
