#include "torchglue/rescue/staying.h"

#include "torchglue/base/tensor_memory.h"
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

}  // namespace koila
