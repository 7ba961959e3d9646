#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/cuda/sim/control.h"

extern "C" cudaError_t cudaMallocAsync_ptsz(void** address, size_t bytes, cudaStream_t stream);

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t GiB = std::size_t{1} << 30;

class Sim : public ::testing::Test {
 protected:
  void SetUp() override { sim_reset(); }
  void TearDown() override { sim_reset(); }

  static void* get(std::size_t bytes) {
    void* address = nullptr;
    EXPECT_EQ(cudaMalloc(&address, bytes), cudaSuccess);
    return address;
  }
};

template <typename Function>
Function* driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found), cudaSuccess);
  EXPECT_EQ(found, cudaDriverEntryPointSuccess) << name;
  return reinterpret_cast<Function*>(function);
}

#define DRIVER(name) driver<decltype(name)>(#name)

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

TEST_F(Sim, DeviceMemoryIsAlignedReadableAndCounted) {
  char* address = static_cast<char*>(get(1000));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 512, 0u);
  EXPECT_EQ(cudaMemset(address, 7, 1000), cudaSuccess);
  EXPECT_EQ(address[999], 7);
  EXPECT_EQ(sim_used(0), 1024u);
  EXPECT_EQ(sim_live_blocks(0), 1u);
  std::size_t free, total;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total, 8 * GiB);
  EXPECT_EQ(free, 8 * GiB - 1024);
  EXPECT_EQ(cudaFree(address), cudaSuccess);
  EXPECT_EQ(sim_used(0), 0u);
  EXPECT_EQ(sim_peak(0), 1024u);
}

TEST_F(Sim, BeyondTheCapacityIsOutOfMemory) {
  sim_set_capacity(0, 10 * MiB);
  void* first = get(6 * MiB);
  void* address = nullptr;
  EXPECT_EQ(cudaMalloc(&address, 4 * MiB + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(address, nullptr);
  EXPECT_STREQ(cudaGetErrorString(cudaPeekAtLastError()), "out of memory");
  EXPECT_STREQ(cudaGetErrorName(cudaGetLastError()), "cudaErrorMemoryAllocation");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "it is cleared when asked for";
  EXPECT_EQ(cudaMalloc(&address, SIZE_MAX), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&address, 4 * MiB), cudaSuccess);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
}

TEST_F(Sim, FreeRefusesWhatItDidNotGive) {
  int local;
  char* address = static_cast<char*>(get(4096));
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cudaFree(&local), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(address + 512), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(address), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(address), cudaSuccess);
  EXPECT_EQ(cudaFree(address), cudaErrorInvalidValue) << "twice";
}

