#include "torchglue/rescue/oom.h"

#include <c10/util/Exception.h>

#include <string_view>

namespace koila {

bool is_out_of_memory(const std::exception& error) noexcept {
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
