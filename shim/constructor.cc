#include "shim/attach.h"
#include "shim/resolve.h"

namespace {

// A C++ LibTorch program has torch among its start-up libraries. Preloads are initialised after those (they stand first in the load
// order, and initialisation runs it backwards), so torch is ready here. Every other process leaves after one look.
__attribute__((constructor)) void meet_torch() {
  if (koila::shim::is_loaded("libtorch_cpu.so")) koila::shim::attach();
}

}  // namespace
