#include "torchglue/tape/tape.h"

#include <torch/csrc/autograd/variable.h>

#include "torchglue/base/inference_writes.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/op_traits.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

bool drew(const TapeOp& op) {
  const OpTraits& traits = op_traits(op.op);
  if (!traits.random) return false;
  OpCall call(op.op.schema(), 1);
  call.args().resize(op.args.size());
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (traits.kinds[i] == ArgumentKind::kOther) call.args()[i].value = op.args[i];
  }
  return traits.rule != nullptr && (traits.rule->flags & kRandom) != 0 ? draws(traits.rule, call) : may_draw(call);
}

const torch::autograd::Node* node_of(const at::Tensor& tensor) {
  const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta == nullptr ? nullptr : meta->grad_fn_.get();
}

uint32_t version_of(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return (impl->version_counter().enabled() ? impl->version_counter().current_version() : 0) + inference_writes().version(tensor);
}

void TapeValue::set_node(const at::Tensor& tensor) {
  const torch::autograd::Node* node = node_of(tensor);
  grad_fn = node;
  if (node == nullptr) return;
  node_number = node->sequence_nr();
  output_nr = torch::autograd::impl::get_autograd_meta(tensor)->output_nr_;
}

at::Tensor TapeValue::lock() const {
  if (is_copied()) return strong;
  auto impl = weak.lock();
  if (!impl) return at::Tensor();
  at::Tensor t(std::move(impl));
  return is_capture() && storage != storage_of(t) ? at::Tensor() : t;
}

bool TapeValue::lies_in(const void* memory) const {
  if (storage != memory) return false;
  if (is_capture() && !storage_of_capture.expired()) return true;  // also while its tensor has other memory: it may get this one back
  const auto impl = weak.lock();
  return impl && storage_of(at::Tensor(impl)) == memory;
}

bool TapeValue::known_node(const torch::autograd::Node* node) const {
  return node == grad_fn || (node != nullptr && (grad_fn != nullptr ? is_builtin(kind_of(*node)) : !is_capture() && kind_of(*node) == NodeKind::kCopySlices));
}

int64_t TapeValue::bytes() const {
  int64_t n = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t size : sizes) n *= size;
  return n;
}

bool TapeValue::held_elsewhere() const {
  const auto held = hold.lock();
  return weak.use_count() > (strong.defined() ? 1u : 0u) + (held && held->tensor.defined() ? 1u : 0u);
}

}  // namespace koila
