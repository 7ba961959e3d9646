// What a library is called where the report names it.
#ifndef KOILA_SHIM_LIBRARY_NAME_H_
#define KOILA_SHIM_LIBRARY_NAME_H_

#include <algorithm>
#include <string>

namespace koila::shim {

// "c10_cuda" of ".../libc10_cuda.so", "cublas" of ".../libcublas-3b81d170.so.12"; "" when there is no path.
inline std::string library_name(const char* path) {
  std::string name = path != nullptr ? path : "";
  name.erase(0, name.rfind('/') + 1);
  name.resize(std::min(name.find(".so"), name.size()));
  if (name.starts_with("lib")) name.erase(0, 3);
  // A hash that a packager put behind the name: eight hexadecimal digits.
  if (name.size() > 9 && name[name.size() - 9] == '-' && name.find_first_not_of("0123456789abcdef", name.size() - 8) == std::string::npos) {
    name.resize(name.size() - 9);
  }
  return name;
}

}  // namespace koila::shim

#endif  // KOILA_SHIM_LIBRARY_NAME_H_
