// From a tape of a step at full batch to a region that runs it in micro-batches.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "torchglue/plan/seeds.h"
#include "torchglue/plan/signatures.h"
#include "torchglue/region/region.h"

namespace koila {

// Why a step on the tape cannot be converted: a sentence for the user. Nothing has been changed.
struct CannotConvert : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The best plan that the tape can be converted by and that passes `check`, which throws CannotConvert when not. Throws the reason why
// the best of all would not do when there is none. Reads only.
struct PlanWanted {
  std::function<bool(const Plan&)> serves;
  std::function<void(const Plan&)> check;
  int64_t usual_batch = 0;
};
Plan find_plan(const Tape& tape, const PlanWanted& wanted);

// Makes every live tensor that the plan splits a deferred tensor of a new region, frees the activations, and cuts the tape.
// `micro_batch`: rows to begin with. Throws out of memory when not even one row of an operator without a rule fits; the deferred
// tensors stay readable.
void convert(Tape& tape, const Plan& plan, int64_t micro_batch);

// Remembers the seeds, so that a like step starts lazily. Before convert(): it reads the tape.
std::vector<LearnedSeed> learn(const Tape& tape, const Plan& plan, int64_t micro_batch);

}  // namespace koila
