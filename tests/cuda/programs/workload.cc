#include "tests/cuda/programs/workload.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "tests/cuda/sim/control.h"

extern "C" {
cudaError_t cudaMallocAsync_ptsz(void**, size_t, cudaStream_t);
cudaError_t cudaMallocFromPoolAsync_ptsz(void**, size_t, cudaMemPool_t, cudaStream_t);
cudaError_t cudaFreeAsync_ptsz(void*, cudaStream_t);
cudaError_t cudaGetDriverEntryPoint_ptsz(const char*, void**, unsigned long long, cudaDriverEntryPointQueryResult*);
cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char*, void**, unsigned int, unsigned long long, cudaDriverEntryPointQueryResult*);
}

namespace {

constexpr std::size_t kKi = 1024, kMi = 1024 * kKi;

// Under the preload its account must be the simulation's own, after every call. Said on stderr, since stdout is compared with a run without it.
void compare(const char* after) {
  static const auto live = reinterpret_cast<std::int64_t (*)(int)>(dlsym(RTLD_DEFAULT, "koila_live_bytes"));
  if (live == nullptr || std::getenv("WORKLOAD_COMPARE") == nullptr) return;
  const auto device = static_cast<std::int64_t>(sim_used(0)), managed = static_cast<std::int64_t>(sim_managed(0));
  const auto host = static_cast<std::int64_t>(sim_pinned() + sim_registered());
  if (live(0) != device) std::fprintf(stderr, "mismatch after %s: cuda:0 %ld, really %ld\n", after, long(live(0)), long(device));
  if (live(-2) != host) std::fprintf(stderr, "mismatch after %s: pinned %ld, really %ld\n", after, long(live(-2)), long(host));
  if (live(-3) != managed) std::fprintf(stderr, "mismatch after %s: managed %ld, really %ld\n", after, long(live(-3)), long(managed));
}

void say(const char* call, int result, bool pointer) {
  std::printf("%s = %d, last %d, %s; used %zu in %zu, managed %zu, pinned %zu, registered %zu\n", call, result,
              static_cast<int>(cudaPeekAtLastError()), pointer ? "memory" : "none", sim_used(0), sim_live_blocks(0), sim_managed(0), sim_pinned(),
              sim_registered());
  cudaGetLastError();
  compare(call);
}

// `p` is the pointer that the call is about.
#define DO(p, call) say(#call, static_cast<int>(call), (p) != nullptr)
#define DO_DRIVER(p, call) say(#call, static_cast<int>(call), (p) != 0)

void linear() {
  void* p = nullptr;
  void* q = nullptr;
  DO(p, cudaMalloc(&p, 3 * kMi));
  DO(q, cudaMalloc(&q, 512));
  DO(p, cudaFree(p));
  DO(q, cudaFree(q));
  DO(p, cudaFree(p));  // twice is an error
  p = nullptr;
  DO(p, cudaFree(nullptr));
  DO(p, cudaMalloc(&p, 0));
  p = nullptr;
  DO(p, cudaMalloc(&p, std::size_t{1} << 50));
  DO(p, cudaMalloc(&p, ~std::size_t{0}));
  DO(p, cudaMalloc(nullptr, 512));
  DO(p, cudaFree(reinterpret_cast<void*>(0x1234)));
  sim_fail("cudaMalloc", 1, 1, cudaErrorUnknown);
  DO(p, cudaMalloc(&p, 512));
  sim_fail("cudaMalloc", 1, 0, 0);
  DO(p, cudaMalloc(&p, kMi));
  sim_fail("cudaFree", 1, 1, cudaErrorUnknown);
  DO(p, cudaFree(p));  // fails: the memory stays
  sim_fail("cudaFree", 1, 0, 0);
  DO(p, cudaFree(p));
}

void pitched() {
  void* p = nullptr;
  std::size_t pitch = 0;
  DO(p, cudaMallocPitch(&p, &pitch, 1000, 10));
  std::printf("pitch %zu\n", pitch);
  DO(p, cudaFree(p));
  cudaPitchedPtr cube = {};
  DO(cube.ptr, cudaMalloc3D(&cube, cudaExtent{700, 5, 3}));
  std::printf("pitch %zu, %zu x %zu\n", cube.pitch, cube.xsize, cube.ysize);
  DO(cube.ptr, cudaFree(cube.ptr));
  p = nullptr;
  DO(p, cudaMallocPitch(&p, &pitch, std::size_t{1} << 45, 1 << 10));
}

void arrays() {
  const cudaChannelFormatDesc format = {32, 32, 32, 32, cudaChannelFormatKindFloat};
  cudaArray_t array = nullptr;
  cudaMipmappedArray_t mipmapped = nullptr;
  DO(array, cudaMallocArray(&array, &format, 64, 32, 0));
  DO(array, cudaFreeArray(array));
  DO(array, cudaMalloc3DArray(&array, &format, cudaExtent{32, 4, 8}, 0));
  DO(array, cudaFreeArray(array));
  // Three levels: 32 x 128, 16 x 64, 8 x 32; then one that gets narrower than a texel: 1, 1, 1 by 64, 32, 16.
  DO(mipmapped, cudaMallocMipmappedArray(&mipmapped, &format, cudaExtent{32, 128, 0}, 3, 0));
  DO(mipmapped, cudaFreeMipmappedArray(mipmapped));
  DO(mipmapped, cudaMallocMipmappedArray(&mipmapped, &format, cudaExtent{1, 128, 0}, 3, 0));
  DO(mipmapped, cudaFreeMipmappedArray(mipmapped));
}

void pools() {
  void* p = nullptr;
  cudaMemPool_t pool = nullptr;
  cudaDeviceGetDefaultMemPool(&pool, 0);
  DO(p, cudaMallocAsync(&p, 2 * kMi, nullptr));
  DO(p, cudaFreeAsync(p, nullptr));
  DO(p, cudaMallocAsync_ptsz(&p, kMi, nullptr));
  DO(p, cudaFreeAsync_ptsz(p, nullptr));
  DO(p, cudaMallocFromPoolAsync(&p, kMi, pool, nullptr));
  DO(p, cudaFree(p));  // allowed
  DO(p, cudaMallocFromPoolAsync_ptsz(&p, kMi, pool, nullptr));
  DO(p, cudaFreeAsync(p, nullptr));
}

void host_and_managed() {
  void* p = nullptr;
  DO(p, cudaMallocHost(&p, 64 * kKi));
  DO(p, cudaFreeHost(p));
  DO(p, cudaHostAlloc(&p, 128 * kKi, cudaHostAllocPortable));
  DO(p, cudaFree(p));  // the wrong function
  DO(p, cudaFreeHost(p));
  alignas(4096) static char mine[8192];
  DO(mine, cudaHostRegister(mine, sizeof mine, 0));
  DO(mine, cudaHostRegister(mine, sizeof mine, 0));  // twice is an error
  DO(mine, cudaHostUnregister(mine));
  p = nullptr;
  DO(p, cudaMallocManaged(&p, 5 * kMi, cudaMemAttachGlobal));
  DO(p, cudaFree(p));
}

template <class F>
F* driver(F*, const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status);
  if (error != cudaSuccess || found == nullptr) std::printf("%s: %d, %d\n", name, error, status);
  return reinterpret_cast<F*>(found);
}
#define DRIVER(name) const auto name##_ = driver(&name, #name)

