// Nodes that the tape does not know yet, and that hang on a step that is split in the meantime.
#pragma once

#include <cstdint>
#include <vector>

#include "torchglue/compat/node.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Note [Nodes out of sight]
// An autograd.Function whose forward method is at work has its node already, and so has one whose result nobody has read. It hangs on the old graph of what it was given, which would live on with all that it has
// saved when the step has been split. So the old node is told what stands for it, and lets go of what it and those behind it have saved; before anybody follows a graph, edges to it are put on that (follow_successors()). What is held
// from elsewhere, and nobody knows for what, stays as it is.
class OutOfSight {
 public:
  // Before a conversion.
  explicit OutOfSight(const Tape& tape);
  // When tensors of the program have their new graphs.
  void tell(const Tape& tape) const;

 private:
  struct Old {
    NodeWeak node;
    uint32_t output_nr;
    TapeValueId value;
  };
  std::vector<Old> old_;
};

}  // namespace koila
