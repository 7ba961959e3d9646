#include "torchglue/updates/chain.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "torchglue/region/deferred.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/real_values.h"
#include "torchglue/oom/oom.h"
#include "torchglue/base/tls.h"

namespace koila {

namespace {

// A run over the elements, some at a time.
class Stretches {
 public:
  Stretches(Chain& chain, const Chain::Terms& terms);
  void run(bool& begun);

 private:
  using Locals = std::vector<at::Tensor>;  // by slot: what exists for the stretch alone

  size_t at(const Slot* slot) const { return index_.at(slot); }
  at::Tensor operand(const Slot* slot, int64_t begin, int64_t end, const Locals& locals) const;
  void call(const LateCall& call, int64_t begin, int64_t end, Locals& locals);
  void run_from(size_t first, int64_t begin, int64_t end, Locals& locals, bool& begun);
  int64_t elements_at_once() const;
  at::Tensor empty_full(const Slot& slot) const;
  void hand_out();

  Chain& chain_;
  const Chain::Terms& terms_;
  std::map<const Slot*, size_t> index_;
  std::vector<at::Tensor> full_;   // by slot: real memory, or the value of what the program holds, as one row of elements
  std::vector<at::Tensor> value_;  // by slot: what is to become of a deferred tensor
  std::vector<size_t> last_;       // by slot: the last call that has to do with it
  int64_t elements_ = 1;
  int64_t at_once_ = 1;
  bool flat_ = true;  // the tensors have dimensions
};

Stretches::Stretches(Chain& chain, const Chain::Terms& terms)
    : chain_(chain), terms_(terms), full_(chain.slots.size()), value_(chain.slots.size()), last_(chain.slots.size(), 0) {
  for (size_t i = 0; i < chain.slots.size(); ++i) index_.emplace(chain.slots[i].get(), i);
  for (size_t c = 0; c < chain.calls.size(); ++c) {
    for (const LateCall::Place& place : chain.calls[c].places) last_[at(place.slot)] = c;
    if (chain.calls[c].result != nullptr) last_[at(chain.calls[c].result)] = c;
  }
  const Slot& any = *chain.slots.front();
  for (const int64_t size : any.sizes) elements_ *= size;
  flat_ = !any.sizes.empty();
}

at::Tensor Stretches::empty_full(const Slot& slot) const {
  for (int tries = 1;; ++tries) {
    try {
      return at::empty_strided(slot.sizes, slot.strides, at::TensorOptions().dtype(slot.dtype).device(chain_.device));
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error) || !terms_.try_again(tries)) throw;
    }
  }
}

int64_t Stretches::elements_at_once() const {
  // All that exists for a stretch alone may be there at once, and a result beside what it is made from.
  int64_t bytes = 0;
  for (size_t i = 0; i < chain_.slots.size(); ++i) {
    if (!full_[i].defined()) bytes += static_cast<int64_t>(c10::elementSize(chain_.slots[i]->dtype));
  }
  const int64_t most = terms_.bytes_at_most / std::max<int64_t>(bytes, 1);
  return std::clamp(most / kElementsAtLeast * kElementsAtLeast, kElementsAtLeast, std::max(elements_, kElementsAtLeast));
}

at::Tensor Stretches::operand(const Slot* slot, int64_t begin, int64_t end, const Locals& locals) const {
  const size_t i = at(slot);
  if (!full_[i].defined()) return locals[i];
  return flat_ ? full_[i].narrow(0, begin, end - begin) : full_[i];
}

