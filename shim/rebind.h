// A library that comes late: what the dynamic linker would have done, had it been preloaded, is done for the libraries that are there already.
#ifndef KOILA_SHIM_REBIND_H_
#define KOILA_SHIM_REBIND_H_

#include <cstddef>

namespace koila::shim {

// Note [Coming late]
// A preload stands first in the global scope, so whoever refers to a function that it defines is bound to that one. A library that is loaded in a running program
// (`import koila` in a notebook, where no variable could be set) stands behind all that is there: what was bound keeps what it was bound to. So the references are
// bound anew, where the dynamic linker keeps them: in the tables (GOT, data with relocations) of each library and of the program. A reference that the linker would
// have bound to the library's own definition whatever comes first (protected symbols, -Bsymbolic) is left alone, as a preload would leave it.
// What is loaded afterwards is bound by the dynamic linker, in the order of the global scope: for torch's functions this library's come first, unless torch's libraries
// had been loaded with RTLD_GLOBAL (comes_first() tells); the C library's always come first there.

// Binds every reference to a function that this library stands in for (all that it exports, but for its own interface and initModule) to this library's. May be called
// again, for what has been loaded meanwhile. Returns the references that are bound to this library's functions by now, or -1 where memory could not be made writable;
// what has been bound until then stays so: each function here goes on to the real one. One thread at a time; others may call the functions meanwhile.
std::ptrdiff_t rebind_loaded();

}  // namespace koila::shim

#endif  // KOILA_SHIM_REBIND_H_