TEST_F(Sim, ErrorsAndDevicesArePerThread) {
  sim_set_devices(2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  std::thread([] {
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
    get(512);
  }).join();
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(sim_used(0), 0u);
  EXPECT_EQ(sim_used(1), 512u);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(sim_used(1), 512u) << "another device's memory stays";
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(sim_used(1), 0u);
  sim_set_devices(0);
  EXPECT_EQ(cudaGetDeviceCount(&device), cudaErrorNoDevice);
  EXPECT_EQ(device, 0);
}

TEST_F(Sim, EveryKindOfDeviceMemoryCounts) {
  void* pitched;
  std::size_t pitch;
  EXPECT_EQ(cudaMallocPitch(&pitched, &pitch, 100, 10), cudaSuccess);
  EXPECT_EQ(pitch, 512u);
  cudaPitchedPtr cube;
  EXPECT_EQ(cudaMalloc3D(&cube, {100, 10, 2}), cudaSuccess);
  EXPECT_EQ(cube.pitch, 512u);
  EXPECT_EQ(sim_used(0), 5120u + 10240u);
  const cudaChannelFormatDesc floats = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
  cudaArray_t array, volume;
  cudaMipmappedArray_t mipmapped;
  EXPECT_EQ(cudaMallocArray(&array, &floats, 64, 64), cudaSuccess);
  EXPECT_EQ(cudaMalloc3DArray(&volume, &floats, {64, 64, 2}), cudaSuccess);
  EXPECT_EQ(cudaMallocMipmappedArray(&mipmapped, &floats, {64, 64, 0}, 2), cudaSuccess);
  EXPECT_EQ(sim_used(0), 15360u + 16384u + 32768u + 16384u + 4096u);
  EXPECT_EQ(cudaFree(array), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeArray(array), cudaSuccess);
  EXPECT_EQ(cudaFreeArray(volume), cudaSuccess);
  EXPECT_EQ(cudaFreeMipmappedArray(mipmapped), cudaSuccess);
  EXPECT_EQ(cudaFree(pitched), cudaSuccess);
  EXPECT_EQ(cudaFree(cube.ptr), cudaSuccess);
  EXPECT_EQ(sim_used(0), 0u);
}

TEST_F(Sim, ManagedAndHostMemoryIsApartAndWithoutLimit) {
  sim_set_capacity(0, MiB);
  void *managed, *host, *other;
  EXPECT_EQ(cudaMallocManaged(&managed, 4 * MiB), cudaSuccess);
  EXPECT_EQ(cudaMallocHost(&host, 2 * MiB), cudaSuccess);
  EXPECT_EQ(cudaHostAlloc(&other, MiB, cudaHostAllocMapped), cudaSuccess);
  std::vector<char> mine(100);
  EXPECT_EQ(cudaHostRegister(mine.data(), mine.size(), 0), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(mine.data() + 50, 10, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(sim_used(0), 0u);
  EXPECT_EQ(sim_managed(0), 4 * MiB);
  EXPECT_EQ(sim_pinned(), 3 * MiB);
  EXPECT_EQ(sim_registered(), 100u);
  EXPECT_EQ(cudaHostUnregister(mine.data()), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(mine.data()), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
  EXPECT_EQ(cudaFree(host), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(other), cudaSuccess);
  EXPECT_EQ(sim_managed(0) + sim_pinned() + sim_registered(), 0u);
}

TEST_F(Sim, PointersAreKnownByWhatTheyAre) {
  int local;
  char* device = static_cast<char*>(get(MiB));
  void* host;
  EXPECT_EQ(cudaMallocHost(&host, 10), cudaSuccess);
  cudaPointerAttributes attributes;
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, device + 1000), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.devicePointer, device + 1000);
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, host), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, &local), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST_F(Sim, PoolsCountWhatTheyGive) {
  cudaMemPool_t normal, mine;
  EXPECT_EQ(cudaDeviceGetDefaultMemPool(&normal, 0), cudaSuccess);
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  properties.maxSize = MiB;
  EXPECT_EQ(cudaMemPoolCreate(&mine, &properties), cudaSuccess);
  void *first, *second, *third;
  EXPECT_EQ(cudaMallocAsync(&first, 1024, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMallocFromPoolAsync(&second, 2048, mine, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMallocFromPoolAsync(&third, MiB, mine, nullptr), cudaErrorMemoryAllocation);
  cuuint64_t used;
  EXPECT_EQ(cudaMemPoolGetAttribute(normal, cudaMemPoolAttrUsedMemCurrent, &used), cudaSuccess);
  EXPECT_EQ(used, 1024u);
  EXPECT_EQ(cudaMemPoolGetAttribute(mine, cudaMemPoolAttrUsedMemHigh, &used), cudaSuccess);
  EXPECT_EQ(used, 2048u);
  EXPECT_EQ(sim_used(0), 3072u);
  EXPECT_EQ(cudaMemPoolDestroy(mine), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(second, nullptr), cudaSuccess) << "a block outlives its pool";
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(sim_used(0), 0u);
}

TEST_F(Sim, ATwinCountsUnderBothNames) {
  void* address;
  EXPECT_EQ(cudaMallocAsync(&address, 512, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMallocAsync_ptsz(&address, 512, nullptr), cudaSuccess);
  EXPECT_EQ(sim_calls("cudaMallocAsync_ptsz"), 1u);
  EXPECT_EQ(sim_calls("cudaMallocAsync"), 2u);
}

TEST_F(Sim, StreamsAndEvents) {
  cudaStream_t stream;
  cudaEvent_t start, end, untimed;
  EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -100), cudaSuccess);
  int priority;
  EXPECT_EQ(cudaStreamGetPriority(stream, &priority), cudaSuccess);
  EXPECT_EQ(priority, -5);
  EXPECT_EQ(cudaEventCreate(&start), cudaSuccess);
  EXPECT_EQ(cudaEventCreate(&end), cudaSuccess);
  EXPECT_EQ(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming), cudaSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle) << "not recorded yet";
  for (cudaEvent_t event : {start, end, untimed}) EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, untimed), cudaErrorInvalidResourceHandle);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  EXPECT_EQ(cudaStreamGetCaptureInfo(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  int seen = 0;
  EXPECT_EQ(cudaLaunchHostFunc(stream, [](void* data) { ++*static_cast<int*>(data); }, &seen), cudaSuccess);
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamSynchronize(cudaStreamPerThread), cudaSuccess);
}