void Stretches::call(const LateCall& call, int64_t begin, int64_t end, Locals& locals) {
  std::vector<Entry::Operand> operands;
  for (const LateCall::Place& place : call.places) operands.push_back({place.argument, place.in_list, operand(place.slot, begin, end, locals)});
  torch::jit::Stack stack = with_operands(call.arguments, operands);
  call.op.callBoxed(stack);
  if (call.result == nullptr) return;
  const at::Tensor made = stack.front().isTensor() ? stack.front().toTensor() : stack.front().toListRef()[0].toTensor();
  TORCH_INTERNAL_ASSERT(made.scalar_type() == call.result->dtype, "koila: a stretch has another type than the whole");
  const size_t i = at(call.result);
  if (full_[i].defined()) {
    operand(call.result, begin, end, locals).copy_(made);
  } else {
    locals[i] = made;
  }
}

void Stretches::run_from(size_t first, int64_t begin, int64_t end, Locals& locals, bool& begun) {
  for (size_t c = first; c < chain_.calls.size(); ++c) {
    for (int tries = 1;; ++tries) {
      try {
        call(chain_.calls[c], begin, end, locals);
        begun = true;
        break;
      } catch (const std::exception& error) {
        if (!is_out_of_memory(error)) throw;
        if (end - begin <= kElementsAtLeast) {
          if (terms_.try_again(tries)) continue;
          throw;
        }
      }
      const int64_t half = ((end - begin) / 2 + kElementsAtLeast - 1) / kElementsAtLeast * kElementsAtLeast;
      at_once_ = std::min(at_once_, half);
      for (const auto& [from, to] : {std::pair{begin, begin + half}, std::pair{begin + half, end}}) {
        Locals part(locals.size());
        for (size_t i = 0; i < locals.size(); ++i) {
          if (locals[i].defined()) part[i] = locals[i].narrow(0, from - begin, to - from);
        }
        run_from(c, from, to, part, begun);
      }
      return;
    }
    for (size_t i = 0; i < locals.size(); ++i) {
      if (last_[i] == c) locals[i].reset();
    }
  }
}

// Puts memory into the storages of deferred tensors.
void Stretches::hand_out() {
  for (size_t i = 0; i < value_.size(); ++i) {
    if (!value_[i].defined()) continue;
    const auto storage = chain_.slots[i]->deferred.lock();
    if (!storage) continue;
    full_[i].reset();
    storage->set_data_ptr_noswap(value_[i].storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, chain_.device)));
    allow_raw_access(*storage);
  }
}

void Stretches::run(bool& begun) {
  for (size_t i = 0; i < chain_.slots.size(); ++i) {
    const Slot& slot = *chain_.slots[i];
    if (!slot.is_held()) continue;
    if (slot.is_deferred()) value_[i] = empty_full(slot);
    const at::Tensor& whole = slot.is_deferred() ? value_[i] : slot.real;
    full_[i] = flat_ ? whole.as_strided({elements_}, {1}, whole.storage_offset()) : whole;
  }
  at_once_ = flat_ ? elements_at_once() : elements_;
  for (int64_t begin = 0; begin < elements_;) {
    const int64_t end = std::min(elements_, begin + at_once_);
    Locals locals(chain_.slots.size());
    run_from(0, begin, end, locals, begun);
    begin = end;
  }
  hand_out();
}

}  // namespace

bool Chain::is_ripe() const {
  return std::none_of(slots.begin(), slots.end(), [](const auto& slot) { return slot->is_deferred() && slot->is_held(); });
}

void Chain::merge(Chain&& other) {
  for (auto& slot : other.slots) {
    slot->chain = this;
    slots.push_back(std::move(slot));
  }
  std::vector<LateCall> all;
  all.reserve(calls.size() + other.calls.size());
  std::merge(std::make_move_iterator(calls.begin()), std::make_move_iterator(calls.end()), std::make_move_iterator(other.calls.begin()),
             std::make_move_iterator(other.calls.end()), std::back_inserter(all), [](const LateCall& a, const LateCall& b) { return a.number < b.number; });
  calls = std::move(all);
}

void Chain::run(const Terms& terms, bool& begun) {
  const RegionWork at_work;
  const NoRawAccess koila;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Stretches(*this, terms).run(begun);
}

}  // namespace koila
