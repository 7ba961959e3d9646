// What in the program keeps tensors that add up, in words. For processes with Python in them; elsewhere nothing is found.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace koila {

// Note [Looking into the program]
// Who holds a tensor is known to Python's collector of garbage alone. So a few times in a run, and only when something was seen to add up, a
// piece of Python (holders.py) is run in the program's interpreter: it takes the GIL, walks all objects, and leaves nothing behind.
// It is bounded by the number of objects, and of objects walked through (measured: 0.1 s with 170 thousand objects, 0.3 s with 400 thousand),
// and the program's trace functions do not see it. The moment is the end of an outermost backward pass, on the thread that runs it: PyTorch has let go of the
// GIL there, koila holds no lock, and no operator is under way.
//
// What a graph holds, Python does not see: saved tensors are C++. So where no object of Python's has the memory of what adds up, the tensors are
// looked for that have a graph from earlier steps: a `total += loss` is one.

// Tensors of one leak.
struct LeakedTensors {
  std::vector<const void*> addresses;  // of their memory
  bool may_be_saved = true;            // a graph may be what holds them: activations, inputs
};

// What holds each: "`outputs` (a list of 40), a local variable of train() at train.py:12"; "" when it is not found. Nodes with a sequence number below
// `old_before` belong to earlier steps. To be called at the moment named above; throws nothing.
std::vector<std::string> name_holders(const std::vector<LeakedTensors>& leaks, uint64_t old_before);

// The tensor that keeps most of the graphs of earlier steps.
struct GraphKeeper {
  std::string holder;  // in words as above
  int64_t nodes = 0;   // of earlier steps, kept by any tensor
};
GraphKeeper find_graph_keeper(uint64_t old_before);

}  // namespace koila
