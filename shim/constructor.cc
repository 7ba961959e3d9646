#include <dlfcn.h>

#include "runtime/quiet_write.h"
#include "shim/attach.h"
#include "shim/own_folder.h"
#include "shim/resolve.h"

namespace {

bool python_runs() {
  const auto is_initialised = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  return is_initialised != nullptr && is_initialised() != 0;
}

// A C++ LibTorch program has torch among its start-up libraries. Preloads are initialised after those (they stand first in the load
// order, and initialisation runs it backwards), so torch is ready here. Every other process leaves after one look; one that runs Python already has loaded the library
// itself, and calls koila_attach().
__attribute__((constructor)) void meet_torch() {
  // How things are before the program runs: it may leave its folder, and close its stderr.
  koila::shim::remember_own_folder();
  koila::StandardError::remember();
  if (koila::shim::is_loaded("libtorch_cpu.so") && !python_runs()) koila::shim::attach();
}

}  // namespace