void entry_points() {
  using Find = cudaError_t(const char*, void**, unsigned long long, cudaDriverEntryPointQueryResult*);
  using FindByVersion = cudaError_t(const char*, void**, unsigned int, unsigned long long, cudaDriverEntryPointQueryResult*);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  cudaDriverEntryPointQueryResult status;
  void* first = nullptr;
  cudaGetDriverEntryPointByVersion("cuMemAlloc", &first, 12000, 0, &status);
  for (Find* find : {static_cast<Find*>(&cudaGetDriverEntryPoint), static_cast<Find*>(&cudaGetDriverEntryPoint_ptsz)}) {
    void* found = nullptr;
    const int error = find("cuMemAlloc", &found, cudaEnableDefault, &status);
    std::printf("entry point: %d, %d, %s\n", error, status, found == first ? "the same" : "another");
    std::printf("none: %d, ", find("cuNothing", &found, cudaEnableDefault, &status));
    std::printf("%d, %d\n", status, found == nullptr);
  }
  for (FindByVersion* find : {static_cast<FindByVersion*>(&cudaGetDriverEntryPointByVersion),
                              static_cast<FindByVersion*>(&cudaGetDriverEntryPointByVersion_ptsz)}) {
    void* found = nullptr;
    const int error = find("cuMemAlloc", &found, 12000, cudaEnableDefault, nullptr);
    std::printf("entry point: %d, %s\n", error, found == first ? "the same" : "another");
  }
}

