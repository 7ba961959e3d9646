// Which thread's steps are followed.
#pragma once

#include <ATen/core/stack.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace koila {

// Note [Whose steps are followed]
// koila follows the steps of one thread at a time, the owner: Process::owner. It is the thread that loaded torch at first. A thread that the owner creates
// between two steps may train instead of it, so the owner gives the steps away then, and another thread that calls an operator with gradients takes them, or the
// owner of before, if it is the first to call any. At the end of a thread that has taken them the owner of before may have them back in the same way: what it does with the
// model then, without gradients, is followed as it was before. A thread that finds the steps taken wants them; the owner gives them away before its next step, or at its end.
// Until then the thread's operators run as they would without koila.
// The steps are given away with nothing on the tape that backward could start from and no region alive, so that no other thread ever meets a step of the
// owner's. Threads that libraries make for themselves (PyTorch's, OpenMP's, CUDA's) take no part: the engine's run for whoever called backward.

// This thread is the program's, and the owner's from now on.
void own_steps();

// This thread is one of the program's: its operators are seen from now on. The other thread of a forked child, too.
void join_threads_of_program();

// Whether the call belongs to the steps that are followed. Takes the steps, or gives them away, where it is time to.
bool is_followed(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Whether this thread's steps are followed, and nobody else wants to be.
bool follows_this_thread();

// Takes the steps for this thread where nobody has them. Whether this thread has them now.
bool take_steps();

// While this lives, the engine runs a pass that is not followed, on whichever threads.
class PassOfAnother {
 public:
  PassOfAnother();
  ~PassOfAnother();
  PassOfAnother(const PassOfAnother&) = delete;
  PassOfAnother& operator=(const PassOfAnother&) = delete;

 private:
  bool was_included_;
};

// While this lives, the engine runs a pass of the owner's that goes on with its forward pass, and so counts in no Moment::engine_depth: the engine's threads work for the owner.
class PassOfOwner {
 public:
  PassOfOwner();
  ~PassOfOwner();
  PassOfOwner(const PassOfOwner&) = delete;
  PassOfOwner& operator=(const PassOfOwner&) = delete;
};

// For koila_runtime::set_threads.
void before_thread();
void thread_begins();
void thread_ends();

}  // namespace koila
