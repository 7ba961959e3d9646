#include "torchglue/rescue/places.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// A view stays one of the same base: what is written through it is the base's graph, too.
std::unique_ptr<torch::autograd::AutogradMeta> view_meta_of(const at::Tensor& made, c10::TensorImpl* impl) {
  using torch::autograd::ViewInfo;
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(made);
  if (meta == nullptr || !meta->has_bw_view() || impl->is_inference()) return std::make_unique<torch::autograd::AutogradMeta>();
  const ViewInfo& view = meta->get_backward_view();
  ViewInfo same(view.base_, view.has_view_fn() ? view.view_fn().clone_and_set() : nullptr, view.has_view_fn() ? view.rev_view_fn() : nullptr);
  return std::make_unique<torch::autograd::DifferentiableViewMeta>(impl, std::move(same), std::nullopt, /*shared_view_info=*/true, meta->get_creation_meta());
}

// A graph that stays may have saved the tensor, or a view of it: what it saved shares the storage object, whose memory the conversion has taken, and would stay without. It gets that of what was made again.
// Where that lies in another way, who reads it gets the program's out-of-memory error.
void give_memory_back(const at::Tensor& alive, const at::Tensor& made, const DeferredRegistry::Entry& entry) {
  c10::StorageImpl& gone = *alive.storage().unsafeGetStorageImpl();
  if (storage_of(made) == &gone || memory_of(alive) != nullptr || deferred_registry().awaits_value(&gone)) return;
  const bool same = storage_of(made) != nullptr && made.storage().nbytes() == gone.nbytes() && made.strides() == alive.strides() && made.storage_offset() == alive.storage_offset();
  if (same && entry.region != nullptr && entry.region->move_to(entry.value, alive.storage())) return;
  if (!same || memory_of(made) == nullptr) {
    if (alive.storage().use_count() > 1) deferred_registry().lose(alive.storage());
    return;
  }
  void* data = const_cast<void*>(memory_of(made));  // where its storage begins
  auto* holder = new at::Storage(made.storage());
  gone.set_data_ptr_noswap(at::DataPtr(data, holder, [](void* storage) { delete static_cast<at::Storage*>(storage); }, gone.device()));
  allow_raw_access(gone);
}

}  // namespace

at::Tensor alive_as(const TapeValue& value) {
  const at::Tensor t = value.weak.expired() ? at::Tensor() : value.lock();
  if (!t.defined() || t.layout() != at::kStrided) return t;
  const bool same = t.sizes() == at::IntArrayRef(value.sizes) && t.strides() == at::IntArrayRef(value.strides) && t.storage_offset() == value.storage_offset;
  return same ? t : at::Tensor();
}

bool looks_at_copy(const Tape& tape, TapeValueId v) {
  const TapeValue& value = tape.values()[v];
  if (value.is_capture() || !value.is_view) return false;
  const TapeOp& op = tape.ops()[value.producer];
  return !op.in_place && std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) {
    const TapeValue& read = tape.values()[ref.value];
    return read.group == value.group && (read.is_copied() || looks_at_copy(tape, ref.value));
  });
}

at::Tensor take_place(const at::Tensor& made, const at::Tensor& alive) {
  if (made.is_same(alive) || storage_of(alive) == nullptr) return alive;  // a sparse tensor, which check_convertible() let pass, is what it was
  const auto entry = deferred_registry().find(made.unsafeGetTensorImpl());
  TORCH_CHECK_WITH(OutOfMemoryError, made.scalar_type() == alive.scalar_type(), kUnderKoila, "what was made again is ", made.scalar_type(), " and was ", alive.scalar_type(), ".");
  if (entry.region == nullptr && made.is_view() && made._base().is_same(alive)) return alive;  // t_() of one dimension, or for a second time: it looks as it did before
  give_memory_back(alive, made, entry);
  c10::TensorImpl* impl = alive.unsafeGetTensorImpl();
  const void* before = memory_of(alive);
  impl->set_storage_keep_dtype(made.storage());
  impl->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
  if (entry.region != nullptr) {
    entry.region->shared_from_this()->rebind(entry.value, alive);
    return alive;
  }
  for (const auto& region : session().live_regions()) region->given_memory(alive, before);
  impl->set_autograd_meta(view_meta_of(made, impl));
  if (made.requires_grad()) torch::autograd::impl::set_gradient_edge(alive, torch::autograd::impl::gradient_edge(made));
  if (const Mark* mark = session().marks.find(made.unsafeGetTensorImpl())) {
    session().marks.add(alive, mark->placement, mark->batch, mark->micro_batch);
  }
  return alive;
}

void give_value(const at::Tensor& made) {
  const auto entry = deferred_registry().find(made.unsafeGetTensorImpl());
  if (entry.region != nullptr) entry.region->shared_from_this()->hand_over(entry.value, made);
}

at::Storage storage_of_group(const Tape& tape, uint32_t group) {
  for (const TapeValue& value : tape.values()) {
    if (value.group != group || value.weak.expired()) continue;
    if (const at::Tensor t = value.lock(); t.defined() && storage_of(t) != nullptr) return t.storage();
  }
  return {};
}

}  // namespace koila
