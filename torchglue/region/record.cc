// What a region consists of: values, their deferred tensors and gradient edges, and operators that had run before they joined.
#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/op_traits.h"
#include "torchglue/region/constant_views.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/half_sums.h"
#include "torchglue/region/node.h"
#include "torchglue/region/region.h"
#include "torchglue/region/successors.h"
#include "torchglue/step/session.h"

namespace koila {

Region::Region(int64_t batch, int64_t micro_batch, at::Device device) : batch_(batch), micro_batch_(micro_batch), device_(device), depth_(session().engine_depth), side_(device) {
  first_.rows = {0, micro_batch};
  first_.grad = true;
}

Region::~Region() {
  release();
  if (deferred_registry().any()) deferred_registry().forget(this);
}

bool Region::has_deferred() const {
  return std::any_of(values_.begin(), values_.end(), [&](const Value& v) { return v.impl != nullptr && !groups_[v.group].materialised; });
}

void Region::close() { open_ = false; }

NodePtr Region::node() const { return node_ == nullptr ? NodePtr() : RegionNode::owner(node_); }

ValueId Region::new_value(const Placement& placement, uint32_t group, bool requires_grad, bool random) {
  Value& value = values_.emplace_back();
  value.placement = placement;
  value.group = group;
  value.requires_grad = requires_grad;
  value.random = random;
  return static_cast<ValueId>(values_.size() - 1);
}

uint32_t Region::new_group(ValueId base) {
  groups_.emplace_back().base = base;
  return static_cast<uint32_t>(groups_.size() - 1);
}

// Makes `tensor` (fresh, or one the program holds) the deferred tensor of a value. Its storage and strides are set already.
void Region::install(ValueId id, const at::Tensor& tensor) {
  Value& value = values_[id];
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  value.impl = impl;
  value.sizes.assign(impl->sizes().begin(), impl->sizes().end());
  value.strides.assign(impl->strides().begin(), impl->strides().end());
  value.storage_offset = impl->storage_offset();
  value.dtype = tensor.scalar_type();
  Group& group = groups_[value.group];
  value.constant_view = !value.requires_grad && group.base != id && is_constant_view(tensor);
  watch_for_death(*impl, {shared_from_this(), impl, id}, value.constant_view);
  deferred_registry().add(impl, this, id);
  if (!group.materialised && !group.storage) {
    group.storage = tensor.storage();
    deferred_registry().add_storage(storage_of(tensor), this, value.group);
  }
  if (value.requires_grad) attach_gradient(id, tensor);
}

void Region::attach_gradient(ValueId id, const at::Tensor& deferred) {
  NodePtr owner = node();
  if (!owner) {
    owner = make_node<RegionNode>(shared_from_this());
    node_ = owner.get();
    for (Value& value : values_) value.node_output = -1;
    for (Capture& capture : captures_) {
      capture.edge = -1;
      if (capture.requires_grad && capture.tensor.defined()) static_cast<RegionNode*>(node_)->add_capture(capture);
    }
  }
  Value& value = values_[id];
  value.requires_grad = true;
  if (std::exchange(value.constant_view, false)) stand_alone(deferred);
  if (value.node_output < 0) value.node_output = static_cast<RegionNode*>(node_)->add_output(deferred, id);
  torch::autograd::impl::set_gradient_edge(deferred, torch::autograd::Edge(owner, static_cast<uint32_t>(value.node_output)));
}

// A write of something differentiable makes the written tensor, its base and its views differentiable, as far as micro-batch 0 shows. See Note
// [Views that are behind].
void Region::attach_gradients(uint32_t group) {
  const NoInterceptGuard no_intercept;
  for (ValueId id = 0; id < values_.size(); ++id) {
    const Value& value = values_[id];
    if (value.group != group || value.impl == nullptr || value.requires_grad || id >= first_.values.size()) continue;
    const at::Tensor& local = first_.values[id];
    std::vector<torch::autograd::Node*> nodes;
    if (local.defined() && local.requires_grad()) add_nodes_behind(local, nodes);
    if (!nodes.empty()) attach_gradient(id, at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(value.impl)));
  }
}