void driver_memory() {
  DRIVER(cuMemAlloc);
  DRIVER(cuMemAllocPitch);
  DRIVER(cuMemAllocManaged);
  DRIVER(cuMemAllocAsync);
  DRIVER(cuMemAllocFromPoolAsync);
  DRIVER(cuMemFree);
  DRIVER(cuMemFreeAsync);
  CUdeviceptr p = 0;
  std::size_t pitch = 0;
  cudaMemPool_t pool = nullptr;
  cudaDeviceGetDefaultMemPool(&pool, 0);
  DO_DRIVER(p, cuMemAlloc_(&p, kMi));
  DO_DRIVER(p, cuMemFree_(p));
  DO_DRIVER(p, cuMemFree_(p));
  DO_DRIVER(p, cuMemAlloc_(&p, std::size_t{1} << 50));
  DO_DRIVER(p, cuMemAllocPitch_(&p, &pitch, 1000, 4, 4));
  DO_DRIVER(p, cuMemFree_(p));
  DO_DRIVER(p, cuMemAllocManaged_(&p, kMi, CU_MEM_ATTACH_GLOBAL));
  DO_DRIVER(p, cuMemFree_(p));
  DO_DRIVER(p, cuMemAllocAsync_(&p, kMi, nullptr));
  DO_DRIVER(p, cuMemFreeAsync_(p, nullptr));
  DO_DRIVER(p, cuMemAllocFromPoolAsync_(&p, kMi, pool, nullptr));
  DO_DRIVER(p, cuMemFreeAsync_(p, nullptr));
  // Memory of one interface may be given back through the other.
  DO_DRIVER(p, cuMemAlloc_(&p, kMi));
  DO_DRIVER(p, cudaFree(reinterpret_cast<void*>(p)));
}

void driver_host() {
  DRIVER(cuMemAllocHost);
  DRIVER(cuMemHostAlloc);
  DRIVER(cuMemHostRegister);
  DRIVER(cuMemFreeHost);
  DRIVER(cuMemHostUnregister);
  void* p = nullptr;
  DO(p, cuMemAllocHost_(&p, 4 * kKi));
  DO(p, cuMemFreeHost_(p));
  DO(p, cuMemHostAlloc_(&p, 8 * kKi, 0));
  DO(p, cuMemFreeHost_(p));
  alignas(4096) static char mine[4096];
  DO(mine, cuMemHostRegister_(mine, sizeof mine, 0));
  DO(mine, cuMemHostUnregister_(mine));
}

// As PyTorch's expandable segments do it.
void virtual_memory() {
  DRIVER(cuMemAddressReserve);
  DRIVER(cuMemAddressFree);
  DRIVER(cuMemCreate);
  DRIVER(cuMemRelease);
  DRIVER(cuMemMap);
  DRIVER(cuMemUnmap);
  DRIVER(cuMemGetInfo);
  DRIVER(cuMemRetainAllocationHandle);
  constexpr std::size_t kPage = 2 * kMi;
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUdeviceptr base = 0;
  CUmemGenericAllocationHandle handles[3] = {};
  std::size_t free = 0, total = 0;
  DO_DRIVER(base, cuMemAddressReserve_(&base, 8 * kPage, 0, 0, 0));
  for (int i = 0; i < 3; ++i) {
    DO_DRIVER(handles[i], cuMemCreate_(&handles[i], kPage, &prop, 0));
    DO_DRIVER(base, cuMemMap_(base + static_cast<unsigned>(i) * kPage, kPage, 0, handles[i], 0));
  }
  DO_DRIVER(handles[0], cuMemRelease_(handles[0]));  // mapped: stays
  DO_DRIVER(base, cuMemUnmap_(base, 2 * kPage));     // the first goes, of the second the handle stays
  DO_DRIVER(handles[1], cuMemRelease_(handles[1]));
  DO_DRIVER(handles[2], cuMemRelease_(handles[2]));
  DO_DRIVER(handles[2], cuMemRetainAllocationHandle_(&handles[2], reinterpret_cast<void*>(base + 2 * kPage)));
  DO_DRIVER(handles[2], cuMemRelease_(handles[2]));  // as NCCL does it; mapped: stays
  const int error = cuMemGetInfo_(&free, &total);
  std::printf("cuMemGetInfo: %d, %zu of %zu free\n", error, free, total);
  DO_DRIVER(base, cuMemUnmap_(base + 2 * kPage, kPage));
  handles[0] = 0;
  DO_DRIVER(handles[0], cuMemCreate_(&handles[0], std::size_t{1} << 50, &prop, 0));
  DO_DRIVER(base, cuMemAddressFree_(base, 8 * kPage));
}

void* taken = nullptr;

}  // namespace

void workload(int leak) {
  linear();
  pitched();
  arrays();
  pools();
  host_and_managed();
  entry_points();
  driver_memory();
  driver_host();
  virtual_memory();
  std::size_t free = 0, total = 0;
  const int error = cudaMemGetInfo(&free, &total);
  std::printf("cudaMemGetInfo: %d, %zu of %zu free\n", error, free, total);
  void* p = nullptr;
  if (leak != 0) DO(p, cudaMalloc(&p, kMi));
  std::printf("peak %zu\n", sim_peak(0));
  std::fflush(stdout);
}

int take(unsigned long long bytes) { return cudaMalloc(&taken, bytes); }
int give_back() { return cudaFree(taken); }
int last_error() { return cudaGetLastError(); }
unsigned long long used() { return sim_used(0); }
