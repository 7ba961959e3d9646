// Whether a step on the tape can be converted to one in micro-batches, and by which plan. Nothing is changed here.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>

#include "torchglue/plan/plan.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Why a step on the tape cannot be converted: a sentence for the user. Nothing has been changed: see Note [No way back].
struct CannotConvert : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Where KOILA_LADDER leaves rung 1 out.
inline constexpr const char* kMayNotSplit = "KOILA_LADDER leaves micro-batches (rung 1) out.";

// Throws CannotConvert for an operator under the program's own saved-tensor hooks: run again, it would save nothing through them.
void check_hooks(const Tape& tape, const TapeOp& op);

// Throws CannotConvert when the program has written to memory of the step unseen: what the tape has seen, or a region that it may go on from.
void check_raw_memory();

// The best plan that the tape can be converted by and that passes `check`, which throws CannotConvert for those that do not. Where no plan passes, throws the reason that stood
// against the best one. Reads only. `serves`, `usual_batch`, `asked_for`: see Wanted.
Plan find_plan(const Tape& tape, const std::function<bool(const Plan&)>& serves, const std::function<void(const Plan&)>& check, int64_t usual_batch,
               Graphs graphs = Graphs::kWhole, ska::flat_hash_set<const c10::TensorImpl*> asked_for = {});

}  // namespace koila
