// The engine's own number of a backward pass, past the function of PyTorch's that koila stands in for.
#pragma once

#include <torch/csrc/autograd/graph_task.h>

namespace koila {

using TaskIdFn = int (*)();
inline TaskIdFn real_task_id = nullptr;  // set once, at attach; null where this torch has no such function

// Of the task that this thread works for; -1 outside of every pass. Any thread.
inline int engine_task() { return real_task_id != nullptr ? real_task_id() : torch::autograd::get_current_graph_task_id(); }

}  // namespace koila
