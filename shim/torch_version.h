// Which torch a process runs, read without its headers and without Python.
#ifndef KOILA_SHIM_TORCH_VERSION_H_
#define KOILA_SHIM_TORCH_VERSION_H_

#include <string>

namespace koila::shim {

// Such as "2.13.0+cpu": from `version.py` of the torch package around the loaded libraries, else from `build-version` of a LibTorch
// distribution; "" when neither is there.
std::string torch_version();

// The first line of the file beside the adapter that says which torch it was built for; "" when it cannot be read.
std::string built_for(const std::string& path);

// Whether both have the same ABI: equal up to the local part ("+cpu"). An unknown version is like no other.
bool same_torch(const std::string& a, const std::string& b);

// `__version__ = '...'` of a torch/version.py.
std::string parse_version_py(const std::string& text);

}  // namespace koila::shim

#endif  // KOILA_SHIM_TORCH_VERSION_H_
