// What the transparent mode takes for out of memory: the table of koila/oom.h, errors of Python on their way through C++, and the allocator's word.
#pragma once

#include <exception>
#include <string_view>

#include "koila/oom.h"

namespace koila {

// Which it is; null when it is none. See Note [Errors that are not in the table] there.
const OutOfMemoryKind* out_of_memory_kind(const std::exception& error) noexcept;

// Whether it is one that may be rescued: a kind that is repeatable.
bool is_out_of_memory(const std::exception& error) noexcept;

// Whether it is one that Python code in the backward pass (an autograd.Function, a hook) has let through.
bool ran_out_in_python(const std::exception& error) noexcept;

// Whether it is an exception of Python's on its way through C++, and its text as Python has it. PyTorch's may have none: see Note [Operators written
// in Python].
bool is_python_error(const std::exception& error) noexcept;
bool is_pytorchs_python_error(const std::exception& error) noexcept;  // PyTorch's python_error
std::string_view text_of_python_error(const std::exception& error) noexcept;

// What such an exception is made into when koila goes on: see there.
struct RanOutInPython : c10::OutOfMemoryError {
  using c10::OutOfMemoryError::OutOfMemoryError;
};

// To be called where PyTorch's allocator has run out, on the thread that asked (its out-of-memory observer).
void allocator_ran_out() noexcept;
// Whether it has, on this thread, since somebody asked last whether an error is out of memory. Asked again: no.
bool take_allocator_ran_out() noexcept;

}  // namespace koila
