// Constants that the step has made, and their part in a plan: see Note [Created for the batch].
#pragma once

#include <cstdint>
#include <functional>
#include <tuple>

#include "torchglue/plan/infer.h"
#include "torchglue/plan/plan.h"
#include "torchglue/tape/tape.h"

namespace koila {

using Score = std::tuple<int, bool, int64_t>;  // of a plan: serves, of the usual batch, bytes that it saves

// Whether the split part meets constants that have no part in the plan: is written into them, or goes into an operator beside them.
bool ends_in_constants(const Tape& tape, const Plan& plan);

// The plan with those in it that make it better: constants that the split part is written into, or that go along with it: by the row, or as the sum of what rows add to it.
Plan with_constants(const Tape& tape, Plan plan, const std::function<Score(const Plan&)>& score, Graphs graphs);

// Whether an operator of the step has made it as a constant. A micro-batch makes its own, whatever the order of its rows.
bool is_made_constant(const Tape& tape, TapeValueId value);

}  // namespace koila
