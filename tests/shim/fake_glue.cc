// Stands in for libkoila_torch.so: says what the shim told it, and plays what FAKE_GLUE_DO asks for, so that entry, redirection and the
// report are tested apart from the adapter. Lines are appended to the file FAKE_GLUE_TRACE.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/abi.h"

namespace {

const koila_runtime* runtime = nullptr;
koila_redirect redirects[KOILA_REDIRECTED_COUNT];

void trace(const std::string& line) {
  const char* path = std::getenv("FAKE_GLUE_TRACE");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, "ae");
  std::fprintf(file, "%d %s\n", static_cast<int>(getpid()), line.c_str());
  std::fclose(file);
}

// Whether torch/_C has made its Python types; false in a program without Python.
bool python_is_ready() {
  void* library = dlopen("libtorch_python.so", RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return false;
  auto** type = static_cast<void**>(dlsym(library, "THPGeneratorClass"));
  return type != nullptr && *type != nullptr;
}

// As returned by value through memory, like std::vector.
struct ThreePointers {
  void* pointers[3];
};

// How many operators torch has registered: none of them before its static initialisers have run.
long operators() {
  auto singleton = reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "_ZN3c1010Dispatcher13realSingletonEv"));
  auto names = reinterpret_cast<ThreePointers (*)(void*)>(dlsym(RTLD_DEFAULT, "_ZN3c1010Dispatcher13getAllOpNamesEv"));
  if (singleton == nullptr || names == nullptr) return -1;
  const ThreePointers all = names(singleton());  // leaked
  return (static_cast<char*>(all.pointers[1]) - static_cast<char*>(all.pointers[0])) / (2 * static_cast<long>(sizeof(std::string)));
}

ThreePointers execute(void* self, const void* roots, const void* inputs, bool keep, bool create, bool accumulate, const void* outputs) {
  trace("execute");
  return reinterpret_cast<decltype(&execute)>(redirects[KOILA_ENGINE_EXECUTE].real)(self, roots, inputs, keep, create, accumulate, outputs);
}

void* to_numpy(const void* tensor, bool force) {
  trace("to_numpy");
  return reinterpret_cast<decltype(&to_numpy)>(redirects[KOILA_TENSOR_TO_NUMPY].real)(tensor, force);
}

void play(const std::string& what) {
  const koila_oom_event rescue = {KOILA_CPU, KOILA_FORWARD, "aten::linear", 1 << 20, 3 << 20, 4 << 20, KOILA_RESCUED, "", 16, 64, KOILA_RUNG_SPLIT, 0.5};
  const koila_oom_event refusal = {KOILA_CPU, KOILA_BACKWARD, "aten::mm", 1 << 20, 3 << 20, 4 << 20, KOILA_REFUSED, "one row is too big", 0, 64, 0, 0};
  if (what == "step") runtime->on_step();
  if (what == "rescue") runtime->on_oom(&rescue);
  if (what == "refuse") runtime->on_oom(&refusal);
  if (what == "reserve") trace("reserve " + std::to_string(runtime->reserve(KOILA_CPU, 1 << 20)));
  if (what == "release") runtime->release(KOILA_CPU, 1 << 20);
}

}  // namespace

// For Python's ctypes, and at attach for FAKE_GLUE_DO: blank-separated words of play().
extern "C" __attribute__((visibility("default"))) void fake_glue_do(const char* words) {
  std::string word;
  for (const char* c = words; c != nullptr; ++c) {
    if (*c != ' ' && *c != '\0') {
      word += *c;
      continue;
    }
    play(word);
    word.clear();
    if (*c == '\0') break;
  }
}

extern "C" __attribute__((visibility("default"))) int koila_glue_attach(const koila_runtime* from, const koila_redirect* given,
                                                                        const char* torch_version) {
  runtime = from;
  int found = 0;
  for (int i = 0; i < KOILA_REDIRECTED_COUNT; ++i) {
    redirects[i] = given[i];
    if (given[i].real != nullptr) ++found;
  }
  const koila_settings* settings = runtime->settings;
  trace("attach torch=" + std::string(torch_version) + " mode=" + std::to_string(settings->mode) + " microbatch=" +
        std::to_string(settings->microbatch) + " budget=" + std::to_string(settings->cpu_budget_bytes) + " spill=" + settings->spill_dir +
        " policy=" + std::to_string(settings->policy) + " ladder=" + std::to_string(settings->ladder) + " cache=" + settings->cache + " found=" + std::to_string(found) + " operators=" + std::to_string(operators()) +
        " python=" + std::to_string(python_is_ready()));
  if (std::getenv("FAKE_GLUE_FAIL") != nullptr) return 1;
  if (redirects[KOILA_ENGINE_EXECUTE].real != nullptr) *redirects[KOILA_ENGINE_EXECUTE].slot = reinterpret_cast<void*>(&execute);
  if (redirects[KOILA_TENSOR_TO_NUMPY].real != nullptr) *redirects[KOILA_TENSOR_TO_NUMPY].slot = reinterpret_cast<void*>(&to_numpy);
  fake_glue_do(std::getenv("FAKE_GLUE_DO"));
  return 0;
}
