#include "torchglue/updates/late_updates.h"

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <new>

#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/real_values.h"
#include "torchglue/step/ladder.h"
#include "torchglue/updates/note_updates.h"
#include "torchglue/oom/oom.h"
#include "torchglue/sizing/sizing.h"
#include "torchglue/step/session.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"

namespace koila {

namespace {

constexpr size_t kAside[] = {64 << 10, 16 << 10, 4 << 10, 1 << 10, 512};  // as much of it as there is room for

bool in_optimizer() { return origin_now(false).when == KOILA_IN_OPTIMIZER; }

// Where an operator means what it says, and no graph is made.
bool is_plain_update(c10::DispatchKeySet keys) {
  const Session& s = session();
  return s.engine_depth == 0 && !s.converting && s.had_backward && !c10::AutogradState::get_tls_state().get_grad_mode() && !c10::InferenceMode::is_enabled() &&
         !keys.has_any(c10::autocast_dispatch_keyset) && in_optimizer();
}

// It looks at its argument's sizes, and gives another tensor with the same memory.
bool only_looks(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == "aten::detach" || name == "aten::alias" || name == "aten::conj";
}

c10::Stream stream_on(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

// More at a time is no faster, and leaves less for others.
constexpr int64_t kBytesAtMost = 16 << 20;

Chain::Terms terms_for(at::Device device) {
  const auto available = available_bytes(device);
  return {std::min(kBytesAtMost, available ? *available / 2 : kBytesAtMost), [device](int tries) {
            constexpr int kTriesAtMost = 3;  // it may have been made to fail: see KOILA_INJECT_OOM
            return (tries < kTriesAtMost && may(KOILA_RUNG_RETRY)) || session().offload.begin_in_rows(device_number(device));
          }};
}

bool overlaps(const Slot& slot, const at::Tensor& t) {
  const auto end = [](int64_t offset, const auto& sizes, const auto& strides) {
    for (size_t i = 0; i < sizes.size(); ++i) offset += (sizes[i] - 1) * strides[i];
    return offset + 1;
  };
  const int64_t a = static_cast<int64_t>(c10::elementSize(slot.dtype)), b = static_cast<int64_t>(t.element_size());
  return slot.offset * a < end(t.storage_offset(), t.sizes(), t.strides()) * b && t.storage_offset() * b < end(slot.offset, slot.sizes, slot.strides) * a;
}

}  // namespace

LateUpdates& late_updates() {
  static auto* updates = new LateUpdates;  // never destroyed: tensors may outlive static destruction
  return *updates;
}

void LateUpdates::forget() { new (this) LateUpdates; }

// The slot whose memory the tensor is; null where there is none.
Slot* LateUpdates::find(const at::Tensor& t) const {
  const auto [first, last] = slots_.equal_range(storage_of(t));
  for (auto it = first; it != last; ++it) {
    if (it->second->is_seen_as(t)) return it->second;
  }
  return nullptr;
}

// Whether a chain knows a part of the tensor's memory as something else.
bool LateUpdates::conflicts(const at::Tensor& t) const {
  const auto [first, last] = slots_.equal_range(storage_of(t));
  return std::any_of(first, last, [&](const auto& known) { return !known.second->is_seen_as(t) && overlaps(*known.second, t); });
}

// The chains that the call has to wait for.
LateUpdates::Chains LateUpdates::concerned(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) const {
  Chains found;
  for_each_tensor(arguments, [&](const at::Tensor& t, int argument, int) {
    if (storage_of(t) == nullptr) return;
    const c10::AliasInfo* alias = op.schema().arguments()[argument].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    const auto [first, last] = slots_.equal_range(storage_of(t));
    for (auto it = first; it != last; ++it) {
      const Slot& slot = *it->second;
      if ((slot.is_deferred() || slot.written || writes) && std::find(found.begin(), found.end(), slot.chain) == found.end()) found.push_back(slot.chain);
    }
  });
  return found;
}

bool LateUpdates::keep_aside(at::Device device, bool must) {
  if (aside_ && aside_.device() == device) return true;
  aside_.clear();
  const Offload::MayFail may_fail;
  const auto available = available_bytes(device);
  for (const size_t bytes : kAside) {
    if (available && *available < static_cast<int64_t>(2 * bytes) && bytes != std::end(kAside)[-1]) continue;
    try {
      aside_ = c10::GetAllocator(device.type())->allocate(bytes);
      return true;
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
    }
  }
  return !must;
}

// The call, if it can be noted as things stand. Nothing has been changed.
std::optional<LateUpdates::Written> LateUpdates::prepare(const c10::OperatorHandle& op, c10::DispatchKeySet keys, at::ArrayRef<c10::IValue> arguments) {
  if (!is_plain_update(keys) || !works_by_element(op)) return std::nullopt;
  bool known = true;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    const auto& registry = deferred_registry();
    known &= storage_of(t) != nullptr && registry.find(t.unsafeGetTensorImpl()).region == nullptr && registry.find_storage(storage_of(t)).first == nullptr && !conflicts(t);
  });
  if (!known) return std::nullopt;
  aside_.clear();  // a few bytes are asked for
  auto call = take_apart(op, arguments);
  if (!call) return std::nullopt;
  const at::Device device = call->entries.front().like().device();
  if (!stream_) stream_ = stream_on(device);
  Written what{std::move(*call), {}};
  for (const Entry& entry : what.call.entries) {
    if (entry.like().device() != device || stream_->device() != device || *stream_ != stream_on(device)) return std::nullopt;
    auto& numbers = what.numbers.emplace_back();
    for (const Entry::Operand& number : entry.numbers) {
      if (!concerned(op, {c10::IValue(number.tensor)}).empty() || find(number.tensor) != nullptr) return std::nullopt;
      const NoInterceptGuard no_intercept;
      try {
        numbers.push_back(number.tensor.detach().clone());
      } catch (const std::exception& error) {
        if (!is_out_of_memory(error)) throw;
        return std::nullopt;
      }
    }
  }
  return what;
}

