// How the program trains, as far as it shows: facts for the report's advice (ProgramFacts). Cheap by design: an operator pays a bit that is
// tested, a step a few numbers, and only some steps are looked at closely.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "torchglue/base/seen_in_step.h"
#include "torchglue/leaks/graph_watch.h"
#include "torchglue/tape/tape.h"

namespace koila {

// On the thread that owns the session.
class Facts {
 public:
  // The tape has its first node of a graph: a forward pass with gradients begins.
  void on_forward();
  // The tape forgets what nothing alive descends from, see unused_graphs().
  void on_forgotten(const std::vector<TapeOp>& ops, const std::vector<TapeValue>& values, const std::vector<char>& needed_op);
  // Results of a multi-tensor operator outside of graphs.
  void on_foreach(at::ArrayRef<c10::IValue> results);
  // A fused optimizer has written its parameters.
  void on_fused_update() { fused_ = true; }
  // An outermost backward pass begins, and has ended. Neither throws.
  void before_backward();
  void after_step(bool may_search);
  // What was seen of its graph, in the steps that are looked at closely: bytes of parameters in a 16-bit type, and whether a checkpoint is in it.
  void on_graph(int64_t half_parameters, bool checkpoint);

 private:
  bool looks_now() const;  // at gradients
  void look_at_gradients();
  void look_at_tape();
  void name_leaks();

  int64_t steps_ = 0;         // that have ended
  size_t operators_ = 0;      // on the tape when a backward pass began, last time
  bool looked_ = false;       // at gradients, in this step
  bool fused_ = false;
  int searches_ = 0;          // for the holders of leaks
  GraphWatch graphs_;
};

Facts& facts();

}  // namespace koila
