// What a step that is converted teaches of those that are like it.
#pragma once

#include <cstdint>
#include <vector>

#include "torchglue/plan/plan.h"
#include "torchglue/sizing/signatures.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Notes by which calls a like step begins. `begins_whole`: a like one is not to begin in micro-batches. Reads the tape.
std::vector<LearnedSeed> learn(const Tape& tape, const Plan& plan, bool begins_whole);

// Rows at a time for the step, now that the activations that are split are gone.
int64_t begin_step(const std::vector<LearnedSeed>& seeds, int64_t batch, at::Device device);

}  // namespace koila
