// Finds the real functions behind the interposed ones.
#ifndef KOILA_SHIM_RESOLVE_H_
#define KOILA_SHIM_RESOLVE_H_

#include <string>

#include "runtime/abi.h"

namespace koila::shim {

// Whether a library of that file name ("libtorch_cpu.so", or with a version behind it) is loaded. Cheap: it looks at no file.
bool is_loaded(const char* name);

// The path of the first loaded library of that file name; "" when none is.
std::string loaded_path(const char* name);

// `symbol` in the loaded library `library`, else in the libraries after this one, else in any loaded library; null when nowhere.
// Never answers with a function of this library.
void* find_real(const char* symbol, const char* library);

// The same for the library that the code around `caller` means: the one that it is linked with, if it says; `prefix` begins the library's file
// name, whatever a packager put behind it ("libcudart" is "libcudart-1a2b3c4d.so.13" too).
void* find_real_for(const char* symbol, const char* prefix, const void* caller);

// `symbol` in the library that the code is in, or in those that it is linked with; null when there is none.
void* find_beside(const void* code, const char* symbol);

// The library that has `function` stays loaded until the process ends.
void keep_loaded(const void* function);

// Whether what is loaded at `base` is the program itself, and no library.
bool is_program(const void* base);

// The `initModule` that the code around `caller` meant; null when there is none. Torch's is torch/_C's whole body, a tail call: then
// `caller` is Python's import machinery, and tells nothing.
void* find_init_module(const void* caller);

// Looks every interposed function up and answers with its slot. To be called once torch's libraries are loaded.
void resolve_all(koila_redirect (&out)[KOILA_REDIRECTED_COUNT]);

// Whether the program reaches this library's functions before those that they stand for. False when another library that has them comes
// earlier in the global scope, as torch itself does when it is preloaded first or when koila is linked behind it.
bool comes_first(const koila_redirect (&redirects)[KOILA_REDIRECTED_COUNT]);

}  // namespace koila::shim

#endif  // KOILA_SHIM_RESOLVE_H_