TEST_F(Sim, FailsWhenTold) {
  sim_fail("cudaMalloc", 2, 2, cudaErrorMemoryAllocation);
  void* address;
  std::vector<cudaError_t> results;
  for (int i = 0; i < 4; ++i) results.push_back(cudaMalloc(&address, 512));
  EXPECT_EQ(results, (std::vector<cudaError_t>{cudaSuccess, cudaErrorMemoryAllocation, cudaErrorMemoryAllocation, cudaSuccess}));
  EXPECT_EQ(sim_calls("cudaMalloc"), 4u);
  EXPECT_EQ(sim_live_blocks(0), 2u);
  sim_fail("cudaFree", 1, -1, cudaErrorLaunchFailure);
  EXPECT_EQ(cudaFree(address), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaFree(address), cudaErrorLaunchFailure);
  sim_fail("cudaFree", 1, -1, 0);
  EXPECT_EQ(cudaFree(address), cudaSuccess);
}

TEST_F(Sim, AFreedAddressIsReusedBeforeTheFreeReturns) {
  void* address = get(4096);
  sim_delay("cudaFree", 300000);
  std::atomic<bool> returned{false};
  std::thread freer([&] {
    EXPECT_EQ(cudaFree(address), cudaSuccess);
    returned = true;
  });
  while (sim_used(0) != 0) std::this_thread::yield();
  EXPECT_EQ(get(4096), address);
  EXPECT_FALSE(returned) << "unless this machine slept for 300 ms";
  freer.join();
  sim_reuse_addresses(0);
  sim_delay("cudaFree", 0);
  EXPECT_EQ(cudaFree(address), cudaSuccess);
  EXPECT_NE(get(4096), address);
}

