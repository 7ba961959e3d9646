// Errors of Python code that operators and backward passes call: kernels of torch.library, autograd.Functions.
//
// Note [Operators written in Python]
// What a kernel raises comes through C++ as an exception that holds the error, or as one that says no more than that the error is the thread's pending
// one in Python, or as both. Whoever catches it and goes on must take the pending error too, or some later call of Python's ends with it. And of memory
// that ran out only the text is kept: the frames of its traceback would keep the kernel's tensors alive.
#pragma once

#include <exception>

namespace koila {

// The error is not handed on: what Python still holds of it goes. Other errors than Python's are left alone.
void forget_python_error(const std::exception& error) noexcept;

// Whether it is one that wants the program to end, KeyboardInterrupt or SystemExit, and not a kernel's word on its arguments.
bool is_python_interrupt(const std::exception& error) noexcept;

// Throws RanOutInPython, with the same text, for memory that ran out in Python code; returns with everything as it was otherwise. To be called in a
// handler.
void throw_if_ran_out_in_python(const std::exception& error);

// Whether it says that memory ran out, or the thread's pending error in Python does. Everything stays as it was.
bool says_out_of_memory(const std::exception& error);

// Whether it was raised by torch.utils.checkpoint itself, and not by the function that it ran, nor for want of memory: what it makes again is not what it was, or may be made once only (selective
// activation checkpointing, `debug=True`).
bool is_checkpoints_own(const std::exception& error) noexcept;

// The exception being handled, to be kept for when nothing helps, as it was or, where memory ran out in Python code, made anew without a traceback.
std::exception_ptr kept_exception(const std::exception& error);

// Calls an operator's kernel, which may be written in Python.
template <class F>
void call_kernel(F&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    throw_if_ran_out_in_python(error);
    throw;
  }
}

}  // namespace koila
