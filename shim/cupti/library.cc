#include "shim/cupti/library.h"

#include <dlfcn.h>

namespace koila::cupti {

namespace {

constexpr const char* kNames[] = {"libcupti.so.13", "libcupti.so.12"};

void* open_library() {
  for (const int how : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* name : kNames) {
      if (void* handle = dlopen(name, how)) return handle;
    }
  }
  return nullptr;
}

}  // namespace

std::string Library::text_of(Result result) const {
  const char* text = nullptr;
  if (cuptiGetResultString(result, &text) != kSuccess || text == nullptr) return "CUPTI's error " + std::to_string(result);
  return text;
}

bool load(Library& library, std::string& why) {
  void* handle = open_library();
  if (handle == nullptr) {
    why = "there is no libcupti.so.13 or libcupti.so.12 on the loader's path (it comes with CUDA's toolkit, or with pip's nvidia-cuda-cupti)";
    return false;
  }
  const char* missing = nullptr;
#define KOILA_CUPTI_FUNCTION(name, parameters)                                   \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(handle, #name)); \
  if (library.name == nullptr) missing = #name;
  KOILA_CUPTI_FUNCTIONS
  const char* needed = missing;
  KOILA_CUPTI_OPTIONAL_FUNCTIONS
#undef KOILA_CUPTI_FUNCTION
  if (needed == nullptr) return true;
  why = std::string("the CUPTI that was found has no ") + needed;
  return false;
}

}  // namespace koila::cupti
