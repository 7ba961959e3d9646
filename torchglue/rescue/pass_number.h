// The number by which hooks tell one backward pass of the program's from another.
#pragma once

namespace koila {

// Note [One pass of the program's]
// torch.autograd.graph.register_multi_grad_hook() collects the gradients of one pass under the number of the engine's task, and calls the hook when it has them all. A pass that runs out goes on in
// a pass of koila's, which is another task: the hooks of the parameters whose gradients were there before belong to the same pass of the program's all the same. So who asks in a hook of a leaf, or of
// what a region made, is told the number that was asked for first. Whoever asks in an operator's backward (torch.utils.checkpoint, where a saved tensor is unpacked) is told the task's
// own: what it has unpacked for a pass that ran out, it unpacks once more.
class PassOfProgram {
 public:
  // Of a pass on the step's thread; that of another one keeps its own number.
  PassOfProgram();
  ~PassOfProgram();
  PassOfProgram(const PassOfProgram&) = delete;
  PassOfProgram& operator=(const PassOfProgram&) = delete;

 private:
  const bool of_owner_;
  int outer_ = 0;
};

// Stands in for torch::autograd::get_current_graph_task_id (base/engine_task.h has the real one). On any thread.
int pass_number();

}  // namespace koila
