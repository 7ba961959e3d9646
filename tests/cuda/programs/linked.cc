// A program that is linked with a CUDA runtime. With "reset" it gives everything back by a reset of the device; with a library's path it also runs
// that one's part.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "tests/cuda/programs/workload.h"
#include "tests/cuda/sim/control.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "reset") == 0) {
    take(1 << 20);
    take(1 << 20);
    sim_fail("cudaDeviceReset", 1, 1, cudaErrorUnknown);
    for (int i = 0; i < 2; ++i) {
      const int error = cudaDeviceReset();
      std::printf("reset: %d, used %llu\n", error, used());
    }
    take(1 << 21);
    return 0;
  }
  if (argc > 2 && std::strcmp(argv[1], "beside") == 0) {
    void* library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    const auto their_take = reinterpret_cast<int (*)(unsigned long long)>(dlsym(library, "take"));
    std::printf("take: %d\n", take(3 << 20));
    std::printf("their take: %d\n", their_take(5 << 20));
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    std::printf("give back: %d\n", give_back());
    return 0;
  }
  workload(1);
  return 0;
}