Chain& LateUpdates::chain_for(const Entry& entry) {
  Chain* chain = nullptr;
  for (const Entry::Operand& o : entry.operands) {
    const Slot* slot = find(o.tensor);
    if (slot == nullptr || slot->chain == chain) continue;
    if (chain == nullptr) {
      chain = slot->chain;
    } else {
      Chain* other = slot->chain;
      chain->merge(std::move(*other));
      std::erase_if(chains_, [&](const auto& c) { return c.get() == other; });
    }
  }
  if (chain != nullptr) return *chain;
  any_.store(true, std::memory_order_relaxed);
  return *chains_.emplace_back(std::make_unique<Chain>(entry.like().device()));
}

Slot* LateUpdates::slot_for(const at::Tensor& t, Chain& chain) {
  if (Slot* known = find(t); known != nullptr) return known;
  auto slot = std::make_unique<Slot>();
  slot->chain = &chain;
  slot->real = t.variable_data();  // the same memory; its versions are not the program's
  slot->key = storage_of(t);
  slot->sizes = t.sizes();
  slot->strides = t.strides();
  slot->offset = t.storage_offset();
  slot->dtype = t.scalar_type();
  slots_.emplace(slot->key, slot.get());
  return chain.slots.emplace_back(std::move(slot)).get();
}

at::Tensor LateUpdates::make_deferred(const Entry& entry, Chain& chain, Slot** slot) {
  const NoInterceptGuard no_intercept;
  const at::Tensor& like = entry.like();
  const at::Device device = like.device();
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(entry.result).device(device));
  const size_t bytes = at::detail::computeStorageNbytes(like.sizes(), like.strides(), c10::elementSize(entry.result));
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(empty_storage(bytes, device, c10::GetAllocator(device.type())));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), 0);
  auto made = std::make_unique<Slot>();
  made->chain = &chain;
  c10::StorageImpl* storage = storage_of(tensor);
  made->deferred = c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  made->key = storage;
  made->sizes = like.sizes();
  made->strides = like.strides();
  made->dtype = entry.result;
  slots_.emplace(storage, made.get());
  *slot = chain.slots.emplace_back(std::move(made)).get();
  return tensor;
}

at::Tensor LateUpdates::note_entry(const c10::OperatorHandle& op, Entry&& entry, const std::vector<at::Tensor>& numbers, int written) {
  Chain& chain = chain_for(entry);
  LateCall call{number_++, op, {}, {}, nullptr};
  for (size_t i = 0; i < numbers.size(); ++i) entry.numbers[i].tensor = numbers[i];
  const auto arguments = with_operands(entry.arguments, entry.numbers);
  call.arguments.assign(arguments.begin(), arguments.end());
  for (const Entry::Operand& o : entry.operands) {
    Slot* slot = slot_for(o.tensor, chain);
    call.places.push_back({o.argument, o.in_list, slot});
    call.arguments[o.argument] = c10::IValue();
    slot->written |= o.argument == written;
  }
  at::Tensor made;
  if (written < 0) made = make_deferred(entry, chain, &call.result);
  chain.calls.push_back(std::move(call));
  return made;
}

void LateUpdates::note(const c10::OperatorHandle& op, torch::jit::Stack* stack, Written&& what) {
  const size_t count = op.schema().arguments().size();
  const int written = what.call.written;
  std::vector<at::Tensor> made;
  for (size_t i = 0; i < what.call.entries.size(); ++i) {
    at::Tensor one = note_entry(op, std::move(what.call.entries[i]), what.numbers[i], written);
    if (one.defined()) made.push_back(std::move(one));
  }
  const auto arguments = torch::jit::last(*stack, count);
  if (written >= 0) {
    for_each_written(op.schema(), arguments, [](const at::Tensor& t, int) { torch::autograd::impl::bump_version(t); });
    note_updates(op, op_traits(op), arguments);
    const bool returns = !op.schema().returns().empty();
    const c10::IValue result = returns ? arguments[written] : c10::IValue();
    torch::jit::drop(*stack, count);
    if (returns) stack->push_back(result);
    return;
  }
  torch::jit::drop(*stack, count);
  if (what.call.list_result) {
    stack->emplace_back(c10::List<at::Tensor>(made));
  } else {
    stack->emplace_back(made.front());
  }
}

