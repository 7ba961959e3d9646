// A plan: what could be split of a step, and how.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <vector>

#include "torchglue/placement/placement.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Whether the graphs that the step's operators made are as they were, or used up by a backward pass that failed: then what the split part reads
// of the rest, if gradients go through it, is computed anew, and noise of which the tape knows where the generator stood is drawn again.
enum class Graphs { kWhole, kUsedUp };

struct Seed {
  TapeValueId value;
  Placement placement;
  bool created = false;  // made by its operator in parts, and not sliced: see Note [Created for the batch]
};

// Note [Seeds that were written to]
// A seed is taken as it is now: all that was ever written to its memory is in it, and no such write is made again. A write through a view (`b[:, :8] = x`) leaves the tensor the value that
// it was on the tape, with a later version. What has read an earlier one read something else, which does not hang on the seed; a view that was made then looks at what is there now.

// Placements over a tape, as the rules give them from some seeds.
struct Plan {
  std::vector<char> frozen;  // by operator: it writes in place to what an operator without a rule has read whole
  std::vector<char> joins;   // by operator: it reads something split, and joins the region
  int64_t batch = 0;
  std::vector<Seed> seeds;
  ska::flat_hash_map<uint32_t, uint32_t> versions;  // by group: the version that seeds are taken with, see Note [Seeds that were written to]
  std::vector<Placement> placements;  // by tape value
  std::vector<char> descends;         // by tape value: computed from split ones, itself split or not
  int64_t bytes = 0;                  // of the split values that live ones descend from: what conversion can free
  int64_t whole_ops = 0;              // operators on the way that have to run at the full batch,
  int64_t bytes_whole = 0;            // and what they read
  int64_t gathers = 0;                // operators on the way that read something split which has to be put together for them
  int64_t bytes_again = 0;            // of what is not split and not there any more, and has to be computed again for who reads it
  // What becomes of the call in flight.
  enum class Pending : uint8_t { kNotReached, kWhole /* reads something split, and has no rule for it */, kSummed, kSplit };
  Pending pending = Pending::kNotReached;
};

// Whether the value is there, and taken as it is.
bool is_seed(const Plan& plan, TapeValueId value);
bool is_created(const Plan& plan, TapeValueId value);
// Nothing of it is made again: it descends from no split value, or is one that the step began with.
bool is_as_it_is(const Plan& plan, TapeValueId value);

bool reads_split(const Plan& plan, const TapeOp& op);

}  // namespace koila
