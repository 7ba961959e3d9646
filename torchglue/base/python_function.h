// Functions of CPython's that the adapter calls. It is built without Python, and LibTorch programs have none: they are looked up, and may be null.
#pragma once

#include <dlfcn.h>

namespace koila {

template <class F>
F python_function(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace koila
