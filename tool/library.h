// libkoila.so, and the adapters beside it.
#ifndef KOILA_TOOL_LIBRARY_H_
#define KOILA_TOOL_LIBRARY_H_

#include <string>
#include <vector>

#include "runtime/adapters.h"

namespace koila::tool {

struct Library {
  std::string path;  // of libkoila.so, from the root; "" when it was not found
  std::vector<Adapter> adapters;
  std::vector<std::string> looked_in;

  // What keeps the loader from taking it; "" when nothing does.
  std::string problem() const;
};

// `asked`: the library, or its folder; "": looked for from the command's own place, in the build folder, where it is installed and in a Python
// package.
Library find_library(const std::string& asked);

// The same from a given folder of the command.
Library find_library_from(const std::string& folder);

// `library` in front of what LD_PRELOAD holds, in place of any other library of its name.
std::string preload_with(const std::string& library, const std::string& before);

}  // namespace koila::tool

#endif  // KOILA_TOOL_LIBRARY_H_
