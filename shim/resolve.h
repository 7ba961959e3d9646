// Finds the real functions behind the interposed ones.
#ifndef KOILA_SHIM_RESOLVE_H_
#define KOILA_SHIM_RESOLVE_H_

#include <string>

#include "runtime/abi.h"

namespace koila::shim {

// The path of the first loaded library whose file name is `name` or starts with `name` and a dot ("libtorch_cpu.so.2"); "" when none is.
std::string loaded_path(const char* name);

// `symbol` in the loaded library `library`, else in the libraries after this one, else in any loaded library; null when nowhere.
// Never answers with a function of this library.
void* find_real(const char* symbol, const char* library);

// The `initModule` that the code around `caller` meant; null when there is none. Torch's is torch/_C's whole body, a tail call: then
// `caller` is Python's import machinery, and tells nothing.
void* find_init_module(const void* caller);

// Looks every interposed function up and answers with its slot. To be called once torch's libraries are loaded.
void resolve_all(koila_redirect (&out)[KOILA_REDIRECTED_COUNT]);

}  // namespace koila::shim

#endif  // KOILA_SHIM_RESOLVE_H_
