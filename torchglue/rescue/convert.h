// From a tape of a step at full batch to a region that runs it in micro-batches.
#pragma once

#include <cstdint>

#include "torchglue/plan/plan.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/region.h"
#include "torchglue/rescue/feasible.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Makes every live tensor that the plan splits a deferred tensor of a region, frees the activations, cuts the tape, and remembers the
// seeds, so that a like step starts lazily. Returns the micro-batch in use. Throws out of memory when not even one row of an operator without a rule
// fits; the deferred tensors stay readable.
int64_t convert(Tape& tape, const Plan& plan, Graphs graphs = Graphs::kWhole);

}  // namespace koila
