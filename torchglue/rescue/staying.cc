#include "torchglue/rescue/staying.h"

#include <algorithm>
#include <vector>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/operators/saved.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"

namespace koila {

Staying::Staying(const Tape& tape, const Plan& plan) : tape_(tape) {
  ska::flat_hash_set<const c10::StorageImpl*> storages;
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    if (!is_as_it_is(plan, v)) continue;
    stays_.insert(tape.values()[v].group);
    if (const at::Tensor t = tape.values()[v].lock(); t.defined() && storage_of(t) != nullptr) storages.insert(storage_of(t));
  }
  for (const Bridge& bridge : tape.bridges()) {
    for (const Bridge::End& end : bridge.ends) {
      shared_.insert(tape.values()[end.value].group);
      if (const at::Tensor t = tape.values()[end.value].lock(); t.defined()) storages.insert(storage_of(t));
    }
  }
  keep_what_is_compared(plan);
  for (const auto& region : session().live_regions()) {
    for (const Capture& capture : region->captures()) {
      if (capture.tensor.defined()) storages.insert(storage_of(capture.tensor));
    }
  }
  storages.erase(nullptr);
  for (const TapeValue& value : tape.values()) {
    if (stays_.count(value.group)) continue;
    if (const at::Tensor t = value.lock(); t.defined() && storages.count(storage_of(t))) shared_.insert(value.group);
  }
}

void Staying::keep_what_is_compared(const Plan& plan) {
  const auto& ops = tape_.ops();
  std::vector<char> stays(ops.size(), 0);
  const auto keep = [&](TapeValueId v) {
    if (v != kNoTapeValue) shared_.insert(tape_.values()[v].group);
  };
  for (size_t i = ops.size(); i-- > 0;) {
    const TapeOp& op = ops[i];
    const auto differentiable = [&](TapeValueId v) { return v != kNoTapeValue && tape_.values()[v].differentiable(); };
    const auto taken = [&](TapeValueId v) { return v != kNoTapeValue && plan.descends[v]; };
    stays[i] |= std::any_of(op.outputs.begin(), op.outputs.end(), differentiable) && std::none_of(op.outputs.begin(), op.outputs.end(), taken);
    if (!stays[i]) continue;
    const bool compares = compares_what_it_saves(op.op.schema());
    for (const TapeRef& ref : op.refs) {
      const int32_t maker = tape_.values()[ref.value].producer;
      if (maker != kNoProducer && differentiable(ref.value)) stays[maker] = 1;
      if (compares) keep(ref.value);
    }
    if (compares) std::for_each(op.outputs.begin(), op.outputs.end(), keep);
  }
}

}  // namespace koila
