#include "shim/resolve.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/quiet_write.h"
#include "shim/attach.h"
#include "shim/loaded_object.h"

extern "C" {
// Hidden, or the compiler would go through the GOT for what the assembler defines beside it.
__attribute__((visibility("hidden"))) extern void* koila_slots[KOILA_REDIRECTED_COUNT];
__attribute__((visibility("hidden"))) extern void* const koila_stubs[KOILA_REDIRECTED_COUNT];
void* koila_resolve(std::int64_t index, const void* caller);
}

namespace koila::shim {
namespace {

struct Redirect {
  const char* symbol;
  const char* library;
};

constexpr Redirect kRedirects[] = {
#define KOILA_REDIRECT(index, name, library) {#name, library},
#include "shim/redirects.inc"
#undef KOILA_REDIRECT
};
static_assert(sizeof(kRedirects) / sizeof(kRedirects[0]) == KOILA_REDIRECTED_COUNT);

constexpr int kOrder[] = {
#define KOILA_REDIRECT(index, name, library) index,
#include "shim/redirects.inc"
#undef KOILA_REDIRECT
};
constexpr bool in_order() {
  for (int i = 0; i < KOILA_REDIRECTED_COUNT; ++i)
    if (kOrder[i] != i) return false;
  return true;
}
static_assert(in_order(), "redirects.inc must list the functions in the order of enum koila_redirected");

const void* base_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

bool is_ours(const void* function) { return base_of(function) == base_of(reinterpret_cast<const void*>(&koila_resolve)); }

std::vector<std::string> loaded_paths() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        if (info->dlpi_name != nullptr && std::strchr(info->dlpi_name, '/') != nullptr)
          static_cast<std::vector<std::string>*>(data)->emplace_back(info->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

bool is_named(const char* path, const char* name) {
  const char* slash = std::strrchr(path, '/');
  const char* file = slash != nullptr ? slash + 1 : path;
  const std::size_t n = std::strlen(name);
  return std::strncmp(file, name, n) == 0 && (file[n] == '\0' || file[n] == '.');
}

// Another thread, or the adapter, may have set the slot meanwhile: theirs stays, and is the answer.
void* fill(int index, void* real) {
  void* expected = koila_stubs[index];
  if (__atomic_compare_exchange_n(&koila_slots[index], &expected, real, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return real;
  return expected;
}

void* find_in(const std::string& path, const char* symbol) {
  void* handle = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_LAZY);
  if (handle == nullptr) return nullptr;
  void* found = dlsym(handle, symbol);
  dlclose(handle);  // NOLOAD took a reference of its own
  return found != nullptr && !is_ours(found) ? found : nullptr;
}

}  // namespace

bool is_loaded(const char* name) {
  return dl_iterate_phdr(
             [](dl_phdr_info* info, std::size_t, void* data) {
               return info->dlpi_name != nullptr && is_named(info->dlpi_name, static_cast<const char*>(data)) ? 1 : 0;
             },
             const_cast<char*>(name)) != 0;
}

std::string loaded_path(const char* name) {
  for (const std::string& path : loaded_paths())
    if (is_named(path.c_str(), name)) return path;
  return "";
}

void* find_real(const char* symbol, const char* library) {
  // By path first: RTLD_NEXT cannot see what Python loads RTLD_LOCAL, and another library of that scope may carry a like name.
  const std::vector<std::string> paths = loaded_paths();
  for (const std::string& path : paths)
    if (is_named(path.c_str(), library))
      if (void* found = find_in(path, symbol)) return found;
  if (void* found = dlsym(RTLD_NEXT, symbol); found != nullptr && !is_ours(found)) return found;
  for (const std::string& path : paths)
    if (void* found = find_in(path, symbol)) return found;
  return nullptr;
}

bool is_program(const void* base) {
  return dl_iterate_phdr([](dl_phdr_info* program, std::size_t, void* data) { return holds(*program, data) ? 2 : 1; }, const_cast<void*>(base)) == 2;  // it comes first
}

void* find_real_for(const char* symbol, const char* prefix, const void* caller) {
  if (!is_program(base_of(caller)))
    if (void* found = find_beside(caller, symbol)) return found;
  if (void* found = dlsym(RTLD_NEXT, symbol); found != nullptr && !is_ours(found)) return found;
  for (const std::string& path : loaded_paths()) {
    const std::size_t slash = path.rfind('/');
    if (path.compare(slash + 1, std::strlen(prefix), prefix) != 0) continue;
    if (void* found = find_in(path, symbol)) return found;
  }
  return nullptr;
}

// A handle searches the object and what it depends on, and never the preload.
void* find_beside(const void* code, const char* symbol) {
  Dl_info info;
  if (code == nullptr || dladdr(code, &info) == 0 || info.dli_fname == nullptr) return nullptr;
  return find_in(info.dli_fname, symbol);
}

void keep_loaded(const void* function) {
  Dl_info info;
  if (function != nullptr && dladdr(function, &info) != 0 && info.dli_fname != nullptr) dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY | RTLD_NODELETE);
}

void* find_init_module(const void* caller) {
  constexpr const char* kSymbol = "initModule";
  if (void* found = find_beside(caller, kSymbol)) return found;
  return find_real(kSymbol, "libtorch_python.so");
}

void resolve_all(koila_redirect (&out)[KOILA_REDIRECTED_COUNT]) {
  for (int i = 0; i < KOILA_REDIRECTED_COUNT; ++i) {
    out[i].slot = &koila_slots[i];
    out[i].real = find_real(kRedirects[i].symbol, kRedirects[i].library);
    if (out[i].real != nullptr) fill(i, out[i].real);
  }
}

bool comes_first(const koila_redirect (&redirects)[KOILA_REDIRECTED_COUNT]) {
  for (int i = 0; i < KOILA_REDIRECTED_COUNT; ++i)
    if (redirects[i].real != nullptr && !is_ours(dlsym(RTLD_DEFAULT, kRedirects[i].symbol))) return false;
  return true;
}

}  // namespace koila::shim

namespace {

// What the dynamic linker does when a lazily bound function is nowhere: without the preload the program would have ended here.
[[noreturn]] void unresolved(const char* symbol) {
  koila::StandardError::write(std::string("koila: symbol lookup error: undefined symbol: ") + symbol + "\n");
  _exit(127);
}

}  // namespace

// Called by the assembler with the program's arguments put aside; answers with the function to go on to.
void* koila_resolve(std::int64_t index, const void* caller) {
  using namespace koila::shim;
  if (index < 0) {
    void* real = find_init_module(caller);
    if (real == nullptr) unresolved("initModule");
    return choose_init_module(real);
  }
  const Redirect& redirect = kRedirects[index];
  void* real = find_real(redirect.symbol, redirect.library);
  if (real == nullptr) unresolved(redirect.symbol);
  return fill(static_cast<int>(index), real);
}
