#include <dlfcn.h>

#include "shim/attach.h"

namespace {

// A C++ LibTorch program has torch among its start-up libraries. Preloads are initialised after them (they stand first in the load
// order, and initialisation runs it backwards), so torch is ready here. Every other process leaves after one look.
__attribute__((constructor)) void meet_torch() {
  void* torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  if (torch == nullptr) return;
  dlclose(torch);
  koila::shim::attach();
}

}  // namespace
