#include "torchglue/sizing/signatures.h"

#include <ATen/core/Tensor.h>
#include <c10/core/AutogradState.h>
#include <c10/util/hash.h>

#include <algorithm>

namespace koila {

uint64_t Signatures::start_key(const c10::OperatorHandle& op, bool grad_mode) {
  return c10::hash_combine(op_traits(op).name, grad_mode ? 2 : 1);
}

uint64_t Signatures::add_to_key(uint64_t key, const Shape& shape) {
  key = c10::hash_combine(key, static_cast<uint64_t>(shape.sizes.size()) * 64 + static_cast<uint64_t>(shape.dtype));
  key = c10::hash_combine(key, shape.requires_grad ? 2 : 1);
  for (int64_t size : shape.sizes) key = c10::hash_combine(key, static_cast<uint64_t>(size));
  return key;
}

uint64_t Signatures::add_to_key(uint64_t key, const c10::IValue& sizes) {
  for (const c10::IValue& size : sizes.toListRef()) key = c10::hash_combine(key, size.isInt() ? static_cast<uint64_t>(size.toInt()) : 0);
  return key;
}

void Signatures::learn(LearnedSeed seed) {
  operators_.insert(hash_of_name(seed.op));
  auto& seeds = seeds_[seed.key];
  auto same = std::find_if(seeds.begin(), seeds.end(), [&](const LearnedSeed& s) {
    return s.argument == seed.argument && s.element == seed.element && s.placement == seed.placement;
  });
  if (same != seeds.end()) {
    *same = std::move(seed);
  } else {
    seeds.push_back(std::move(seed));
  }
}

void Signatures::correct(LearnedSeed seed) {
  std::erase_if(seeds_[seed.key], [&](const LearnedSeed& s) { return s.argument == seed.argument && s.element == seed.element && !(s.placement == seed.placement); });
  learn(std::move(seed));
}

const std::vector<LearnedSeed>* Signatures::find(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) const {
  if (operators_.count(op_traits(op).name) == 0) return nullptr;
  auto it = seeds_.find(key(op, arguments));
  return it == seeds_.end() ? nullptr : &it->second;
}

uint64_t Signatures::key(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  uint64_t key = start_key(op, c10::AutogradState::get_tls_state().get_grad_mode());
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    key = add_to_key(key, {t.sizes(), t.scalar_type(), t.requires_grad()});
  });
  if (const int sizes = op_traits(op).creates; sizes >= 0 && arguments[sizes].isList()) key = add_to_key(key, arguments[sizes]);
  return key;
}

std::shared_ptr<SizePolicy> Signatures::find_policy(uint64_t key, int64_t batch) const {
  const auto it = seeds_.find(key);
  if (it == seeds_.end()) return nullptr;
  const auto same = std::find_if(it->second.begin(), it->second.end(), [&](const LearnedSeed& seed) { return seed.batch() == batch; });
  return same == it->second.end() ? nullptr : same->policy;
}

}  // namespace koila
