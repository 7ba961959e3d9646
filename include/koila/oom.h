// What counts as out of memory in a PyTorch program: by type and error code first, by text last. One table, one place, for the transparent mode
// and for programs that handle it themselves.
//
//     try { train_step(); } catch (const std::exception& error) { if (!koila::ran_out_of_memory(error)) throw; }
//
// C++17; needs c10's headers (of torch 2.11 or newer) and nothing of koila's libraries. Thread-safe: nothing here has a state.
#ifndef KOILA_OOM_H_
#define KOILA_OOM_H_

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <new>
#include <string_view>

namespace koila {

// One way of PyTorch's to say that memory ran out.
struct OutOfMemoryKind {
  enum class Type : std::uint8_t {
    kOutOfMemory,  // c10::OutOfMemoryError, whatever it says
    kAccelerator,  // c10::AcceleratorError with `code`
    kDistributed,  // c10::DistBackendError that says it
    kAny,          // any other c10::Error, or an error that came through Python or TorchScript, that says it
    kEnforce,      // a c10::Error with `text` in it: CAFFE_ENFORCE puts a place in front
    kBadAlloc,     // std::bad_alloc
  };
  std::string_view name;
  Type type;
  std::string_view text = {};    // what the message begins with,
  std::string_view detail = {};  // and what follows somewhere
  std::int32_t code = 0;
  // What ran out may be run again once there is room. CUDA's out-of-memory is not sticky: the context goes on as if nothing had been asked.
  // Not so what other processes have a part in: they wait for this one at the collective, and its communicator is broken.
  bool repeatable = true;
  // The same error has other causes. The transparent mode takes it only when PyTorch's allocator ran out on this thread before.
  bool needs_evidence = false;
};

namespace detail {

inline constexpr std::int32_t kCudaErrorMemoryAllocation = 2;
using OomType = OutOfMemoryKind::Type;

}  // namespace detail

// The texts are those of PyTorch 2.11 to 2.13: of its macros (ATen/cuda/Exceptions.h, c10/cuda/CUDAException.cpp, c10d/NCCLUtils.hpp,
// CuFFTUtils.h, alloc_cpu.cpp), with what the libraries' own functions call the error.
inline constexpr OutOfMemoryKind kOutOfMemoryKinds[] = {
    {"an allocator's error", detail::OomType::kOutOfMemory},
    {"CUDA's error code", detail::OomType::kAccelerator, {}, {}, detail::kCudaErrorMemoryAllocation},
    {"NCCL", detail::OomType::kDistributed, "NCCL error in: ", "'out of memory'", 0, /*repeatable=*/false},
    {"CUDA, out of memory in Python", detail::OomType::kAny, "CUDA out of memory. Tried to allocate"},
    {"CUDA's own pools, out of memory in Python", detail::OomType::kAny, "Allocation on device ", "would exceed allowed memory. (out of memory)"},
    {"CPU, out of memory in Python", detail::OomType::kAny, "CPU out of memory. Tried to allocate"},
    {"CUDA's error by text", detail::OomType::kAny, "CUDA error: out of memory"},
    {"CUDA's driver", detail::OomType::kAny, "CUDA driver error: out of memory"},
    {"cuBLAS", detail::OomType::kAny, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"},
    {"cuSPARSE", detail::OomType::kAny, "CUDA error: ", "allocation failed when calling `cusparse"},
    {"cuSOLVER", detail::OomType::kAny, "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling"},
    {"cuDSS", detail::OomType::kAny, "cudss error: CUDSS_STATUS_ALLOC_FAILED, when calling"},
    {"cuFFT", detail::OomType::kAny, "cuFFT error: CUFFT_ALLOC_FAILED"},
    {"cuDNN", detail::OomType::kAny, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"},
    {"cuDNN, device memory", detail::OomType::kAny, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"},
    {"cuDNN, host memory", detail::OomType::kAny, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"},
    {"cuDNN, heuristic's engines", detail::OomType::kAny, "GET was unable to find an engine to execute this computation", {}, 0, true, /*needs_evidence=*/true},
    {"cuDNN, benchmarked engines", detail::OomType::kAny, "FIND was unable to find an engine to execute this computation", {}, 0, true, /*needs_evidence=*/true},
    {"PyTorch's CPU allocator", detail::OomType::kEnforce, "DefaultCPUAllocator: can't allocate memory"},
    {"PyTorch's CPU allocator", detail::OomType::kEnforce, "DefaultCPUAllocator: not enough memory"},
    {"C++'s allocator", detail::OomType::kBadAlloc},
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

namespace detail {

// What is known of an error before the table is asked.
struct KnownError {
  explicit KnownError(const std::exception& error)
      : c10(dynamic_cast<const c10::Error*>(&error)), text(c10 != nullptr ? c10->what_without_backtrace() : error.what()) {
    out_of_memory = dynamic_cast<const c10::OutOfMemoryError*>(c10) != nullptr;
    distributed = dynamic_cast<const c10::DistBackendError*>(c10) != nullptr;
    accelerator = dynamic_cast<const c10::AcceleratorError*>(c10);
    bad_alloc = dynamic_cast<const std::bad_alloc*>(&error) != nullptr && dynamic_cast<const std::bad_array_new_length*>(&error) == nullptr;
  }

  bool is(const OutOfMemoryKind& kind) const {
    switch (kind.type) {
      case OomType::kOutOfMemory: return out_of_memory;
      case OomType::kAccelerator: return accelerator != nullptr && accelerator->get_error_code() == kind.code && begins("CUDA error: ");
      case OomType::kDistributed: return distributed && says(kind);
      // An error code is believed over the text that it comes with.
      case OomType::kAny: return (relayed || (c10 != nullptr && accelerator == nullptr && !distributed)) && says(kind);
      case OomType::kEnforce: return (relayed || c10 != nullptr) && text.find(kind.text) != std::string_view::npos;
      case OomType::kBadAlloc: return bad_alloc;
    }
    return false;
  }

  bool says(const OutOfMemoryKind& kind) const { return begins(kind.text) && text.find(kind.detail) != std::string_view::npos; }
  bool begins(std::string_view words) const { return text.substr(0, words.size()) == words; }

  // One of PyTorch's that another language has handed on: `text` is PyTorch's, and its type is lost.
  bool relayed = false;
  bool out_of_memory = false, distributed = false, bad_alloc = false;
  const c10::Error* c10 = nullptr;
  const c10::AcceleratorError* accelerator = nullptr;
  std::string_view text;
};

// What an operator throws inside a TorchScript module (torch::jit::load) comes out as a std::runtime_error, with the script's lines in front.
inline void read_torch_script(KnownError& known) {
  constexpr std::string_view kName = "\nRuntimeError: ";
  if (known.c10 != nullptr || !known.begins("The following operation failed in the TorchScript interpreter.")) return;
  const std::size_t at = known.text.find(kName);
  if (at == std::string_view::npos) return;
  known.text.remove_prefix(at + kName.size());
  known.relayed = true;
}

}  // namespace detail

// Which it is; null when it is none.
inline const OutOfMemoryKind* kind_of_out_of_memory(const std::exception& error) {
  detail::KnownError known(error);
  detail::read_torch_script(known);
  for (const OutOfMemoryKind& kind : kOutOfMemoryKinds) {
    if (known.is(kind)) return &kind;
  }
  return nullptr;
}

// Whether it says that memory ran out, in a way after which the same may be tried again with less. An error that has other causes as well
// (OutOfMemoryKind::needs_evidence) counts: whoever asks has said that a smaller try is safe.
inline bool ran_out_of_memory(const std::exception& error) {
  const OutOfMemoryKind* kind = kind_of_out_of_memory(error);
  return kind != nullptr && kind->repeatable;
}

}  // namespace koila

#endif  // KOILA_OOM_H_
