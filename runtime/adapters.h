// The adapters for torch that lie beside libkoila.so, and which of them a process takes.
#ifndef KOILA_RUNTIME_ADAPTERS_H_
#define KOILA_RUNTIME_ADAPTERS_H_

#include <string>
#include <vector>

namespace koila {

struct Adapter {
  std::string path;       // of libkoila_torch.so
  std::string built_for;  // such as "2.13.0+cpu"; never ""
};

// Those in libkoila.so's folder: libkoila_torch.so, where it was built for the torch that is there, and torch-2.13.0/libkoila_torch.so and its like, where one
// package serves several releases. Each has its libkoila_torch.version beside it, which alone says what it is for; one without is left out. The oldest release first.
std::vector<Adapter> adapters_in(const std::string& folder);

// The adapter that was built for the running release of torch. If several were, one with the same build tag ("+cpu") is preferred. Null if there is none: an adapter never serves another release, not
// even another patch release, because torch does not promise that its ABI stays the same.
const Adapter* adapter_for(const std::vector<Adapter>& adapters, const std::string& running);

// "2.12.1, 2.13.0+cpu and 2.15.0"; "" when there are none.
std::string releases_of(const std::vector<Adapter>& adapters);

}  // namespace koila

#endif  // KOILA_RUNTIME_ADAPTERS_H_
