// CUPTI, as it is found when the program runs.
#ifndef KOILA_SHIM_CUPTI_LIBRARY_H_
#define KOILA_SHIM_CUPTI_LIBRARY_H_

#include <string>

#include "shim/cupti/types.h"

namespace koila::cupti {

struct Library {
#define KOILA_CUPTI_FUNCTION(name, parameters) Result(*name) parameters = nullptr;
  KOILA_CUPTI_FUNCTIONS
  KOILA_CUPTI_OPTIONAL_FUNCTIONS
#undef KOILA_CUPTI_FUNCTION

  // What CUPTI calls an error.
  std::string text_of(Result result) const;
};

// Loads the library by its soname, one that is loaded already before any other, and keeps it for good. False: there is none that will do, and
// `why` says so.
bool load(Library& library, std::string& why);

}  // namespace koila::cupti

#endif  // KOILA_SHIM_CUPTI_LIBRARY_H_
