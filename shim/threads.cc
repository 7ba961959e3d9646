// Tells the adapter of the threads that the program makes, see Note [Whose steps are followed] in torchglue/step_owner.h. A thread of a library's own begins as if
// koila were not there, and so does every thread of a process that has not met torch.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <new>
#include <string_view>

#include "runtime/cabi.h"
#include "shim/library_name.h"

namespace {

using CreateFn = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

CreateFn real_create() {
  static std::atomic<CreateFn> found{nullptr};
  CreateFn real = found.load(std::memory_order_relaxed);
  if (real == nullptr) found.store(real = reinterpret_cast<CreateFn>(dlsym(RTLD_NEXT, "pthread_create")), std::memory_order_relaxed);
  return real;
}

// Whose threads compute for whoever asks them, and never train by themselves.
bool makes_workers(std::string_view library) {
  constexpr std::array<std::string_view, 15> kBegin = {"torch", "c10", "gomp", "iomp", "omp", "tbb", "mkl", "openblas", "nccl", "gloo", "cuda", "cu", "nv", "koila", "rccl"};
  return std::any_of(kBegin.begin(), kBegin.end(), [&](std::string_view begin) { return library.starts_with(begin); });
}

std::string library_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? koila::shim::library_name(info.dli_fname) : std::string();
}

// std::thread calls from within libstdc++, with an object of whoever made the thread: the object's virtual functions are in the library that it is of.
bool is_of_program(const void* caller, const void* argument) {
  const std::string library = library_of(caller);
  if (library != "stdc++") return !makes_workers(library);
  return argument == nullptr || !makes_workers(library_of(*static_cast<const void* const*>(argument)));
}

struct Start {
  void* (*function)(void*);
  void* argument;
  const koila_threads* told;
};

void* run(void* given) {
  const Start start = *static_cast<Start*>(given);
  delete static_cast<Start*>(given);
  start.told->begins();
  void* result = start.function(start.argument);
  start.told->ends();  // not where the thread is ended in the middle of something, such as a daemon of Python's at exit
  return result;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*), void* argument) {
  const CreateFn real = real_create();
  if (real == nullptr) return EAGAIN;
  const koila_threads* told = koila::threads_told();
  if (told == nullptr || !is_of_program(__builtin_return_address(0), argument)) return real(thread, attributes, function, argument);
  auto* start = new (std::nothrow) Start{function, argument, told};
  if (start == nullptr) return real(thread, attributes, function, argument);
  told->before();
  const int error = real(thread, attributes, &run, start);
  if (error != 0) delete start;
  return error;
}
