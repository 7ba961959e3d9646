// The calls of a tape, as a rule sees them, and what becomes of them by a plan.
#pragma once

#include <cstdint>
#include <functional>

#include "torchglue/placement/placement.h"
#include "torchglue/placement/rule.h"
#include "torchglue/plan/decide.h"
#include "torchglue/plan/plan.h"
#include "torchglue/tape/tape.h"

namespace koila {

// The call as a rule sees it.
OpCall call_on_tape(const Tape& tape, const TapeOp& op, int64_t batch, const std::function<Placement(TapeValueId)>& placement);

// Whether the results that the operator gave are of the sizes that its rule, as it answered `call`, says. Those of the tables are tested; a user may be wrong.
bool came_as_said(const Tape& tape, const TapeOp& op, const OpCall& call);

// By the placements of the plan, of an operator on its tape. `call`: of call_on_tape() by the same placements.
Decision decide_on_tape(const Tape& tape, const Plan& plan, const TapeOp& op, OpCall& call);
Decision decide_on_tape(const Tape& tape, const Plan& plan, const TapeOp& op);

}  // namespace koila
