#include "torchglue/rescue/oom.h"

#include <c10/util/Exception.h>

#include <string_view>
#include <typeinfo>

namespace koila {

namespace {

// An exception of Python's on its way through C++ (torch/csrc/Exceptions.h, which needs Python's headers). PyTorch does not export the type
// object that would tell which; its text is that of the allocator's error.
bool is_python_error(const std::exception& error) noexcept { return std::string_view(typeid(error).name()) == "12python_error"; }

bool says_out_of_memory(const std::exception& error) noexcept { return std::string_view(error.what()).find("out of memory. Tried to allocate") != std::string_view::npos; }

}  // namespace

bool ran_out_in_python(const std::exception& error) noexcept { return is_python_error(error) && says_out_of_memory(error); }

bool is_out_of_memory(const std::exception& error) noexcept {
  if (ran_out_in_python(error)) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::Error*>(&error) == nullptr) return false;
  // Allocators and libraries that raise a plain c10::Error.
  static constexpr std::string_view kTexts[] = {
      "DefaultCPUAllocator: can't allocate memory",
      "DefaultCPUAllocator: not enough memory",
  };
  const std::string_view text = error.what();
  for (std::string_view known : kTexts) {
    if (text.find(known) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace koila
