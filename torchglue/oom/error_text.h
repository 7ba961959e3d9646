// What an error says, without the backtrace that c10 would look up the symbols for: some milliseconds each time.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace koila {

inline std::string error_text(const std::exception& error) {
  const auto* own = dynamic_cast<const c10::Error*>(&error);
  return own != nullptr ? own->what_without_backtrace() : error.what();
}

}  // namespace koila
