#include "torchglue/oom/oom.h"

#include <typeinfo>
#include <utility>

namespace koila {

namespace {

// PyTorch's own (torch/csrc/Exceptions.h) and pybind11's, which need Python's headers. Neither exports the type object that would tell which.
bool is_pybinds(const std::exception& error) noexcept { return std::string_view(typeid(error).name()) == "N8pybind1117error_already_setE"; }

}  // namespace

bool is_pytorchs_python_error(const std::exception& error) noexcept { return std::string_view(typeid(error).name()) == "12python_error"; }
bool is_python_error(const std::exception& error) noexcept { return is_pytorchs_python_error(error) || is_pybinds(error); }

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

thread_local bool allocator_failed = false;

}  // namespace

const OutOfMemoryKind* out_of_memory_kind(const std::exception& error) noexcept {
  const bool evidence = std::exchange(allocator_failed, false);
  detail::KnownError known(error);
  if (is_python_error(error)) {
    known.relayed = true;
    known.text = text_of_python_error(error);
  }
  for (const OutOfMemoryKind& kind : kOutOfMemoryKinds) {
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
bool take_allocator_ran_out() noexcept { return std::exchange(allocator_failed, false); }

}  // namespace koila
