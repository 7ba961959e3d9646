#include "torchglue/rescue/made_again.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "torchglue/base/random_state.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"
#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/gradient.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/real_values.h"
#include "torchglue/plan/on_tape.h"
#include "torchglue/rescue/call_of_tape.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/tape/written_since.h"

namespace koila {

namespace {

// The call draws what it drew, and the generator stands afterwards where it stood before.
class SameDraws {
 public:
  explicit SameDraws(const RandomState* then) {
    if (then == nullptr) return;
    now_.emplace(then->generator());
    then->restore();
  }
  ~SameDraws() {
    if (now_) now_->restore();
  }
  SameDraws(const SameDraws&) = delete;
  SameDraws& operator=(const SameDraws&) = delete;

 private:
  std::optional<RandomState> now_;
};

}  // namespace

void check_memory(const TapeValue& value) {
  if (value.storage == nullptr || value.is_copied()) return;  // a copy that the tape made lies elsewhere by nature
  const at::Tensor t = value.lock();
  if (t.defined() && value.storage != storage_of(t)) throw CannotConvert("a tensor of the step (" + describe(value) + ") was given other memory since (.data = ...).");
}

void MadeAgain::check(TapeValueId v, uint32_t version, int depth) const {
  const TapeValue& value = tape_.values()[v];
  check_memory(value);
  if (is_filled_anew(value)) throw CannotConvert(kWrittenUnseen);
  if (alive(v, version).defined()) return;
  if (tape_.pinned(value.group)) throw CannotConvert("a tensor that the step read (" + describe(value) + ") may have been written to through NumPy.");
  if (value.is_capture()) {
    throw CannotConvert("a tensor that the step read (" + describe(value) + ") has been changed in place or freed since.");
  }
  const TapeOp& op = tape_.ops()[value.producer];
  check_hooks(tape_, op);
  if (op.in_place || version != value.version || depth > kRunAgainAtMost) throw CannotConvert("a tensor that the step read (" + describe(value) + ") was written to in place after " + op.op.schema().name() + " had made it.");
  if (is_gradient(op.op)) throw CannotConvert("a gradient that has a graph (create_graph=True) cannot be made again where it is not split.");
  // In a pass that has not run out the graph holds what it needs, and a plan that goes without serves as well.
  if (drew(op) && (graphs_ != Graphs::kUsedUp || tape_.draws_of(op) == nullptr)) {
    throw CannotConvert("random draws of " + op.op.schema().name() + " that do not belong to the batch are gone.");
  }
  for (const TapeRef& ref : op.refs) {
    if (!is_dropped(op, ref)) check(ref.value, ref.version, depth + 1);
  }
}

void MadeAgain::keep(TapeValueId v) {
  const TapeValue& value = tape_.values()[v];
  if (!kept_.emplace(v, value.lock()).second || value.is_capture() || (kept_.at(v).defined() && !anew(value))) return;
  const TapeOp& op = tape_.ops()[value.producer];
  for (const TapeRef& ref : op.refs) {
    if (!is_dropped(op, ref)) keep(ref.value);
  }
}

std::vector<char> MadeAgain::makes(const std::vector<char>& needed_ops) const {
  std::vector<char> made(tape_.values().size(), 0);
  std::vector<TapeRef> refs = read_as_they_are(tape_, plan_, needed_ops);
  while (!refs.empty()) {
    const TapeRef ref = refs.back();
    refs.pop_back();
    const TapeValue& value = tape_.values()[ref.value];
    if (value.is_capture() || made[ref.value]) continue;
    if (alive(ref.value, ref.version).defined()) continue;
    made[ref.value] = 1;
    const TapeOp& op = tape_.ops()[value.producer];
    std::copy_if(op.refs.begin(), op.refs.end(), std::back_inserter(refs), [&](const TapeRef& read) { return !is_dropped(op, read); });
  }
  return made;
}

at::Tensor MadeAgain::alive(TapeValueId v, uint32_t version) const {
  const TapeValue& value = tape_.values()[v];
  const at::Tensor t = value.lock();
  return t.defined() && version_of(t) == version && !anew(value) ? t : at::Tensor();
}

at::Tensor MadeAgain::get(TapeValueId v, uint32_t version) {
  const TapeValue& value = tape_.values()[v];
  // What is made again is what the operator made, and not what was written into it since.
  if (auto it = made_.find(v); it != made_.end() && (value.is_capture() || version == value.version)) return it->second;
  if (const at::Tensor t = alive(v, version); t.defined()) {
    if (!value.is_capture() && value.differentiable()) read_.insert(t.unsafeGetTensorImpl());
    if (!value.is_capture() || value.requires_grad || !t.requires_grad()) return t;
    const NoInterceptGuard no_intercept;
    return made_[v] = t.detach();  // trained from here on, and frozen when the step read it
  }
  if (value.is_capture()) throw CannotConvert("a tensor that the step read (" + describe(value) + ") has been changed in place or freed since.");
  const TapeOp& op = tape_.ops()[value.producer];
  torch::jit::Stack stack = arguments_of(op, [&](const TapeRef& ref) { return is_dropped(op, ref) ? at::Tensor() : get(ref.value, ref.version); });
  {
    const OpStateGuard state(tape_.state(op.state), /*allow_grad=*/true);
    const OpInProgress in_progress(op.op, op.place);
    make_real(stack);
    const WrittenSince::Call call(op.op, stack);
    const SameDraws draws(tape_.draws_of(op));
    call_again(op.op, stack);
  }
  size_t flat = 0;
  for_each_result(stack, [&](const at::Tensor& t) {
    const TapeValueId out = op.outputs[flat++];
    if (out == kNoTapeValue) return;
    made_[out] = t;
    if (t.requires_grad()) {
      if (hooks_ != nullptr) hooks_->put_on(out, t);
      if (was_written_to(out)) written_since().note_result(t);
    } else if (const at::Tensor there = alive(out, tape_.values()[out].version); there.defined() && out != v) {
      made_[out] = there;  // of several results one was gone
    } else if (!is_split_by_now(tape_.values()[out])) {
      written_since().note(t, tape_.values()[out]);
    }
  });
  return made_.at(v);
}

// Where no gradient tells of it: such a write is an operator that nothing on the way to the loss reads.
bool MadeAgain::was_written_to(TapeValueId v) const {
  const TapeValue& value = tape_.values()[v];
  return std::any_of(tape_.ops().begin() + value.producer + 1, tape_.ops().end(), [&](const TapeOp& op) {
    return op.in_place && !op_traits(op.op).metadata && tape_.values()[op.refs[0].value].group == value.group;
  });
}

// What has been written into it is a region's to make, and the tensor with it.
bool MadeAgain::is_split_by_now(const TapeValue& value) const {
  const TapeValueId now = tape_.find(value.weak._unsafe_get_target());
  return now != kNoTapeValue && plan_.descends[now];
}

}  // namespace koila