// A new deferred tensor with the storage `storage`.
at::Tensor Region::make_deferred(const at::Tensor& like, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, at::Storage storage) {
  auto impl = like.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  at::Tensor tensor(std::move(impl));
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

std::vector<at::Tensor> Region::add_known(const Call& call, std::vector<KnownOutput> outputs) {
  const OpTraits& traits = op_traits(call.op);
  Instruction in = instruction_for(call);
  note_write(in);
  if (!in.by_user && may_run_in_float(in, call)) {
    in.in_float = std::any_of(outputs.begin(), outputs.end(), [](const KnownOutput& o) { return !o.handed_back.defined() && o.placement.is_partial() && is_half(o.dtype); });
  }
  bool random = call.random;
  for (const Argument& argument : in.arguments) {
    for (const Operand& operand : argument.operands) {
      random |= operand.kind == Operand::Kind::kValue && values_[operand.id].random;
    }
  }
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < outputs.size(); ++i) {
    KnownOutput& known = outputs[i];
    if (known.handed_back.defined()) {
      const auto entry = deferred_registry().find(known.handed_back.unsafeGetTensorImpl());
      const bool written = traits.in_place && i == 0 && entry.region == this;
      in.outputs.push_back(written ? entry.value : kNoValue);
      if (written) {
        values_[entry.value].random |= random;
        if (known.requires_grad && !values_[entry.value].requires_grad) attach_gradient(entry.value, known.handed_back);
      }
      tensors.push_back(known.handed_back);
      continue;
    }
    const ValueId id = new_value(known.placement, 0, known.requires_grad, random);
    values_[id].group = known.alias_of != kNoValue ? values_[known.alias_of].group : new_group(id);
    in.outputs.push_back(id);
    Group& group = groups_[values_[id].group];
    at::Storage shared = group.storage;
    // Its data is there, but for a view of what an operator that ran again has made anew.
    const bool has_data = known.keep_data && (known.alias_of == kNoValue || group.materialised);
    if (group.materialised && known.alias_of != kNoValue && values_[known.alias_of].impl != nullptr) {
      shared = values_[known.alias_of].impl->storage();  // it has its value already
    }
    at::Tensor tensor = known.tensor;
    if (tensor.defined()) {
      values_[id].hidden_base = known.alias_of == kNoValue && tensor.is_view();
      if (has_data) {
        group.materialised = true;
      } else if (shared && storage_of(tensor) != shared.unsafeGetStorageImpl()) {
        tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(shared);
      }
    } else {
      at::Storage storage = shared ? shared : known.storage;
      if (!storage) {
        storage = empty_storage(at::detail::computeStorageNbytes(known.sizes, known.strides, c10::elementSize(known.dtype), known.storage_offset), device_,
                                c10::GetAllocator(device_.type()));
      }
      if (has_data) group.materialised = true;
      tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), known.keys, c10::scalarTypeToTypeMeta(known.dtype));
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(known.sizes, known.strides, known.storage_offset);
    }
    if (has_data) group.kept = storage_of(tensor);
    install(id, tensor);
    tensors.push_back(std::move(tensor));
  }
  instructions_.push_back(std::move(in));
  return tensors;
}

bool Region::would_cycle(const at::Tensor& tensor) const {
  if (node_ == nullptr || !tensor.requires_grad() || tensor.is_leaf()) return false;
  bool found = false;
  std::vector<torch::autograd::Node*> behind;
  add_nodes_behind(tensor, behind);
  follow_successors(behind);
  walk_graph(std::move(behind), [&](const torch::autograd::Node* node) {
    found |= node == node_;
    return !found;
  });
  return found;
}

}  // namespace koila
