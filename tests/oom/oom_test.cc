#include "torchglue/oom/oom.h"

#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

// PyTorch's own is in torch/csrc/Exceptions.h, which needs Python; the type is known by its name, and the text by what().
struct python_error : std::exception {
  explicit python_error(std::string text) : message(std::move(text)) {}
  const char* what() const noexcept override { return message.c_str(); }
  std::string message;
};

namespace koila {
namespace {

const c10::SourceLocation kHere{"function", "file.cpp", 1};

// What CUDA_CHECK adds behind an error's text, in 2.13.
constexpr const char* kHelp =
    "\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n";

c10::Error plain(const std::string& text) { return c10::Error(kHere, text); }
c10::AcceleratorError cuda(int code, const std::string& text) { return c10::AcceleratorError(kHere, code, "CUDA error: " + text + kHelp); }
c10::DistBackendError nccl(const std::string& error, const std::string& last) {
  return c10::DistBackendError(kHere, "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, " + error +
                                          ", NCCL version 2.27.5\n" + last);
}

TEST(OutOfMemory, IsTheAllocatorsErrorWhateverItSays) {
  EXPECT_TRUE(is_out_of_memory(c10::OutOfMemoryError(kHere, "anything")));
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
}

TEST(OutOfMemory, IsCudasErrorCodeAndNotItsText) {
  EXPECT_TRUE(is_out_of_memory(cuda(2, "out of memory")));
  const std::pair<int, const char*> others[] = {{1, "invalid argument"},
                                                {46, "CUDA-capable device(s) is/are busy or unavailable"},
                                                {700, "an illegal memory access was encountered"},
                                                {701, "too many resources requested for launch"},
                                                {710, "device-side assert triggered"},
                                                {719, "unspecified launch failure"}};
  for (const auto& [code, text] : others) EXPECT_FALSE(is_out_of_memory(cuda(code, text))) << text;
  EXPECT_FALSE(is_out_of_memory(cuda(700, "out of memory")));  // sticky: nothing can be run again
}

TEST(OutOfMemory, IsWhatTheLibrariesSay) {
  const char* texts[] = {
      "CUDA error: out of memory",
      "CUDA driver error: out of memory",
      "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
      "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)`",
      "CUDA error: resource allocation failed when calling `cusparseCreate(handle)`",
      "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`. If you keep seeing this error, you may use ",
      "cudss error: CUDSS_STATUS_ALLOC_FAILED, when calling `cudssExecute(handle)`. ",
      "cuFFT error: CUFFT_ALLOC_FAILED",
      "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
      "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
      "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
      "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12 "
      "(Cannot allocate memory)",
  };
  for (const char* text : texts) {
    EXPECT_TRUE(is_out_of_memory(plain(text))) << text;
    EXPECT_TRUE(is_out_of_memory(python_error(text))) << text;
    EXPECT_FALSE(is_out_of_memory(std::runtime_error(text))) << text;  // no error of PyTorch's
  }
}

TEST(OutOfMemory, IsNotWhatOftenIsSomethingElse) {
  const char* texts[] = {
      "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
      "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle)`",
      "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul()`",
      "CUDA error: initialization error when calling `cusparseCreate(handle)`",
      "CUDA error: insufficient resources when calling `cusparseSpGEMM_workEstimation( handle)`",
      "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`. ",
      "cuFFT error: CUFFT_INTERNAL_ERROR",
      "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
      "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
      "CUDA driver error: invalid argument",
      "the table has no row 'CUDA error: out of memory'",
      "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)",
      "",
  };
  for (const char* text : texts) {
    EXPECT_FALSE(is_out_of_memory(plain(text))) << text;
    EXPECT_FALSE(is_out_of_memory(python_error(text))) << text;
  }
  EXPECT_FALSE(is_out_of_memory(std::bad_array_new_length()));  // a size that is absurd
  EXPECT_FALSE(is_out_of_memory(std::length_error("vector::reserve")));
}

// A search for an engine hides the allocator's error; what the allocator itself said brings it to light, once.
TEST(OutOfMemory, TakesNoEngineForItOnlyOnTheAllocatorsWord) {
  for (const char* text : {"GET was unable to find an engine to execute this computation",
                           "FIND was unable to find an engine to execute this computation after trying 3 plans."}) {
    EXPECT_FALSE(is_out_of_memory(plain(text)));
    allocator_ran_out();
    EXPECT_TRUE(is_out_of_memory(plain(text)));
    EXPECT_FALSE(is_out_of_memory(plain(text)));
    allocator_ran_out();
    EXPECT_FALSE(is_out_of_memory(plain("some other error")));
    EXPECT_FALSE(is_out_of_memory(plain(text))) << "the word was about the error before";
  }
}

// Other processes wait at the collective: known for what it is, and not to be run again.
TEST(OutOfMemory, OfNcclIsKnownAndNotRescued) {
  const auto error = nccl("unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                          "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'");
  ASSERT_NE(out_of_memory_kind(error), nullptr);
  EXPECT_EQ(out_of_memory_kind(error)->name, "NCCL");
  EXPECT_FALSE(is_out_of_memory(error));
  for (const auto& other : {nccl("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 1 'invalid argument'"),
                            nccl("unhandled system error", "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "),
                            nccl("remote process exited or there was a network error", "ncclRemoteError: A call failed possibly due to a network error.")}) {
    EXPECT_EQ(out_of_memory_kind(other), nullptr) << other.what();
  }
}

TEST(OutOfMemory, OfPythonCodeIsTheErrorsOwnText) {
  EXPECT_TRUE(ran_out_in_python(python_error("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB")));
  EXPECT_TRUE(ran_out_in_python(python_error("CPU out of memory. Tried to allocate 1.0 KiB; 3.0 KiB of the budget of 4.0 KiB (KOILA_CPU_MEMORY) are in use.")));
  EXPECT_TRUE(ran_out_in_python(python_error("Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 32 bytes")));
  EXPECT_FALSE(ran_out_in_python(python_error("my job ran out of memory")));
  EXPECT_FALSE(ran_out_in_python(python_error("step 3: CUDA out of memory. Tried to allocate 20.00 MiB")));
  EXPECT_FALSE(ran_out_in_python(c10::OutOfMemoryError(kHere, "CUDA out of memory. Tried to allocate 20.00 MiB")));
}

// The real thing, of this PyTorch.
TEST(OutOfMemory, IsWhatTheCpuAllocatorThrows) {
  try {
    c10::alloc_cpu(std::size_t{1} << 62);
    FAIL() << "four exabytes were there";
  } catch (const std::exception& error) {
    EXPECT_TRUE(is_out_of_memory(error)) << error.what();
    EXPECT_EQ(dynamic_cast<const c10::OutOfMemoryError*>(&error), nullptr) << "the text entry is not what was tried";
  }
}

// An entry that another one stands in front of would never be found.
TEST(OutOfMemory, EntriesDoNotShadowOneAnother) {
  const auto& kinds = kOutOfMemoryKinds;
  for (std::size_t i = 0; i < std::size(kinds); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (kinds[i].type != kinds[j].type || kinds[i].text.empty()) continue;
      EXPECT_FALSE(kinds[i].text.starts_with(kinds[j].text) && kinds[j].detail.empty()) << kinds[i].name << " behind " << kinds[j].name;
    }
  }
}

}  // namespace
}  // namespace koila
