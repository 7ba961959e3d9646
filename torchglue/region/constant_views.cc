#include "torchglue/region/constant_views.h"

#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <utility>

namespace koila {

using torch::autograd::CreationMeta;
using torch::autograd::DifferentiableViewMeta;
using torch::autograd::ViewInfo;

namespace {

struct DeferredViewMeta : DifferentiableViewMeta {
  DeferredViewMeta(c10::TensorImpl* impl, const at::Tensor& base, CreationMeta made, DeathWatch&& of)
      : DifferentiableViewMeta(impl, ViewInfo(base, nullptr, nullptr), std::nullopt, /*shared_view_info=*/true, made), watch(std::move(of)) {}
  DeathWatch watch;
};

const at::TensorBase& base_of(const DifferentiableViewMeta& view) { return view.get_backward_view().base_; }

}  // namespace

void stand_as_view(const at::Tensor& view, const at::Tensor& of, bool one_of_several) {
  if (view.is_inference() || of.is_inference() || of.requires_grad() || view.unsafeGetTensorImpl()->autograd_meta() != nullptr) return;
  const at::Tensor base = of.is_view() ? at::Tensor(of._base()) : of;
  const bool grad_mode = c10::AutogradState::get_tls_state().get_grad_mode();
  const CreationMeta made = !grad_mode ? CreationMeta::NO_GRAD_MODE : one_of_several ? CreationMeta::MULTI_OUTPUT_NODE : CreationMeta::DEFAULT;
  c10::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_autograd_meta(std::make_unique<DifferentiableViewMeta>(impl, ViewInfo(base, nullptr, nullptr), std::nullopt, /*shared_view_info=*/true, made));
}

bool is_constant_view(const at::Tensor& tensor) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  return view != nullptr && view->has_bw_view() && !base_of(*view).requires_grad();
}

void watch_for_death(c10::TensorImpl& tensor, DeathWatch&& watch, bool as_view) {
  if (!as_view) return tensor.set_autograd_meta(std::make_unique<DeferredMeta>(std::move(watch)));
  const auto& view = static_cast<const DifferentiableViewMeta&>(*tensor.autograd_meta());
  tensor.set_autograd_meta(std::make_unique<DeferredViewMeta>(&tensor, at::Tensor(base_of(view)), view.get_creation_meta(), std::move(watch)));
}

DeathWatch* watch_of(c10::TensorImpl& tensor) {
  if (auto* meta = dynamic_cast<DeferredMeta*>(tensor.autograd_meta())) return &meta->watch;
  auto* meta = dynamic_cast<DeferredViewMeta*>(tensor.autograd_meta());
  return meta == nullptr ? nullptr : &meta->watch;
}

void stand_alone(const at::Tensor& view) {
  c10::TensorImpl& impl = *view.unsafeGetTensorImpl();
  DeathWatch watch = std::move(*watch_of(impl));
  watch_for_death(impl, std::move(watch), /*as_view=*/false);
}

bool are_related(const at::Tensor& a, const at::Tensor& b) {
  const auto root_of = [](const at::Tensor& t) { return t.is_view() ? t._base().unsafeGetTensorImpl() : t.unsafeGetTensorImpl(); };
  return root_of(a) == root_of(b);
}

}  // namespace koila
