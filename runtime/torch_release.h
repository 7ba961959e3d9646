// Which torch a folder holds, read without its headers, without Python and without loading it.
#ifndef KOILA_RUNTIME_TORCH_RELEASE_H_
#define KOILA_RUNTIME_TORCH_RELEASE_H_

#include <string>

namespace koila {

// Such as "2.13.0+cpu", from `version.py` of a torch package, else from `build-version` of a LibTorch distribution; "" when neither is there.
std::string torch_of_package(const std::string& folder);

// The first line of the file beside the adapter (libkoila_torch.version) that says which torch it was built for; "" when it cannot be read.
std::string built_for(const std::string& path);

// Whether both have the same ABI: equal up to the local part ("+cpu"). An unknown version is like no other.
bool same_torch(const std::string& a, const std::string& b);

// `name = '...'` of a torch/version.py, with or without a type; "" when there is none, or it is None.
std::string parse_version_py(const std::string& text, const std::string& name = "__version__");

}  // namespace koila

#endif  // KOILA_RUNTIME_TORCH_RELEASE_H_
