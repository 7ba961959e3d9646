// Which torch this process runs.
#ifndef KOILA_SHIM_TORCH_VERSION_H_
#define KOILA_SHIM_TORCH_VERSION_H_

#include <string>

namespace koila::shim {

// Such as "2.13.0+cpu", of the package or distribution around the loaded libraries; "" when it cannot be told.
std::string torch_version();

}  // namespace koila::shim

#endif  // KOILA_SHIM_TORCH_VERSION_H_
