// A library, or the program, as the loader lists it.
#ifndef KOILA_SHIM_LOADED_OBJECT_H_
#define KOILA_SHIM_LOADED_OBJECT_H_

#include <link.h>

#include <cstdint>

namespace koila::shim {

// Whether the address is within what is loaded of it.
inline bool holds(const dl_phdr_info& object, const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& header = object.dlpi_phdr[i];
    const auto begin = object.dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD && at >= begin && at < begin + header.p_memsz) return true;
  }
  return false;
}

}  // namespace koila::shim

#endif  // KOILA_SHIM_LOADED_OBJECT_H_
