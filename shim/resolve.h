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

// `symbol` as the object around `caller` would have found it without the preload; null when it has none.
void* find_for_caller(const char* symbol, const void* caller);

// Looks every interposed function up and answers with its slot. To be called once torch's libraries are loaded.
void resolve_all(koila_redirect (&out)[KOILA_REDIRECTED_COUNT]);

}  // namespace koila::shim

#endif  // KOILA_SHIM_RESOLVE_H_
