// The choice of what to split, from the tape of a step that ran (or was running) at full batch.
#pragma once

#include <cstdint>
#include <c10/util/flat_hash_map.h>

#include <functional>
#include <optional>

#include "torchglue/plan/infer.h"
#include "torchglue/plan/plan.h"
#include "torchglue/tape/tape.h"

namespace koila {

// What a plan is for.
struct Wanted {
  std::function<bool(const Plan&)> serves;    // reaches the roots of backward; null: the call in flight
  std::function<bool(const Plan&)> feasible;  // the step on the tape can be converted by it; asked of few plans
  int64_t usual_batch = 0;                    // what this step is split into already; 0: nothing
  Graphs graphs = Graphs::kWhole;
  ska::flat_hash_set<const c10::TensorImpl*> asked_for = {};  // tensors that the pass in flight is asked for the gradients of: an input may be among them
};

// Note [A wrong seed costs speed]
// Every capture and dimension is a candidate, also one that is no batch at all: a split that the rules carry is exact whatever it means
// to the program. So the choice is greedy by bytes: first the seed whose plan frees most, then every further capture that goes along
// with it. Plans that serve come before those that do not, then those of the usual batch. The first that is feasible is taken.
// Nothing: no capture has a dimension that the rules can split.
std::optional<Plan> choose_seeds(const Tape& tape, const Wanted& wanted);

// Whether most of what the step's graph holds is split by the plan.
bool covers_most(const Tape& tape, const Plan& plan);

}  // namespace koila
