#include "torchglue/rescue/named_in_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "torchglue/op_traits.h"
#include "torchglue/region/deferred.h"
#include "torchglue/sizing/sizing.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// Rows at a time of what the call reads that is split already; 0: nothing of such a batch.
int64_t split_beside(at::ArrayRef<c10::IValue> arguments, int64_t batch) {
  int64_t micro_batch = 0;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
    if (entry.region != nullptr && entry.region->batch() == batch) micro_batch = entry.region->micro_batch();
    if (const Mark* mark = session().marks.find(t.unsafeGetTensorImpl()); mark != nullptr && mark->batch == batch) micro_batch = mark->micro_batch;
  });
  return micro_batch;
}

// Seeds of one step with such calls, as far as known.
int times_of(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, const LearnedSeed& seed) {
  const auto* known = session().signatures.find(op, arguments);
  if (known == nullptr) return seed.times;
  const auto same = std::find_if(known->begin(), known->end(), [&](const LearnedSeed& s) {
    return s.argument == seed.argument && s.element == seed.element && s.placement == seed.placement;
  });
  return same == known->end() ? seed.times : same->times;
}

void say_unsized() {
  Session& s = session();
  if (std::exchange(s.named.said_unsized, true)) return;
  s.runtime->on_note("koila::lazy: a step ran whole, as nobody knows how much memory it may take: give CPU tensors a budget (KOILA_CPU_MEMORY), or say how many rows at a time.");
}

}  // namespace

int64_t take_named_seeds(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  Session& s = session();
  const OpTraits& traits = op_traits(op);
  if (traits.writes || traits.reads_value || s.converting || s.engine_depth > 0) return 0;
  int64_t rows = 0;
  for_each_tensor(arguments, [&](const at::Tensor& t, int arg, int element) {
    const auto named = s.named.take(t);
    if (!named) return;
    rows = named->batch;
    LearnedSeed seed;
    seed.argument = arg;
    seed.element = element;
    seed.placement = Placement::shard(named->dim);
    seed.device = t.device().type();
    if (const int64_t micro_batch = split_beside(arguments, rows); micro_batch > 0) {
      s.marks.add(t, seed.placement, rows, micro_batch);
      return;
    }
    seed.key = Signatures::key(op, arguments);
    seed.policy = named->policy != nullptr ? named->policy : s.named.policy_of(rows);
    if (seed.policy == nullptr) seed.policy = s.signatures.find_policy(seed.key, rows);
    if (seed.policy == nullptr && !available_bytes(t.device()) && s.forced_micro_batch() == 0) return say_unsized();
    if (seed.policy == nullptr) seed.policy = make_probing_policy(rows, t.device());
    s.named.begin(seed.policy);
    seed.times = times_of(op, arguments, seed);
    seed.op = c10::toString(op.operator_name());
    s.log(KOILA_LOG_DEBUG, "dimension " + std::to_string(named->dim) + " of an argument of " + op.schema().name() + ", " + std::to_string(rows) + " rows, is the batch, as the program says");
    s.signatures.correct(std::move(seed));
  });
  return rows;
}

}  // namespace koila
