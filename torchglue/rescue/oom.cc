#include "torchglue/rescue/oom.h"

#include <c10/util/Exception.h>

#include <new>
#include <typeinfo>
#include <utility>

namespace koila {

namespace {

// PyTorch's own (torch/csrc/Exceptions.h) and pybind11's, which need Python's headers. Neither exports the type object that would tell which.
bool is_pytorchs(const std::exception& error) noexcept { return std::string_view(typeid(error).name()) == "12python_error"; }
bool is_pybinds(const std::exception& error) noexcept { return std::string_view(typeid(error).name()) == "N8pybind1117error_already_setE"; }

}  // namespace

bool is_python_error(const std::exception& error) noexcept { return is_pytorchs(error) || is_pybinds(error); }

// pybind11 puts the class in front of the text, and behind it the places that the error came through. A program that raises an error of its own
// in the table's very words is taken at them.
std::string_view text_of_python_error(const std::exception& error) noexcept {
  std::string_view text = error.what();
  if (!is_pybinds(error)) return text;
  const std::size_t colon = text.find(": ");
  if (colon != std::string_view::npos && text.find(' ') == colon + 1) text.remove_prefix(colon + 2);
  return text.substr(0, text.find("\n\nAt:\n"));
}

namespace {

using Type = OutOfMemoryKind::Type;

constexpr std::int32_t kCudaErrorMemoryAllocation = 2;

// The texts are those of PyTorch 2.11 to 2.13: of its macros (ATen/cuda/Exceptions.h, c10/cuda/CUDAException.cpp, c10d/NCCLUtils.hpp,
// CuFFTUtils.h, alloc_cpu.cpp), with what the libraries' own functions call the error.
constexpr OutOfMemoryKind kKinds[] = {
    {"an allocator's error", Type::kOutOfMemory},
    {"CUDA's error code", Type::kAccelerator, {}, {}, kCudaErrorMemoryAllocation},
    {"NCCL", Type::kDistributed, "NCCL error in: ", "'out of memory'", 0, /*repeatable=*/false},
    {"CUDA, out of memory in Python", Type::kAny, "CUDA out of memory. Tried to allocate"},
    {"CPU, out of memory in Python", Type::kAny, "CPU out of memory. Tried to allocate"},
    {"CUDA's error by text", Type::kAny, "CUDA error: out of memory"},
    {"CUDA's driver", Type::kAny, "CUDA driver error: out of memory"},
    {"cuBLAS", Type::kAny, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"},
    {"cuSPARSE", Type::kAny, "CUDA error: ", "allocation failed when calling `cusparse"},
    {"cuSOLVER", Type::kAny, "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling"},
    {"cuDSS", Type::kAny, "cudss error: CUDSS_STATUS_ALLOC_FAILED, when calling"},
    {"cuFFT", Type::kAny, "cuFFT error: CUFFT_ALLOC_FAILED"},
    {"cuDNN", Type::kAny, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"},
    {"cuDNN, device memory", Type::kAny, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"},
    {"cuDNN, host memory", Type::kAny, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"},
    {"cuDNN, heuristic's engines", Type::kAny, "GET was unable to find an engine to execute this computation", {}, 0, true, /*needs_evidence=*/true},
    {"cuDNN, benchmarked engines", Type::kAny, "FIND was unable to find an engine to execute this computation", {}, 0, true, /*needs_evidence=*/true},
    {"PyTorch's CPU allocator", Type::kEnforce, "DefaultCPUAllocator: can't allocate memory"},
    {"PyTorch's CPU allocator", Type::kEnforce, "DefaultCPUAllocator: not enough memory"},
    {"C++'s allocator", Type::kBadAlloc},
};

// Note [Errors that are not in the table]
// Some errors hide an out-of-memory now and then, and something else more often; running on after the something else could not be the plain
// program's behaviour any more:
// - CUBLAS_STATUS_NOT_INITIALIZED, CUDNN_STATUS_NOT_INITIALIZED, CUSOLVER_STATUS_INTERNAL_ERROR when a handle is made, CUFFT_INTERNAL_ERROR: the
//   first sign of a failed device-side assertion too, which is sticky: every CUDA call from there on fails.
// - cuSPARSE's "insufficient resources": an algorithm's limit, which memory does not move.
// - ncclSystemError: a socket or a peer, and malloc last.
// - An illegal memory access, or another sticky error, whatever memory there is.
// cuDNN's search for an engine passes over those whose workspace the allocator has no room for, and at the end says that it found none: the
// same text as where no engine exists. There the allocator's own word is what tells.

thread_local bool allocator_failed = false;

// What is known of an error before the table is asked.
struct Known {
  explicit Known(const std::exception& error)
      : python(is_python_error(error)), c10(dynamic_cast<const c10::Error*>(&error)), text(c10 != nullptr ? c10->what_without_backtrace() : python ? text_of_python_error(error) : error.what()) {
    out_of_memory = dynamic_cast<const c10::OutOfMemoryError*>(c10) != nullptr;
    distributed = dynamic_cast<const c10::DistBackendError*>(c10) != nullptr;
    accelerator = dynamic_cast<const c10::AcceleratorError*>(c10);
    bad_alloc = dynamic_cast<const std::bad_alloc*>(&error) != nullptr && dynamic_cast<const std::bad_array_new_length*>(&error) == nullptr;
  }

  bool is(const OutOfMemoryKind& kind) const {
    switch (kind.type) {
      case Type::kOutOfMemory: return out_of_memory;
      case Type::kAccelerator: return accelerator != nullptr && accelerator->get_error_code() == kind.code && text.starts_with("CUDA error: ");
      case Type::kDistributed: return distributed && says(kind);
      // An error code is believed over the text that it comes with.
      case Type::kAny: return (python || (c10 != nullptr && accelerator == nullptr && !distributed)) && says(kind);
      case Type::kEnforce: return (python || c10 != nullptr) && text.find(kind.text) != std::string_view::npos;
      case Type::kBadAlloc: return bad_alloc;
    }
    return false;
  }

  bool says(const OutOfMemoryKind& kind) const { return text.starts_with(kind.text) && text.find(kind.detail) != std::string_view::npos; }

  bool python = false, out_of_memory = false, distributed = false, bad_alloc = false;
  const c10::Error* c10 = nullptr;
  const c10::AcceleratorError* accelerator = nullptr;
  std::string_view text;
};

}  // namespace

std::span<const OutOfMemoryKind> out_of_memory_kinds() noexcept { return kKinds; }

const OutOfMemoryKind* out_of_memory_kind(const std::exception& error) noexcept {
  const bool evidence = std::exchange(allocator_failed, false);
  const Known known(error);
  for (const OutOfMemoryKind& kind : kKinds) {
    if (known.is(kind)) return !kind.needs_evidence || evidence ? &kind : nullptr;
  }
  return nullptr;
}

bool is_out_of_memory(const std::exception& error) noexcept {
  const OutOfMemoryKind* kind = out_of_memory_kind(error);
  return kind != nullptr && kind->repeatable;
}

bool ran_out_in_python(const std::exception& error) noexcept {
  return dynamic_cast<const RanOutInPython*>(&error) != nullptr || (is_python_error(error) && is_out_of_memory(error));
}

void allocator_ran_out() noexcept { allocator_failed = true; }

}  // namespace koila
