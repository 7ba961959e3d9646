// Which memory a conversion leaves as it is.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>

#include "torchglue/plan/plan.h"
#include "torchglue/tape/tape.h"

namespace koila {

// The groups whose memory the conversion leaves as it is: what seeds and values that are taken as they are look at, and their views; what NumPy may look at; what a
// tensor looks at that the tape knows apart from it (`h.data`); what a bridge may have saved; what a region has captured (a mask, say), and reads as it is; and what an extreme has saved
// whose graph stays, because what stays hangs on it: its backward looks for its result among its operands.
class Staying {
 public:
  Staying(const Tape& tape, const Plan& plan);

  bool has(uint32_t group) const { return stays_.count(group) > 0 || keeps_data(group) || tape_.on_capture(group); }
  // Whether a value of the group is made again, beside the data that is there.
  bool keeps_data(uint32_t group) const { return tape_.pinned(group) || shared_.count(group) > 0; }

 private:
  void keep_what_is_compared(const Plan& plan);

  const Tape& tape_;
  ska::flat_hash_set<uint32_t> stays_, shared_;
};

}  // namespace koila
