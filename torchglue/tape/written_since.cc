#include "torchglue/tape/written_since.h"

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/variable.h>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/saved.h"

namespace koila {

namespace {

// What `view` is to `whole`, of the original.
at::Tensor same_view(const at::Tensor& view, const c10::TensorImpl& whole, const at::Tensor& original) {
  const NoInterceptGuard no_intercept;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor same = original.as_strided(view.sizes(), view.strides(), original.storage_offset() + view.storage_offset() - whole.storage_offset());
  if (!original.is_inference()) same.unsafeGetTensorImpl()->set_version_counter(original.unsafeGetTensorImpl()->version_counter());
  return same;
}

}  // namespace

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
  if (originals_.empty()) return {};
  if (const auto found = originals_.find(copy.unsafeGetTensorImpl()); found != originals_.end()) return found->second;
  if (!copy.is_view() || storage_of(copy) == nullptr) return {};
  for (const auto& [whole, original] : originals_) {
    if (whole->unsafe_storage().unsafeGetStorageImpl() == storage_of(copy) && whole->strides() == original.strides()) return same_view(copy, *whole, original);
  }
  return {};
}

WrittenSince::Call::Call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  WrittenSince& all = written_since();
  if (all.originals_.empty() || !c10::AutogradState::get_tls_state().get_grad_mode() || op_traits(op).may_view || !may_save_operands(op.schema())) return;
  const size_t count = op.schema().arguments().size();
  if (!any_requires_grad(torch::jit::last(stack, count))) return;  // no node is made, and none saves anything
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
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
  if (lent_.empty()) return;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  for (auto lent = lent_.rbegin(); lent != lent_.rend(); ++lent) lent->memory.copy_(lent->now);
}

}  // namespace koila
