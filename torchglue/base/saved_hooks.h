// Whose saved-tensor hooks are on.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <c10/util/python_stub.h>

namespace koila {

// Note [Saved-tensor hooks]
// Hooks that torch itself installs (checkpoint, save_on_cpu) give backward the very tensors that were saved, whichever way they keep them.
// A region recomputes those, so it may leave such hooks out. Hooks of anybody else may give backward something else (compressed or
// quantised activations, a count of what was saved): operators under them run at full batch, with the hooks, and a step
// that has run under them is not split afterwards. Whose they are is told by the Python module of the function that packs.

// Whether the hooks in force are not torch's own. False when there are none. May take Python's lock.
bool foreign_saved_tensor_hooks();

// Whether they are those of a checkpoint, which runs its function again in backward; and of one that then draws other random numbers (preserve_rng_state=False). May take Python's lock.
bool is_of_checkpoint(const at::impl::SavedTensorDefaultHooksTLS& hooks);
bool draws_anew_in_checkpoint(const at::impl::SavedTensorDefaultHooksTLS& hooks);

// Whether torch itself defines the function, which is one that packs. With Python's lock; leaves no error.
bool is_hook_of_torch(PyObject* function);

}  // namespace koila
