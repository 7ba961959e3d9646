#include "torchglue/tape/tape.h"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <utility>

#include "torchglue/op_traits.h"
#include "torchglue/operators/gradient.h"
#include "torchglue/tape/node_kind.h"
#include "torchglue/base/tensor_memory.h"

namespace koila {

namespace {

int64_t (*bytes_in_use)(int device) = nullptr;

constexpr int64_t kShareOfSmall = 400;
constexpr int64_t kLittle = 1 << 17;  // bytes: so much is one part in thirty-two enough for
constexpr int64_t kShareOfLittle = 32;
constexpr size_t kLately = 128;  // values: views of something small are searched among so many

// Whether the operator gives the same again from the same arguments.
bool can_run_again(const TapeOp& op) {
  return !op.in_place && !drew(op);
}

// Whether it is no more than one part in `share` of what is in use where the tensor is.
bool is_part_of_use(const at::Tensor& like, int64_t bytes, int64_t share) {
  const int64_t in_use = bytes_in_use != nullptr ? bytes_in_use(like.is_cpu() ? -1 : static_cast<int>(like.device().index())) : 0;
  return bytes * share <= in_use;
}

}  // namespace

void set_bytes_in_use(int64_t (*in_use)(int device)) { bytes_in_use = in_use; }

// Whether the tape may hold so much on its own account: one part in `share` of what is in use. In a small model indices and masks are a larger part of it.
bool Tape::affordable(const at::Tensor& like, int64_t bytes, int64_t share) {
  return is_part_of_use(like, bytes, bytes <= kLittle ? std::min(share, kShareOfLittle) : share);
}

std::shared_ptr<Hold> Tape::hold(TapeValueId id) {
  auto hold = values_[id].hold.lock();
  if (!hold) values_[id].hold = hold = std::make_shared<Hold>(Hold{values_[id].lock(), {}});
  return hold;
}

// What the value, as it was at that version, is made from and nothing else holds for certain. False when it cannot be made again.
bool Tape::find_origins(TapeValueId id, uint32_t version, int depth, std::vector<TapeValueId>& origins) const {
  const TapeValue& value = values_[id];
  if (value.differentiable()) return true;  // a region makes it again
  if (value.strong.defined() && version_of(value.strong) == version) return true;
  if (!value.is_capture() && can_run_again(ops()[value.producer]) && value.version == version && depth < kRunAgainAtMost) {
    const auto& refs = ops()[value.producer].refs;
    const size_t found = origins.size();
    if (std::all_of(refs.begin(), refs.end(), [&](const TapeRef& ref) { return find_origins(ref.value, ref.version, depth + 1, origins); })) return true;
    origins.resize(found);  // something further back is gone
  }
  const at::Tensor t = value.lock();
  if (!t.defined() || version_of(t) != version) return false;
  if (value.hold.expired() && std::find(origins.begin(), origins.end(), id) == origins.end()) origins.push_back(id);
  return true;
}

std::shared_ptr<Hold> Tape::hold_origins(TapeValueId id) {
  if (auto known = values_[id].hold.lock()) return known;
  std::vector<TapeValueId> origins;
  find_origins(id, values_[id].version, 0, origins);
  int64_t bytes = 0;
  for (TapeValueId origin : origins) bytes += values_[origin].bytes();
  // It cannot be made again, what it came of is gone: it is an input like any other. Nor is it worth it where it is no larger than that, which may go as well: labels of a minibatch, picked from a
  // table; images that were scaled.
  if (values_[id].bytes() <= bytes) return hold(id);
  if (origins.empty() || !affordable(values_[id].lock(), held_for_origins_ + bytes, kShareOfOrigins)) return nullptr;
  held_for_origins_ += bytes;
  auto all = std::make_shared<Hold>();
  for (TapeValueId origin : origins) all->origins.push_back(hold(origin));
  values_[id].hold = all;
  return all;
}

// Whether nothing has the tensor's storage but itself and views that operators have made of it lately.
bool Tape::is_alone(const at::Tensor& tensor, TapeValueId id) const {
  size_t others = tensor.storage().use_count() - 1;
  const size_t first = std::max<size_t>(id + 1, values_.size() < kLately ? 0 : values_.size() - kLately);
  for (size_t v = values_.size(); others > 0 && v-- > first;) {
    if (values_[v].group == values_[id].group && values_[v].is_view && !values_[v].weak.expired()) --others;
  }
  return others == 0;
}

// Note [Small things that are gone]
// A mask is made in a function, of an arange that is gone when the function returns. Only the mask enters the differentiable part, and by then it may be
// as large as the batch is. So what is small, what no operator can make again, and what an operator without gradient reads, is held from then on, until
// nothing descends from it, or the tape is cut: all of that under one part in four hundred of the memory in use (in thirty-two while it is little, see affordable()). What a Hold or
// a node's view keeps alive at the time may be wanted after them (a codebook, when the distances to it are gone). It is held as well, but for one part in four hundred always. Only memory that the tensor and
// its views have for themselves, and PyTorch gave: what others may write to (an array of NumPy's, the rest of a buffer) would not be what it was.
void Tape::hold_small(at::ArrayRef<c10::IValue> arguments) {
  if (holds_nothing_small_) return;
  size_t ref = 0;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    const TapeRef& r = pending_refs_[ref++];
    TapeValue& value = values_[r.value];
    if (value.strong.defined() || value.requires_grad || value.differentiable() || groups_[value.group].pinned) return;
    if (!value.is_capture() && can_run_again(ops()[value.producer])) return;
    if (storage_of(t) == nullptr || version_of(t) != r.version || find(t.unsafeGetTensorImpl()) != r.value) return;
    const auto bytes = static_cast<int64_t>(t.storage().nbytes());
    if (bytes > kSmallAtMost || !t.storage().resizable()) return;
    const int64_t with_it = held_small_ + bytes;
    const bool held_by_others = !value.hold.expired() || t.storage().use_count() != 1;
    const bool may_be = held_by_others ? is_part_of_use(t, with_it, kShareOfSmall) && is_alone(t, r.value) : affordable(t, with_it, kShareOfSmall);
    if (!may_be) return;
    held_small_ = with_it;
    value.strong = t;
    value.small = bytes;
  });
}

