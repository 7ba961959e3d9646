// A call among whose arguments something is split, or has no value yet: what a rule is asked about it, and what has to be made real of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <vector>

#include "torchglue/placement/placement.h"
#include "torchglue/placement/rule.h"
#include "torchglue/region/region.h"
#include "torchglue/rescue/real_masks.h"

namespace koila {

// One tensor among the arguments that is split, or whose value does not exist.
struct SplitArgument {
  at::Tensor tensor;
  Region* region = nullptr;  // null: real, marked
  ValueId value = kNoValue;
  Placement placement;
  int64_t batch = 0;
  int64_t micro_batch = 0;
  OpCall::ArgRef at{0};
};

// The arguments as the rules see them, and the split ones among them.
struct Question {
  OpCall call;
  std::vector<SplitArgument> split;
  at::Tensor opaque;     // computed in a region, and then given a graph from outside
  at::Tensor mask;       // that the answer depends on, and that has no value yet
  at::Tensor must_read;  // shares a deferred storage in a way that no region knows: it has to be materialised
};

// Throws where a tensor inside the step was given other memory.
Question question_about(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

// Reads the masks among a call's arguments. One that has no value yet is noted instead.
class MasksOfCall final : public RealMasks {
 public:
  MasksOfCall(Question& q, at::ArrayRef<c10::IValue> arguments, int64_t batch) : RealMasks(arguments, batch), q_(q) {}

 private:
  at::Tensor read(OpCall::ArgRef ref) override;

  Question& q_;
};

// The question again, for the region's batch: marks of other batches are real tensors like any other.
OpCall call_for(const Region& region, const c10::OperatorHandle& op, Question& q, MasksOfCall& masks);

// The region that the call joins; null when arguments changed and must be looked at again.
std::shared_ptr<Region> choose_region(Question& q);

// Each argument of a region's becomes an ordinary tensor, from which the step is split anew.
void hand_over_all(const Question& q);

// A tensor that the call reads, and whose gradient a hook waits for, ends its stage, see Note [Hooked tensors]. False when there is none.
bool end_stage_at_hook(const Question& q);

// An argument that no rule can be asked about becomes an ordinary tensor. False when there is none.
bool settle_outsider(const c10::OperatorHandle& op, const Question& q);

// Full values for all split arguments, or for those that are not of the step within this backward pass. False when there is none. Those of a region come from the same passes: a
// value and its copy are so the same to the bit, however often a pass runs out.
bool materialise_split(const std::vector<SplitArgument>& split, bool but_for_the_step_within);

// Ends the stage. What the answer wants whole is an ordinary tensor from here on, and the call is to be asked about again.
void gather(const OpCall& call, const Question& q, Region& region);

// The argument of that number, if it is split and a region's; else null.
const SplitArgument* deferred_at(const Question& q, int argument);

// Whether an argument from outside hangs on the region.
bool would_cycle(const Region& region, at::ArrayRef<c10::IValue> arguments);

}  // namespace koila
