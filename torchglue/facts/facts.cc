#include "torchglue/facts/facts.h"

#include <deque>
#include <string>

#include "torchglue/facts/step_accounts.h"
#include "torchglue/facts/unused_graphs.h"
#include "torchglue/leaks/holders.h"
#include "torchglue/op_traits.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

void report(koila_fact fact, int64_t value) {
  if (value > 0 && session().runtime != nullptr) session().runtime->on_fact(fact, value);
}

}  // namespace

Facts& facts() {
  static auto* the_facts = new Facts;  // never destroyed, like the session
  return *the_facts;
}

// A leaf that only Python holds is held by taking Python's lock: not for each leaf in every step.
bool Facts::looks_now() const {
  constexpr int64_t kFirstSteps = 8, kEvery = 16;
  return !looked_ && (steps_ <= kFirstSteps || steps_ % kEvery == 1);
}

void Facts::on_forward() {
  if (looks_now()) look_at_gradients();
}

// Gradients that an update has used and that are there still, when the next graph begins. Where nothing was updated they are being accumulated.
void Facts::look_at_gradients() {
  looked_ = true;
  if (session().updated.empty()) return;
  int64_t parameters = 0, gradients = 0;
  for (const auto& weak : leaves_of_step()) {
    auto impl = weak.lock();
    if (!impl || session().updated.count(impl.get()) == 0) continue;
    const at::Tensor leaf(std::move(impl));
    parameters += static_cast<int64_t>(leaf.nbytes());
    const at::Tensor& gradient = leaf.grad();
    if (gradient.defined() && gradient.layout() == at::kStrided) gradients += static_cast<int64_t>(gradient.nbytes());
  }
  if (gradients * 2 < parameters || gradients == 0) return;
  report(KOILA_FACT_KEPT_GRADIENTS, 1);
  report(KOILA_FACT_KEPT_GRADIENTS_BYTES, gradients);
}

void Facts::on_foreach(at::ArrayRef<c10::IValue> results) {
  int64_t bytes = 0;
  for_each_tensor(results, [&](const at::Tensor& t, int, int) { bytes += static_cast<int64_t>(t.nbytes()); });
  report(KOILA_FACT_FOREACH_BYTES, bytes);
}

void Facts::on_graph(int64_t half_parameters, bool checkpoint) {
  report(KOILA_FACT_HALF_PARAMETERS_BYTES, half_parameters);
  if (checkpoint) SeenInStep::note(seen_in_step.checkpoint);
}

// What stands on the tape and has nothing to do with this pass is found where the tape is tidied.
void Facts::look_at_tape() {
  Tape& tape = session().tape;
  if (steps_ > 0 && tape.ops().size() > operators_ + operators_ / 2) tape.collect();
  operators_ = tape.ops().size();
}

void Facts::before_backward() {
  try {
    if (looks_now()) look_at_gradients();
    look_at_tape();
  } catch (const std::exception&) {  // no memory to look: the pass has more need of it
  }
}

void Facts::on_forgotten(const std::vector<TapeOp>& ops, const std::vector<TapeValue>& values, const std::vector<char>& needed_op) {
  const UnusedGraphs unused = unused_graphs(ops, values, needed_op);
  report(KOILA_FACT_GRAPH_IN_EVALUATION, unused.passes);
  report(KOILA_FACT_GRAPH_IN_EVALUATION_BYTES, unused.bytes);
}

// Each search takes some tenths of a second, see Note [Looking into the program].
void Facts::name_leaks() {
  constexpr int kSearchesAtMost = 8;
  constexpr size_t kLeaksAtOnce = 32;
  constexpr int kAddresses = 16;
  const koila_runtime& runtime = *session().runtime;
  std::vector<koila_leak> leaks;
  std::deque<std::string> texts;  // a leak's own go with the next one asked for
  std::vector<LeakedTensors> tensors;
  const auto keep = [&](const char* text) { return texts.emplace_back(text).c_str(); };
  while (searches_ < kSearchesAtMost && leaks.size() < kLeaksAtOnce) {
    koila_leak leak;
    uintptr_t addresses[kAddresses];
    const int count = runtime.leak_to_name(&leak, addresses, kAddresses);
    if (count == 0) break;
    leak.op = keep(leak.op);
    leak.where = keep(leak.where);
    leaks.push_back(leak);
    LeakedTensors& found = tensors.emplace_back();
    for (int i = 0; i < count; ++i) found.addresses.push_back(reinterpret_cast<const void*>(addresses[i]));
    found.may_be_saved = leak.category != KOILA_PARAMETERS && leak.category != KOILA_GRADIENTS && leak.category != KOILA_OPTIMIZER_STATE;
  }
  if (leaks.empty()) return;
  ++searches_;
  const std::vector<std::string> holders = name_holders(tensors, graphs_.old_before());
  for (size_t i = 0; i < leaks.size(); ++i) {
    leaks[i].holder = holders[i].c_str();
    if (!holders[i].empty()) runtime.on_leak(&leaks[i]);
  }
}

void Facts::after_step(bool may_search) {
  ++steps_;
  looked_ = false;
  if (seen_in_step.autocast.exchange(false, std::memory_order_relaxed)) report(KOILA_FACT_AUTOCAST, 1);
  if (seen_in_step.checkpoint.exchange(false, std::memory_order_relaxed)) report(KOILA_FACT_CHECKPOINTS, 1);
  if (fused_) report(KOILA_FACT_FUSED_OPTIMIZER, 1);
  fused_ = false;
  try {
    graphs_.after_step(may_search);
    if (may_search) name_leaks();
  } catch (const std::exception&) {  // no memory for it
  }
}

}  // namespace koila
