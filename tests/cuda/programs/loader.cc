// A program that knows nothing of CUDA, and loads libraries that do.
//
//   loader local|global|deepbind LIBRARY     runs its workload
//   loader after CUDART LIBRARY              the library finds the runtime in the global scope
//   loader again LIBRARY                     loads, runs and unloads it, and all that again
//   loader two LIBRARY LIBRARY               each with a runtime of its own
//   loader probe                             asks whether there is a CUDA runtime, as some programs do
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

struct Extension {
  void* handle;

  Extension(const char* path, int flags) : handle(dlopen(path, RTLD_NOW | flags)) {
    if (handle == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::exit(1);
    }
  }
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(dlsym(handle, name));
  }
  void workload(int leak) const { function<void(int)>("workload")(leak); }
  int take(unsigned long long bytes) const { return function<int(unsigned long long)>("take")(bytes); }
  int give_back() const { return function<int()>("give_back")(); }
  int last_error() const { return function<int()>("last_error")(); }
  unsigned long long used() const { return function<unsigned long long()>("used")(); }
};

void two(const Extension& a, const Extension& b) {
  std::printf("take: %d, %d\n", a.take(1 << 20), b.take(2 << 20));
  std::printf("used: %llu, %llu\n", a.used(), b.used());
  // Beyond the budget of 16 MiB that a test sets, and beyond the devices' 8 GiB.
  std::printf("take too much: %d\n", b.take(1ULL << 34));
  std::printf("last errors: %d, %d\n", a.last_error(), b.last_error());
  std::printf("take too much: %d\n", a.take(1ULL << 34));
  std::printf("last errors: %d, %d\n", a.last_error(), b.last_error());
  std::printf("give back: %d, %d\n", a.give_back(), b.give_back());
  std::printf("used: %llu, %llu\n", a.used(), b.used());
  a.workload(1);
  b.workload(1);
  std::printf("used: %llu, %llu\n", a.used(), b.used());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  if (how == "local" || how == "global" || how == "deepbind") {
    Extension(argv[2], how == "global" ? RTLD_GLOBAL : how == "deepbind" ? RTLD_LOCAL | RTLD_DEEPBIND : RTLD_LOCAL).workload(1);
  } else if (how == "after") {
    const Extension runtime(argv[2], RTLD_GLOBAL);
    Extension(argv[3], RTLD_LOCAL).workload(1);
  } else if (how == "again") {
    for (int round = 0; round < 2; ++round) {
      const Extension extension(argv[2], RTLD_LOCAL);
      extension.workload(0);
      Dl_info runtime;
      dladdr(dlsym(extension.handle, "cudaMalloc"), &runtime);
      std::printf("unloaded: %d\n", dlclose(extension.handle));
      // If it is gone, it comes back elsewhere: whoever remembers it here jumps into nothing.
      mmap(runtime.dli_fbase, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    }
  } else if (how == "two") {
    const Extension a(argv[2], RTLD_LOCAL), b(argv[3], RTLD_LOCAL);
    two(a, b);
  } else if (how == "probe") {
    void* p = nullptr;
    const auto allocate = reinterpret_cast<int (*)(void**, std::size_t)>(dlsym(RTLD_DEFAULT, "cudaMalloc"));
    const auto release = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "cudaFree"));
    if (allocate == nullptr) std::puts("no CUDA");
    else std::printf("no CUDA: %d, %d\n", allocate(&p, 512), release(p));
  }
  return 0;
}