bool LateUpdates::take(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  if (!in_optimizer() || op.schema().name().starts_with("profiler::_record_function_exit")) {
    settle_all();
    return false;
  }
  run_ripe();
  const Chains chains = concerned(op, arguments);
  if (chains.empty()) return false;
  if (only_looks(op) && arguments[0].isTensor() && find(arguments[0].toTensor()) != nullptr && find(arguments[0].toTensor())->is_deferred()) {
    const RegionWork no_access;
    const NoInterceptGuard no_intercept;
    op.redispatchBoxed(keys & kBelowInterceptor, stack);
    return true;
  }
  const at::Device device = chains.front()->device;
  if (auto what = prepare(op, keys, arguments)) {
    for_each_written(op.schema(), arguments, [](const at::Tensor& t, int) { session().before_write(storage_of(t)); });
    note(op, stack, std::move(*what));
    keep_aside(device, /*must=*/false);
    return true;
  }
  run(chains);
  return false;
}

bool LateUpdates::begin(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const OutOfMemory& oom) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  const OpTraits& traits = op_traits(op);
  if (!may(KOILA_RUNG_SPLIT) || (traits.writes && traits.foreach) || op.schema().name() == "aten::clone" || op.schema().name() == "aten::_foreach_clone") return false;
  auto what = prepare(op, keys, arguments);
  if (!what) {
    if (any()) keep_aside(chains_.front()->device, /*must=*/false);
    return false;
  }
  if (!keep_aside(what->call.entries.front().like().device(), /*must=*/true)) return false;
  for_each_written(op.schema(), arguments, [](const at::Tensor& t, int) { session().before_write(storage_of(t)); });
  oom_ = oom;
  session().tape.cut();
  note(op, stack, std::move(*what));
  if (std::exchange(told_in_, optimizer_steps_over()) != optimizer_steps_over()) report_rescue(oom, KOILA_RUNG_SPLIT);
  return true;
}

std::unique_ptr<Chain> LateUpdates::take_out(Chain& chain) {
  for (const auto& slot : chain.slots) {
    const auto [first, last] = slots_.equal_range(slot->key);
    slots_.erase(std::find_if(first, last, [&](const auto& known) { return known.second == slot.get(); }));
  }
  const auto at = std::find_if(chains_.begin(), chains_.end(), [&](const auto& c) { return c.get() == &chain; });
  auto taken = std::move(*at);
  chains_.erase(at);
  any_.store(!chains_.empty(), std::memory_order_relaxed);
  return taken;
}

// Nothing that waits is made any more: parameters stay as they are, as where the operator that ran out had raised its error. What the program holds of it has no value.
void LateUpdates::drop_all() {
  while (!chains_.empty()) {
    const auto lost = take_out(*chains_.front());
    for (const auto& slot : lost->slots) {
      if (const auto storage = slot->deferred.lock()) deferred_registry().lose(at::Storage(storage));
    }
  }
  stream_.reset();
}

void LateUpdates::run(Chain& chain) {
  const at::Device device = chain.device;
  aside_.clear();
  bool begun = false;
  try {
    const Offload::MayFail may_fail;
    chain.run(terms_for(device), begun);
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) {
      take_out(chain);
      throw;
    }
    const OutOfMemory oom = describe_out_of_memory(oom_.op);
    drop_all();
    if (!begun) {
      report_refusal(oom, "what an optimizer's step made, and the program holds, does not fit.", 0);
      throw;
    }
    refuse_split_step(oom, "an optimizer's step is half done: not even a few elements of a parameter's update had room.", 0);
  }
  take_out(chain);
  if (chains_.empty()) {
    stream_.reset();
    if (session().tape.pending() == nullptr) session().tape.cut();
  } else {
    keep_aside(device, /*must=*/false);
  }
}

void LateUpdates::run(const Chains& chains) {
  for (Chain* chain : chains) run(*chain);
}

void LateUpdates::run_ripe() {
  Chains ripe;
  for (const auto& chain : chains_) {
    if (chain->is_ripe()) ripe.push_back(chain.get());
  }
  run(ripe);
}

bool LateUpdates::settle(const c10::StorageImpl* storage) {
  if (!any() || storage == nullptr || !session().owned_by_this_thread()) return false;
  Chains found;
  const auto [first, last] = slots_.equal_range(storage);
  for (auto it = first; it != last; ++it) {
    if (std::find(found.begin(), found.end(), it->second->chain) == found.end()) found.push_back(it->second->chain);
  }
  run(found);
  return !found.empty();
}

void LateUpdates::settle(at::ArrayRef<c10::IValue> arguments) {
  if (!any() || RegionWork::active() || !session().owned_by_this_thread()) return;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    const auto [first, last] = slots_.equal_range(storage_of(t));
    if (std::any_of(first, last, [](const auto& known) { return known.second->is_deferred() || known.second->written; })) settle(storage_of(t));
  });
}

void LateUpdates::settle_all() {
  if (!any() || !session().owned_by_this_thread()) return;
  run_ripe();  // these need no memory that stays
  while (!chains_.empty()) run(*chains_.front());
}

}  // namespace koila
