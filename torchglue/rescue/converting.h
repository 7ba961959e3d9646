// The session while a step is made again from its tape.
#pragma once

#include <cstddef>
#include <vector>

#include "torchglue/plan/plan.h"
#include "torchglue/proof/conversion.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Lives as long as the conversion. What a conversion that has ended on its way leaves is told apart from what it has not come to: what has lost its memory says so when it is read.
struct Converting {
  Tape& tape;
  const Plan& plan;
  const std::vector<char> needed;  // operators
  const std::vector<char> differentiable;  // values: whether gradients passed through them when the conversion began
  BeforeConversion before;
  size_t at = 0;  // operator
  bool done = false;

  Converting(Tape& its_tape, const Plan& its_plan, Graphs graphs);
  ~Converting();
  Converting(const Converting&) = delete;
  Converting& operator=(const Converting&) = delete;

 private:
  void lose_the_rest() const;
};

}  // namespace koila
