// What counts as out of memory: by type and error code first, by text last. One table, one place.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <span>
#include <string_view>

namespace koila {

// One way of PyTorch's to say that memory ran out.
struct OutOfMemoryKind {
  enum class Type : std::uint8_t {
    kOutOfMemory,  // c10::OutOfMemoryError, whatever it says
    kAccelerator,  // c10::AcceleratorError with `code`
    kDistributed,  // c10::DistBackendError that says it
    kAny,          // any other c10::Error, or a Python error on its way through C++, that says it
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
  // The same error has other causes: it counts only when PyTorch's allocator ran out on this thread since an error was last judged.
  bool needs_evidence = false;
};

std::span<const OutOfMemoryKind> out_of_memory_kinds() noexcept;

// Which it is; null when it is none. See Note [Errors that are not in the table].
const OutOfMemoryKind* out_of_memory_kind(const std::exception& error) noexcept;

// Whether it is one that may be rescued: a kind that is repeatable.
bool is_out_of_memory(const std::exception& error) noexcept;

// Whether it is one that Python code in the backward pass (an autograd.Function, a hook) has let through.
bool ran_out_in_python(const std::exception& error) noexcept;

// Whether it is an exception of Python's on its way through C++, and its text as Python has it. PyTorch's may have none: see Note [Operators written
// in Python].
bool is_python_error(const std::exception& error) noexcept;
std::string_view text_of_python_error(const std::exception& error) noexcept;

// What such an exception is made into when koila goes on: see there.
struct RanOutInPython : c10::OutOfMemoryError {
  using c10::OutOfMemoryError::OutOfMemoryError;
};

// To be called where PyTorch's allocator has run out, on the thread that asked (its out-of-memory observer).
void allocator_ran_out() noexcept;

}  // namespace koila
