// Whose saved-tensor hooks are on.
#pragma once

#include <c10/util/python_stub.h>

namespace koila {

// Note [Saved-tensor hooks]
// Hooks that torch itself installs (checkpoint, save_on_cpu) give backward the very tensors that were saved, whichever way they keep them.
// A region recomputes those, so it may leave such hooks out. Hooks of anybody else may give backward something else (compressed or
// quantised activations, a count of what was saved): operators under them run at full batch, with the hooks, and a step
// that has run under them is not split afterwards. Whose they are is told by the Python module of the function that packs.

// Whether the hooks in force are not torch's own. False when there are none. May take Python's lock.
bool foreign_saved_tensor_hooks();

// Whether torch itself defines the function, which is one that packs. With Python's lock; leaves no error.
bool is_hook_of_torch(PyObject* function);

}  // namespace koila
