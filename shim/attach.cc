#include "shim/attach.h"

#include <dlfcn.h>

#include <atomic>
#include <string>
#include <vector>

#include "runtime/adapters.h"
#include "runtime/cabi.h"
#include "shim/own_folder.h"
#include "shim/rebind.h"
#include "shim/resolve.h"
#include "shim/torch_version.h"

namespace koila::shim {
namespace {

std::atomic<bool> attached{false};
std::atomic<void*> real_init_module{nullptr};
std::atomic<bool> came_late{false};  // see Note [Coming late]

void stay_out(const std::string& why) {
  const koila_runtime* runtime = runtime_table();
  runtime->log(KOILA_LOG_WARN, why.c_str());
  runtime->on_note(why.c_str());
}

void* init_module_and_attach() {
  auto real = reinterpret_cast<void* (*)()>(real_init_module.load());
  void* module = real();
  if (module != nullptr) attach();
  return module;
}

bool is_torch(const void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return false;
  return std::string(info.dli_fname).find("libtorch_python.so") != std::string::npos;
}

}  // namespace

void* choose_init_module(void* real) {
  if (!is_torch(real)) return real;
  real_init_module.store(real);
  return reinterpret_cast<void*>(&init_module_and_attach);
}

void attach() {
  if (attached.exchange(true)) return;
  if (!start_runtime()) return;
  const koila_runtime* runtime = runtime_table();

  if (came_late.load() && rebind_loaded() < 0) return stay_out("koila stays out: this system does not let it bind what is loaded to its functions; preload it (docs/install.md)");
  static koila_redirect redirects[KOILA_REDIRECTED_COUNT];
  resolve_all(redirects);
  if (!comes_first(redirects)) {
    return stay_out(came_late.load() ? "koila stays out: torch's libraries were loaded for all (RTLD_GLOBAL) before koila was imported; import koila before torch"
                                     : "koila stays out: libkoila.so must come before torch's libraries in LD_PRELOAD, and where a program is linked to it");
  }

  const std::string folder = own_folder();
  if (folder.empty()) return stay_out("koila stays out: it cannot be told where libkoila.so lies; preload it by its whole path");
  const std::string running = torch_version();
  const std::vector<Adapter> adapters = adapters_in(folder);
  if (adapters.empty())
    return stay_out("koila stays out: " + folder + "/libkoila_torch.so (or its .version file) is missing; build it for this torch (docs/install.md)");
  const Adapter* adapter = adapter_for(adapters, running);
  if (adapter == nullptr)
    return stay_out("koila stays out: this process runs torch " + (running.empty() ? "of unknown version" : running) +
                    ", koila was built for torch " + releases_of(adapters) + "; build or install it for this one (docs/install.md)");

  const std::string& library = adapter->path;
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return stay_out(std::string("koila stays out: ") + dlerror());
  auto glue = reinterpret_cast<koila_glue_attach_fn>(dlsym(handle, "koila_glue_attach"));
  if (glue == nullptr) return stay_out("koila stays out: " + library + " has no koila_glue_attach");

  if (glue(runtime, redirects, running.c_str()) == 0) runtime_attached(running.c_str());
}

}  // namespace koila::shim

extern "C" __attribute__((visibility("default"))) void koila_attach() {
  using namespace koila::shim;
  if (attached.load() || came_late.exchange(true)) return;
  if (is_loaded("libtorch_cpu.so")) return attach();
  rebind_loaded();  // the functions that tell of threads; torch's come in initModule
}
