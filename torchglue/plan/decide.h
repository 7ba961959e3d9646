// What becomes of an operator call in a step that runs in micro-batches. Decided here, and nowhere else.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <optional>

#include "torchglue/op_traits.h"
#include "torchglue/placement/placement.h"
#include "torchglue/placement/rule.h"

namespace koila {

enum class Way : uint8_t {
  kWhole,  // at the full batch, on arguments that have their values; or taken apart, where it is made of other operators
  kJoin,   // per micro-batch, as an instruction of a region
  kStage,  // the same, once every micro-batch has come this far: see Note [Stages]
  kReal,   // once, as it is: it reads no value
};

inline bool splits(Way way) { return way == Way::kJoin || way == Way::kStage; }

// What a rule does not see of a call.
struct Context {
  const OpTraits& traits;
  // All of its tensors are Replicate, and what it makes is to be made by the row, split so: see Note [Created for the batch].
  std::optional<Placement> creates = std::nullopt;
  // The same, but as a sum over the rows.
  bool creates_sum = false;
  // It may not run by the row, whatever its rule says: the program's own saved-tensor hooks are on, or it has been asked about too often.
  bool held_whole = false;
  // What it draws at random is drawn for the full batch here: see Note [A step within a backward pass].
  bool draws_whole = false;
  // How that value of the region is split which it writes to as its first argument; nothing where that is no such value, or may not be written to by the row.
  std::optional<Placement> written = std::nullopt;
  // Nobody has to look at what it writes: it only changes how a tensor looks at its memory (unsqueeze_), which is done by a view, or it has not run yet.
  bool free_to_write = false;
  // Whether the results that it has given at the full batch already are what the rule says of them. A user's rule may be wrong.
  c10::function_ref<bool(const OpCall&)> came_as_said = {};
  // Whether an argument is split and takes a gradient, which could not reach it from what is computed of its full value.
  c10::function_ref<bool(int)> takes_gradient = {};
};

struct Decision {
  Way way = Way::kWhole;
  bool drawn = false;  // it would split, but for what it draws
  // It would split if what it writes to were a sum over the rows, and no ordinary tensor.
  bool wants_sum = false;
};

// Note [One decision]
// The interceptor asks while the program calls the operator, the plan over a tape of what has run at the full batch, and the conversion when it brings such an operator over. They
// have to agree: what the plan counts on and the conversion does otherwise costs memory where there is none. What is right for all of them is decided here, in this order:
// 1. without a rule for these placements, or held whole: whole;
// 2. nothing is read: real;
// 3. a user's rule that the results contradict is no rule (and is told of, once): whole;
// 4. random draws that are made for the full batch are not made again by the row: whole;
// 5. a denominator is computed from an argument's full value, through which no gradient flows: if one has to, whole;
// 6. a view of a part of a sum over the rows (a diagonal) is one of its value, so that a write in place to it, which mostly follows, is PyTorch's own: whole;
// 7. a stage ends first, and then the call is asked about again where something is gathered (OpCall::whole());
// 8. a write in place may run by the row where it leaves a value of the region split as it was: else whole. Operators with `out=`, and those that write to anything but their first argument,
//    never do.
// `call` has the question, and the answer afterwards: where it names real_arguments(), an operator that joins does so once these have their values.
Decision decide(OpCall& call, const Context& context);

}  // namespace koila
