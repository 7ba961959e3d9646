// What PyTorch starts on a thread of its own pool (at::launch): the second half of a torch.jit.fork, and what a script goes on with after a wait for it.
#pragma once

#include <functional>

namespace koila {

// Note [Forks of TorchScript]
// A forked part of a step is of the step, but its thread is the pool's, which is never followed: its operators would be missing on the tape, and it would read tensors
// that have no value yet. While the owner is in a step such a part runs in its place, on the owner. Its future is then complete before anything waits for it, so the
// script is never continued on the pool either. Without gradients and with nothing deferred there is no step to be missed in, and it goes to the pool as before.

using LaunchFn = void (*)(std::function<void()> task);

// Stands in for at::launch(std::function<void()>); `set_real_launch` names the real one first. Any thread.
void set_real_launch(LaunchFn real);
void launch(std::function<void()> task);

}  // namespace koila
