// The thread-local state that changes what an operator means, recorded with each call and restored for a replay.
#pragma once

#include <ATen/Context.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

#include "torchglue/base/saved_hooks.h"

namespace koila {

// The out-of-tree dispatch key that the interceptor lives on: above autocast and autograd, unused by PyTorch itself.
inline constexpr c10::DispatchKey kInterceptorKey = c10::DispatchKey::DeferredInit;

// Where a call goes on from there.
inline constexpr c10::DispatchKeySet kBelowInterceptor(c10::DispatchKeySet::FULL_AFTER, kInterceptorKey);

// Grad mode, inference mode and autocast, as an operator call found them.
struct OpState {
  c10::DispatchKeySet included;
  c10::DispatchKeySet excluded;
  bool grad_mode = true;
  bool inference_mode = false;
  bool foreign_hooks = false;  // see Note [Saved-tensor hooks]
  bool saves_by_hook = false;  // under any: what it saves may be written to, and no version is compared
  c10::ScalarType autocast_cpu = c10::ScalarType::BFloat16;
  c10::ScalarType autocast_cuda = c10::ScalarType::Half;
  c10::ScalarType default_type = c10::ScalarType::Float;  // what integers become (torch.set_default_dtype)
  int32_t attention = -1;  // what attention may run on, see kinds_of_attention(); -1: not looked at, the operator has none

  static OpState current() {
    const auto keys = c10::impl::tls_local_dispatch_key_set();
    const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
    OpState state{keys.included_, keys.excluded_, autograd.get_grad_mode(), autograd.get_inference_mode()};
    state.saves_by_hook = state.grad_mode && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
    state.foreign_hooks = state.saves_by_hook && foreign_saved_tensor_hooks();
    state.autocast_cpu = at::autocast::get_autocast_dtype(at::kCPU);
    state.autocast_cuda = at::autocast::get_autocast_dtype(at::kCUDA);
    state.default_type = c10::get_default_dtype_as_scalartype();
    return state;
  }
};

// Which kernels scaled_dot_product_attention() may choose from (torch.nn.attention.sdpa_kernel), a bit for each. Not all of them can be differentiated twice.
inline int32_t kinds_of_attention() {
  const at::Context& context = at::globalContext();
  return (context.userEnabledFlashSDP() ? 1 : 0) | (context.userEnabledMemEfficientSDP() ? 2 : 0) | (context.userEnabledMathSDP() ? 4 : 0) | (context.userEnabledCuDNNSDP() ? 8 : 0);
}
inline void set_kinds_of_attention(int32_t kinds) {
  at::Context& context = at::globalContext();
  context.setSDPUseFlash((kinds & 1) != 0);
  context.setSDPUseMemEfficient((kinds & 2) != 0);
  context.setSDPUseMath((kinds & 4) != 0);
  context.setSDPUseCuDNN((kinds & 8) != 0);
}

// What koila computes itself keeps its types: autocast is for what the program calls.
class NoAutocastGuard {
  c10::impl::ExcludeDispatchKeyGuard keys_{c10::autocast_dispatch_keyset};
};

// Turns the program's saved-tensor hooks off.
class NoSavedTensorHooksGuard {
 public:
  NoSavedTensorHooksGuard() {
    if (!active()) return;
    saved_ = at::SavedTensorDefaultHooks::get_tls_state();
    at::SavedTensorDefaultHooks::set_tls_state({});
  }
  ~NoSavedTensorHooksGuard() {
    if (!saved_.stack.empty()) at::SavedTensorDefaultHooks::set_tls_state(saved_);
  }
  NoSavedTensorHooksGuard(const NoSavedTensorHooksGuard&) = delete;
  NoSavedTensorHooksGuard& operator=(const NoSavedTensorHooksGuard&) = delete;

  const at::impl::SavedTensorDefaultHooksTLS& hooks() const { return saved_; }
  static bool active() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }

 private:
  at::impl::SavedTensorDefaultHooksTLS saved_;
};

// Puts a recorded state in force for a replay, the interceptor left out. `allow_grad` false: grad mode is off whatever was recorded.
// The program's saved-tensor hooks are off: unpacking would call its Python code on deferred tensors. Autocast's weight cache is off: its entries would carry the graph of one micro-batch into the next.
class OpStateGuard {
 public:
  OpStateGuard(const OpState& state, bool allow_grad)
      : keys_(state.included.remove(kInterceptorKey), state.excluded.add(kInterceptorKey)),
        autograd_(c10::AutogradState::get_tls_state()),
        autocast_cpu_(at::autocast::get_autocast_dtype(at::kCPU)),
        autocast_cuda_(at::autocast::get_autocast_dtype(at::kCUDA)),
        cache_(at::autocast::is_autocast_cache_enabled()),
        default_type_(c10::get_default_dtype_as_scalartype()) {
    c10::AutogradState autograd = autograd_;
    autograd.set_grad_mode(state.grad_mode && allow_grad);
    autograd.set_inference_mode(state.inference_mode);
    c10::AutogradState::set_tls_state(autograd);
    at::autocast::set_autocast_dtype(at::kCPU, state.autocast_cpu);
    at::autocast::set_autocast_dtype(at::kCUDA, state.autocast_cuda);
    at::autocast::set_autocast_cache_enabled(false);
    if (state.default_type != default_type_) c10::set_default_dtype(c10::scalarTypeToTypeMeta(state.default_type));
    if (state.attention < 0) return;
    if (const int32_t now = kinds_of_attention(); now != state.attention) set_kinds_of_attention(state.attention), attention_ = now;
  }
  ~OpStateGuard() {
    if (attention_ >= 0) set_kinds_of_attention(attention_);
    if (c10::get_default_dtype_as_scalartype() != default_type_) c10::set_default_dtype(c10::scalarTypeToTypeMeta(default_type_));
    at::autocast::set_autocast_cache_enabled(cache_);
    at::autocast::set_autocast_dtype(at::kCUDA, autocast_cuda_);
    at::autocast::set_autocast_dtype(at::kCPU, autocast_cpu_);
    c10::AutogradState::set_tls_state(autograd_);
  }
  OpStateGuard(const OpStateGuard&) = delete;
  OpStateGuard& operator=(const OpStateGuard&) = delete;

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::AutogradState autograd_;
  at::ScalarType autocast_cpu_;
  at::ScalarType autocast_cuda_;
  bool cache_;
  at::ScalarType default_type_;
  int32_t attention_ = -1;
  NoSavedTensorHooksGuard saved_tensor_hooks_;
};

// Leaves the interceptor out for what koila itself runs.
class NoInterceptGuard {
 public:
  NoInterceptGuard() : guard_(kInterceptorKey) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

// What koila makes while the program is in inference mode goes into a step that may be trained: it must not be marked as that mode's. Grad mode is on
// while it lives, where the program was in that mode.
class NoInferenceMode {
 public:
  NoInferenceMode() {
    if (c10::InferenceMode::is_enabled()) out_of_it_.emplace(false);
  }

 private:
  std::optional<c10::InferenceMode> out_of_it_;
};

}  // namespace koila
