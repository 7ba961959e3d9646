#include "torchglue/rescue/converting.h"

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/plan/infer.h"
#include "torchglue/plan/on_tape.h"
#include "torchglue/region/deferred.h"
#include "torchglue/step/session.h"
#include "torchglue/tape/written_since.h"

namespace koila {

namespace {

// What was made differentiable by a write through another view is so for PyTorch, whether or not the tape has looked at it since.
std::vector<char> differentiable_values(const Tape& tape) {
  std::vector<char> found(tape.values().size(), 0);
  for (TapeValueId v = 0; v < found.size(); ++v) {
    const TapeValue& value = tape.values()[v];
    std::vector<torch::autograd::Node*> nodes;
    if (const at::Tensor t = value.differentiable() ? at::Tensor() : value.lock(); t.defined()) add_nodes_behind(t, nodes);
    found[v] = value.differentiable() || !nodes.empty();
  }
  return found;
}

}  // namespace

Converting::Converting(Tape& its_tape, const Plan& its_plan, Graphs graphs)
    : tape(its_tape), plan(its_plan), needed(needed_ops(tape, plan)), differentiable(differentiable_values(tape)), before(tape, plan, needed) {
  session().converting = true;
  written_since().begin(tape);
  session().forward_again = graphs == Graphs::kUsedUp && !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

Converting::~Converting() {
  session().converting = session().forward_again = false;
  written_since().end();
  if (done) return;
  lose_the_rest();
  before.compare(tape, session().current.get(), at);
  tape.cut();
}

// What it took the memory of and has not filled again is lost, and so is what it has filled with a value that a later operator would have written over: who reads these gets
// the program's out-of-memory error, and never another value.
void Converting::lose_the_rest() const {
  for (size_t i = at; i < tape.ops().size(); ++i) {
    if (!needed[i]) continue;
    for (TapeValueId out : tape.ops()[i].outputs) {
      if (out == kNoTapeValue || !plan.descends[out] || is_seed(plan, out)) continue;
      const at::Tensor t = tape.values()[out].lock();
      if (!t.defined() || storage_of(t) == nullptr || tape.on_capture(tape.values()[out].group)) continue;
      if (deferred_registry().awaits_value(storage_of(t))) continue;
      const bool filled = memory_of(t) != nullptr && !tape.ops()[i].in_place;
      if (!filled) deferred_registry().lose(t.storage());
    }
  }
}

}  // namespace koila
