// What a step in micro-batches reads of the step that ran at the full batch, and that is not split.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <vector>

#include "torchglue/plan/plan.h"
#include "torchglue/rescue/feasible.h"
#include "torchglue/rescue/tensor_hooks.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Throws CannotConvert where the program has given the value's tensor other memory (`.data = ...`), which no operator shows.
void check_memory(const TapeValue& value);

// Full values of tensors that are not split: alive, or made again from what is.
class MadeAgain {
 public:
  MadeAgain(const Tape& tape, const Plan& plan, Graphs graphs) : tape_(tape), plan_(plan), graphs_(graphs) {}

  // Throws CannotConvert where get() would find nothing. Reads only.
  void check(TapeValueId v, uint32_t version, int depth = 0) const;

  // Keeps what get() of the value will need: the graphs that hold it may go on the way.
  void keep(TapeValueId v);

  // By value: whether get() makes it anew for one of these operators, where its tensor is gone or hangs on a graph that is used up.
  std::vector<char> makes(const std::vector<char>& needed_ops) const;
  // Hooks of what get() makes go to what it has made.
  void bring(TensorHooks& hooks) { hooks_ = &hooks; }

  // The value as it was at that version.
  at::Tensor get(TapeValueId v, uint32_t version);

  // Whether get() has handed out the tensor as it is, with its graph: what was made with it hangs on that.
  bool hangs_on(const at::Tensor& t) const { return read_.count(t.unsafeGetTensorImpl()) > 0; }

 private:
  bool anew(const TapeValue& value) const { return graphs_ == Graphs::kUsedUp && !value.is_capture() && value.differentiable(); }

  bool was_written_to(TapeValueId v) const;
  bool is_split_by_now(const TapeValue& value) const;
  // The tensor, if it is there as it was at that version; else undefined.
  at::Tensor alive(TapeValueId v, uint32_t version) const;

  const Tape& tape_;
  const Plan& plan_;
  Graphs graphs_;
  ska::flat_hash_map<TapeValueId, at::Tensor> made_, kept_;
  ska::flat_hash_set<const c10::TensorImpl*> read_;  // for comparison only
  TensorHooks* hooks_ = nullptr;
};

}  // namespace koila