TEST_F(Sim, VirtualMemoryIsMappedAndCountedUntilReleasedAndUnmapped) {
  const auto create = DRIVER(cuMemCreate);
  const auto release = DRIVER(cuMemRelease);
  const auto map = DRIVER(cuMemMap);
  const auto unmap = DRIVER(cuMemUnmap);
  const auto set_access = DRIVER(cuMemSetAccess);
  const CUmemAllocationProp properties = on_device(0);
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr range;
  ASSERT_EQ(DRIVER(cuMemAddressReserve)(&range, 8 * MiB, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(sim_used(0), 0u) << "addresses cost nothing";
  CUmemGenericAllocationHandle handle;
  EXPECT_EQ(create(&handle, MiB, &properties, 0), CUDA_ERROR_INVALID_VALUE) << "below the granularity";
  ASSERT_EQ(create(&handle, 2 * MiB, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(map(range, 2 * MiB, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(map(range + 4 * MiB, 2 * MiB, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(map(range, 2 * MiB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "taken";
  EXPECT_EQ(map(range + 8 * MiB, 2 * MiB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "not reserved";
  ASSERT_EQ(set_access(range, 2 * MiB, &access, 1), CUDA_SUCCESS);
  ASSERT_EQ(set_access(range + 4 * MiB, 2 * MiB, &access, 1), CUDA_SUCCESS);
  std::memset(reinterpret_cast<void*>(range), 5, 2 * MiB);
  EXPECT_EQ(*reinterpret_cast<char*>(range + 6 * MiB - 1), 5) << "one memory under two addresses";
  cudaPointerAttributes attributes;
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, reinterpret_cast<void*>(range + 5)), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(release(handle), CUDA_SUCCESS);
  EXPECT_EQ(unmap(range, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(sim_used(0), 2 * MiB);
  EXPECT_EQ(DRIVER(cuMemAddressFree)(range, 8 * MiB), CUDA_ERROR_INVALID_VALUE) << "still mapped";
  EXPECT_EQ(unmap(range + 4 * MiB, 2 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(sim_used(0), 0u);
  EXPECT_EQ(DRIVER(cuMemAddressFree)(range, 8 * MiB), CUDA_SUCCESS);
  sim_set_capacity(0, 3 * MiB);
  EXPECT_EQ(create(&handle, 4 * MiB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the driver sets no last error";
}

TEST_F(Sim, AnExportedHandleKeepsItsMemory) {
  const CUmemAllocationProp properties = on_device(0);
  CUmemGenericAllocationHandle handle, imported;
  ASSERT_EQ(DRIVER(cuMemCreate)(&handle, 2 * MiB, &properties, 0), CUDA_SUCCESS);
  int file;
  ASSERT_EQ(DRIVER(cuMemExportToShareableHandle)(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
  void* shared = reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
  ASSERT_EQ(DRIVER(cuMemImportFromShareableHandle)(&imported, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuMemRelease)(handle), CUDA_SUCCESS);
  EXPECT_EQ(sim_used(0), 2 * MiB);
  EXPECT_EQ(DRIVER(cuMemRelease)(imported), CUDA_SUCCESS);
  EXPECT_EQ(sim_used(0), 0u);
}

TEST_F(Sim, UnknownDriverNamesAreNotFound) {
  void* function = &function;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, 0, &found), cudaSuccess);
  EXPECT_EQ(found, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(cudaGraphLaunch(nullptr, nullptr), cudaErrorNotSupported);
}

TEST_F(Sim, ACopyHasAStateOfItsOwnAndReadsTheEnvironmentWhenLoaded) {
  setenv("SIM_DEVICES", "2", 1);
  setenv("SIM_CAPACITY", "1:3MiB", 1);
  setenv("SIM_FAIL", "cudaMalloc:2:1:2", 1);
  void* other = dlopen(RENAMED, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(other, nullptr) << dlerror();
  const auto malloc = reinterpret_cast<cudaError_t (*)(void**, size_t)>(dlsym(other, "cudaMalloc"));
  const auto count = reinterpret_cast<cudaError_t (*)(int*)>(dlsym(other, "cudaGetDeviceCount"));
  const auto used = reinterpret_cast<decltype(&sim_used)>(dlsym(other, "sim_used"));
  for (const char* name : {"SIM_DEVICES", "SIM_CAPACITY", "SIM_FAIL"}) unsetenv(name);
  int devices;
  EXPECT_EQ(count(&devices), cudaSuccess);
  EXPECT_EQ(devices, 2);
  void* address;
  EXPECT_EQ(malloc(&address, 512), cudaSuccess);
  EXPECT_EQ(malloc(&address, 512), cudaErrorMemoryAllocation) << "SIM_FAIL";
  EXPECT_EQ(used(0), 512u);
  EXPECT_EQ(sim_used(0), 0u);
  EXPECT_EQ(sim_calls("cudaMalloc"), 0u);
  EXPECT_EQ(cudaFree(address), cudaErrorInvalidValue);
}

// For the thread sanitizer; and no address may be given to two threads at once.
TEST_F(Sim, ThreadsShareOneDevice) {
  sim_set_capacity(0, MiB);
  sim_fail("cudaMalloc", 100, 10, cudaErrorMemoryAllocation);
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([id] {
      for (int i = 0; i < 2000; ++i) {
        void* address;
        const std::size_t bytes = static_cast<std::size_t>(512 * (1 + i % 3));
        if ((i % 2 == 0 ? cudaMalloc(&address, bytes) : cudaMallocAsync(&address, bytes, nullptr)) != cudaSuccess) continue;
        std::memset(address, id, bytes);
        if (i % 100 == 0) std::this_thread::yield();
        EXPECT_EQ(static_cast<char*>(address)[bytes - 1], id);
        EXPECT_EQ(cudaFree(address), cudaSuccess);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sim_used(0), 0u);
  EXPECT_LE(sim_peak(0), 4 * 1536u);
  EXPECT_EQ(sim_calls("cudaMalloc"), 4000u);
}

}  // namespace
