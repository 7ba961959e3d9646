// The choice of what to split, from the tape of a step that ran (or was running) at full batch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torchglue/placement/placement.h"
#include "torchglue/placement/rule.h"
#include "torchglue/tape/tape.h"

namespace koila {

struct Seed {
  TapeValueId value;
  Placement placement;
  bool created = false;  // made by its operator in parts, and not sliced: see Note [Created for the batch]
};

// Placements over a tape, as the rules give them from some seeds.
struct Plan {
  std::vector<char> frozen;  // by operator: it writes in place to what an operator without a rule has read whole
  int64_t batch = 0;
  std::vector<Seed> seeds;
  std::vector<Placement> placements;  // by tape value
  std::vector<char> descends;         // by tape value: computed from split ones, itself split or not
  int64_t bytes = 0;                  // of the split values that live ones descend from: what conversion can free
  int64_t whole_ops = 0;              // operators on the way that have to run at the full batch,
  int64_t bytes_whole = 0;            // and what they read
  // What becomes of the call in flight.
  enum class Pending : uint8_t { kNotReached, kWhole /* reads something split, and has no rule for it */, kSummed, kSplit };
  Pending pending = Pending::kNotReached;
};

// Whether the value is there, and taken as it is.
bool is_seed(const Plan& plan, TapeValueId value);
bool is_created(const Plan& plan, TapeValueId value);

bool reads_split(const Plan& plan, const TapeOp& op);

// Whether an in-place operator, as its rule answered `call`, leaves what it writes to split as it was.
bool writes_per_row(const Plan& plan, const TapeOp& op, const OpCall& call, Verdict verdict);

// The call as a rule sees it.
OpCall call_on_tape(const Tape& tape, const TapeOp& op, int64_t batch, const std::function<Placement(TapeValueId)>& placement);

// Which operators of the tape must be brought over: those that a live split value, or the call in flight, descends from.
std::vector<char> needed_ops(const Tape& tape, const Plan& plan);

// Sizes and rules only: nothing is read or run.
Plan infer_placements(const Tape& tape, int64_t batch, std::vector<Seed> seeds);

// What a plan is for.
struct Wanted {
  std::function<bool(const Plan&)> serves;    // reaches the roots of backward; null: the call in flight
  std::function<bool(const Plan&)> feasible;  // the step on the tape can be converted by it; asked of few plans
  int64_t usual_batch = 0;                    // what this step is split into already; 0: nothing
};

// Note [A wrong seed costs speed]
// Every capture and dimension is a candidate, also one that is no batch at all: a split that the rules carry is exact whatever it means
// to the program. So the choice is greedy by bytes: first the seed whose plan frees most, then every further capture that goes along
// with it. Plans that serve come before those that do not, then those of the usual batch. The first that is feasible is taken.
// Nothing: no capture has a dimension that the rules can split.
std::optional<Plan> choose_seeds(const Tape& tape, const Wanted& wanted);

}  // namespace koila
