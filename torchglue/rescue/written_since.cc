#include "torchglue/rescue/written_since.h"

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/variable.h>

#include "torchglue/collectives.h"
#include "torchglue/op_traits.h"
#include "torchglue/tls.h"

namespace koila {

WrittenSince& written_since() {
  static auto* all = new WrittenSince;  // never destroyed: tensors may outlive static destruction
  return *all;
}

void WrittenSince::begin(const Tape& tape) {
  for (const TapeValue& value : tape.values()) {
    if (auto written = value.is_copied() ? value.weak.lock() : nullptr) originals_.emplace(value.strong.unsafeGetTensorImpl(), at::Tensor(std::move(written)));
  }
}

void WrittenSince::end() {
  for (const at::Tensor& copy : saved_) torch::autograd::impl::bump_version(copy);
  saved_.clear();
  originals_.clear();
}

void WrittenSince::note(const at::Tensor& made, const TapeValue& value) {
  auto written = value.is_copied() ? nullptr : value.weak.lock();
  if (!written || !made.defined() || made.is_view() || made.is_inference() || made.unsafeGetTensorImpl() == written.get()) return;
  made.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(value.version));
  originals_.emplace(made.unsafeGetTensorImpl(), at::Tensor(std::move(written)));
}

at::Tensor WrittenSince::original_of(const at::Tensor& copy) const {
  const auto found = originals_.find(copy.unsafeGetTensorImpl());
  return found == originals_.end() ? at::Tensor() : found->second;
}

WrittenSince::Call::Call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  WrittenSince& all = written_since();
  if (all.originals_.empty() || !c10::AutogradState::get_tls_state().get_grad_mode() || op_traits(op).may_view || !may_save_operands(op.schema())) return;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  const size_t count = op.schema().arguments().size();
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& argument = torch::jit::peek(stack, i, count);
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor copy = argument.toTensor(), original = all.original_of(copy);
    if (!original.defined()) continue;
    if (version_of(original) != version_of(copy)) {
      all.saved_.push_back(copy);
      continue;
    }
    const at::Tensor memory = original.variable_data();
    lent_.push_back({memory, memory.clone()});
    memory.copy_(copy);
    argument = original;
  }
}

WrittenSince::Call::~Call() {
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  for (auto lent = lent_.rbegin(); lent != lent_.rend(); ++lent) lent->memory.copy_(lent->now);
}

}  // namespace koila