// What is differentiable a region makes again, and the graph holds what it has saved. But what has been updated by a gradient (the weights that MAML goes on with) no operator makes again, and of a bias, or of
// the weights of a first layer, nothing is saved.
std::shared_ptr<Hold> Tape::hold_made_of_gradients(TapeValueId id) {
  const TapeValue& value = values_[id];
  if (!has_gradients_ || value.is_capture()) return nullptr;
  if (auto known = value.hold.lock()) return known;
  if (!affordable(value.lock(), held_for_origins_ + value.bytes(), kShareOfOrigins)) return nullptr;
  held_for_origins_ += value.bytes();
  return hold(id);
}

void Tape::hold_inputs(at::ArrayRef<c10::IValue> arguments, at::ArrayRef<c10::IValue> results) {
  std::vector<std::shared_ptr<Hold>> holds;
  size_t ref = 0;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    const TapeValueId id = pending_refs_[ref++].value;
    TapeValue& value = values_[id];
    // What is written to was something else before.
    if (value.strong.defined() || find(t.unsafeGetTensorImpl()) != id) return;
    if (value.differentiable()) {
      if (auto kept = hold_made_of_gradients(id)) holds.push_back(std::move(kept));
      return;
    }
    value.entered = true;
    auto kept = !value.is_capture() && can_run_again(ops()[value.producer]) ? hold_origins(id) : hold(id);
    if (kept) holds.push_back(std::move(kept));
  });
  hang_on(results, holds);
}

// The graphs of gradients are what needs it from now on: that of the outputs may go before.
void Tape::hold_behind_gradient(at::ArrayRef<c10::IValue> results) const {
  std::vector<std::shared_ptr<Hold>> holds;
  std::vector<char> seen(values_.size(), 0);
  std::vector<TapeValueId> stack;
  const auto visit = [&](const TapeRef& ref) {
    if (!std::exchange(seen[ref.value], 1)) stack.push_back(ref.value);
  };
  std::for_each(pending_refs_.begin(), pending_refs_.end(), visit);
  while (!stack.empty()) {
    const TapeValue& value = values_[stack.back()];
    stack.pop_back();
    if (auto held = value.hold.lock()) holds.push_back(std::move(held));
    if (value.is_capture()) continue;
    const TapeOp& op = ops()[value.producer];
    std::for_each(op.refs.begin(), op.refs.end(), visit);
  }
  hang_on(results, holds);
}

// As long as the graphs of the results live.
void Tape::hang_on(at::ArrayRef<c10::IValue> results, const std::vector<std::shared_ptr<Hold>>& holds) const {
  if (holds.empty()) return;
  torch::autograd::Node* last = nullptr;
  for_each_tensor(results, [&](const at::Tensor& t, int, int) {
    auto* node = const_cast<torch::autograd::Node*>(node_of(t));
    // A node from before the call came with an argument that was handed back.
    if (node != nullptr && node != last && (is_gradient(pending_->op) || node->sequence_nr() >= sequence_before_) && kind_of(*node) != NodeKind::kRegion) node->add_pre_hook(std::make_unique<HoldHook>(holds));
    last = node;
  });
}

}  // namespace koila
