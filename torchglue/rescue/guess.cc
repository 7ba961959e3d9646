#include "torchglue/rescue/guess.h"

#include <c10/core/AutogradState.h>

#include <algorithm>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/op_traits.h"
#include "torchglue/region/deferred.h"
#include "torchglue/sizing/sizing.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

bool is_parameter(const at::Tensor& t) { return t.requires_grad() && t.is_leaf(); }

// Data of the program's: not a constant that operators of this step made out of nothing.
bool is_data(const at::Tensor& t) {
  const Tape& tape = session().tape;
  const TapeValueId v = tape.find(t.unsafeGetTensorImpl());
  if (v == kNoTapeValue || tape.values()[v].is_capture()) return true;
  const TapeOp& op = tape.ops()[tape.values()[v].producer];
  return !op.refs.empty() || drew(op);
}

// The dimension along which the call splits with the tensor; -1: none.
int split_dimension(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, const at::Tensor& t, int arg, int element) {
  for (int dim = 0; dim < std::min<int>(2, static_cast<int>(t.dim())); ++dim) {
    if (t.size(dim) <= kLazyRows) continue;
    OpCall call = call_of(op, arguments, t.size(dim));
    call.args()[arg].tensors[element < 0 ? 0 : element].placement = Placement::shard(dim);
    if (ask(op_traits(op).rule, call) != Verdict::kLocal || call.outputs().empty() || !call.outputs()[0].is_shard()) continue;
    return dim;
  }
  return -1;
}

}  // namespace

void guess_seed(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  Session& s = session();
  const OpTraits& traits = op_traits(op);
  if (traits.rule == nullptr || traits.writes || !c10::AutogradState::get_tls_state().get_grad_mode() || s.engine_depth > 0) return;
  bool parameter = false;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) { parameter |= is_parameter(t); });
  if (!parameter || s.signatures.find(op, arguments) != nullptr) return;
  bool done = false;
  for_each_tensor(arguments, [&](const at::Tensor& t, int arg, int element) {
    if (done || t.requires_grad() || t.dim() == 0 || storage_of(t) == nullptr || s.marks.find(t.unsafeGetTensorImpl()) != nullptr ||
        deferred_registry().find(t.unsafeGetTensorImpl()).region != nullptr || !available_bytes(t.device()) || !is_data(t)) {
      return;
    }
    const int dim = split_dimension(op, arguments, t, arg, element);
    if (dim < 0) return;
    const int64_t batch = t.size(dim);
    if ((s.current && s.current->open() && s.current->batch() != batch) || s.named.excludes(batch)) return;
    LearnedSeed seed;
    seed.key = Signatures::key(op, arguments);
    seed.argument = arg;
    seed.element = element;
    seed.placement = Placement::shard(dim);
    seed.device = t.device().type();
    seed.policy = s.sizes.policy_of(batch);
    if (seed.policy == nullptr) seed.policy = make_probing_policy(batch, t.device());
    s.log(KOILA_LOG_DEBUG, "dimension " + std::to_string(dim) + " of an argument of " + op.schema().name() + ", " + std::to_string(batch) + " rows, is taken for the batch");
    seed.op = c10::toString(op.operator_name());
    s.signatures.learn(seed);
    done = true;
  });
}

}  // namespace koila
