// What stages leave to later ones, in bytes. Answered by the boundary store, which lies above: region/boundary_store.cc.
#pragma once

#include <cstdint>

namespace koila {

struct BoundaryBytes {
  int64_t in_memory = 0;  // of the device
  int64_t all = 0;        // with those that lie outside, or have been let go
};
BoundaryBytes boundary_bytes(int device_number);

}  // namespace koila
