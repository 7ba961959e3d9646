// An optimizer's step that runs out of memory, and goes on late: a few elements at a time.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Stream.h>
#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "torchglue/oom/events.h"
#include "torchglue/updates/chain.h"

namespace koila {

// Note [Late updates]
// What an optimizer needs for a moment (`_foreach_sqrt` of all second moments, and the quotient of it) is as large as all parameters, or, where it goes from parameter to parameter, as
// the largest. From the operator that ran out on, calls that work element by element (Note [Entries]) and that have to do with it are noted and not run. What they
// make is deferred; what they write to has its old value, and waits. Each entry is a chain by itself (Note [Chains]), unless calls join it to others. A chain runs
// - once the program has let go of all of its deferred tensors: by then only results are left, and these are the program's parameters and state;
// - before anything else reads what it makes or writes, or writes to what it reads: an operator of another kind, Python, a pointer;
// - at the end of the optimizer's step at the latest, before the program goes on.
// So the program sees what it would have seen, and no two stretches of temporaries exist at once. Only within `torch.optim.Optimizer.step()` (and classes that derive from it), without
// gradients, after a backward pass.
// A little memory is kept aside from the first deferred call on, enough for the shortest stretch: a step that has been put off has begun to write when it fails, so it must not. Who
// has not even that room is refused at the operator that ran out, and nothing has been written.
//
// Thread contract: the owner of the step, or an engine thread that works for it.
class LateUpdates {
 public:
  // Any thread.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  // Before an operator runs: whether the call has been noted, or made in another way; the stack has its results then. If not it is to be run, and nothing that
  // concerns it waits any more. Throws out of memory, as a call that waited may.
  bool take(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // The call ran out, and has written nothing. Whether it has been noted.
  bool begin(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const OutOfMemory& oom);
  // Somebody is about to look at the memory, or to write to it. False where nothing is known of it.
  bool settle(const c10::StorageImpl* storage);
  // A kernel is about to read these, or to write to them.
  void settle(at::ArrayRef<c10::IValue> arguments);
  void settle_all();
  // A forked child: what waited was the parent's.
  void forget();

 private:
  using Chains = std::vector<Chain*>;

  struct Written {
    Entries call;
    std::vector<std::vector<at::Tensor>> numbers;  // by entry: as they are now
  };
  std::optional<Written> prepare(const c10::OperatorHandle& op, c10::DispatchKeySet keys, at::ArrayRef<c10::IValue> arguments);
  void note(const c10::OperatorHandle& op, torch::jit::Stack* stack, Written&& what);
  at::Tensor note_entry(const c10::OperatorHandle& op, Entry&& entry, const std::vector<at::Tensor>& numbers, int written);
  Chains concerned(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) const;
  bool conflicts(const at::Tensor& t) const;
  Slot* find(const at::Tensor& t) const;
  Slot* slot_for(const at::Tensor& t, Chain& chain);
  Chain& chain_for(const Entry& entry);
  at::Tensor make_deferred(const Entry& entry, Chain& chain, Slot** slot);
  void run_ripe();
  void run(const Chains& chains);
  void run(Chain& chain);
  void drop_all();
  std::unique_ptr<Chain> take_out(Chain& chain);
  bool keep_aside(at::Device device, bool must);

  std::vector<std::unique_ptr<Chain>> chains_;
  std::unordered_multimap<const c10::StorageImpl*, Slot*> slots_;
  uint64_t number_ = 0;
  at::DataPtr aside_;
  OutOfMemory oom_;
  std::optional<c10::Stream> stream_;
  std::optional<uint64_t> told_in_;  // the step of the optimizer's, by optimizer_steps_over()
  std::atomic<bool> any_{false};
};

LateUpdates& late_updates();

}  // namespace koila
