// The calls of a tape, as a rule sees them, and what becomes of them by a plan.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "torchglue/placement/placement.h"
#include "torchglue/placement/rule.h"
#include "torchglue/plan/decide.h"
#include "torchglue/plan/plan.h"
#include "torchglue/tape/tape.h"

namespace koila {

// The call as a rule sees it.
OpCall call_on_tape(const Tape& tape, const TapeOp& op, int64_t batch, const std::function<Placement(TapeValueId)>& placement);

// Of a result, which may be an element of the list that the operator returns, as its rule answered. Replicate where it named none.
Placement placement_of_result(const OpCall& answer, const TapeOp& op, size_t output);

// Whether the results that the operator gave are of the sizes that its rule, as it answered `call`, says. Those of the tables are tested; a user may be wrong.
bool came_as_said(const Tape& tape, const TapeOp& op, const OpCall& call);

// Whether the argument is one of the running statistics that the operator updated when it ran first. It is not to do so again, and does not need them.
bool is_dropped(const TapeOp& op, const TapeRef& ref);

// Whether the operator, made again by the plan, reads the value whole or sliced, from the step's input or from what is made again outside of the region (rescue/made_again.h).
bool is_read_as_it_is(const Tape& tape, const Plan& plan, const TapeOp& op, const TapeRef& ref);

// See Note [Seeds that were written to]. Whether the operator wrote to a seed's memory before the seed was as it is taken.
bool is_in_seed(const Tape& tape, const Plan& plan, const TapeOp& op);
// Whether the operator read a seed, or a view of one, as it was before.
bool is_earlier(const Tape& tape, const Plan& plan, const TapeOp& op, const TapeRef& ref);
// The version of the argument to give to the operator when it is made again.
uint32_t version_to_read(const Tape& tape, const Plan& plan, const TapeOp& op, const TapeRef& ref);

// What the operators read as it is, with the versions to read.
std::vector<TapeRef> read_as_they_are(const Tape& tape, const Plan& plan, const std::vector<char>& needed_ops);

// Whether it is the order that a sort has found of whole numbers of one dimension, on whatever device.
bool sorts_numbers(const Tape& tape, TapeValueId value);

// Whether scatter_() has made the inverse of such an order.
bool orders_back(const Tape& tape, const TapeOp& op);

// Values that are there no more as they were at some version, and that no operator can make again: inputs that were freed or written to, random draws, and what is made
// from these. As MadeAgain::check() has it (rescue/made_again.h). It is remembered, so nothing may run in between.
class Gone {
 public:
  Gone(const Tape& tape, Graphs graphs) : tape_(tape), graphs_(graphs) {}
  bool operator()(TapeValueId v, uint32_t version, int depth = 0);

 private:
  bool find_out(TapeValueId v, uint32_t version, int depth);

  const Tape& tape_;
  const Graphs graphs_;
  std::map<std::pair<TapeValueId, uint32_t>, bool> known_;
};

// By the placements of the plan, of an operator on its tape. `call`: of call_on_tape() by the same placements.
Decision decide_on_tape(const Tape& tape, const Plan& plan, const TapeOp& op, OpCall& call);
Decision decide_on_tape(const Tape& tape, const Plan& plan, const TapeOp& op);

// The nodes that living tensors of the tape have, see Note [Views that are behind].
std::vector<torch::autograd::Node*> nodes_behind(const Tape& tape);

// Adds the nodes of the bridges that are alive.
void add_bridges(const Tape& tape, std::vector<torch::autograd::Node*>& nodes);

// The nodes behind the tape with hooks of the program's on their tensors. A hook hangs on the node, whether or not its tensor is still alive.
class HookedNodes {
 public:
  explicit HookedNodes(const Tape& tape);
  bool made(const TapeValue& value) const;

 private:
  ska::flat_hash_map<const void*, uint64_t> numbers_;  // sequence numbers, by node
};

}  // namespace koila
