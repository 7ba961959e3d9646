// The NVIDIA GPUs of this machine, by the driver's files: CUDA is not started.
#ifndef KOILA_TOOL_GPU_H_
#define KOILA_TOOL_GPU_H_

#include <string>
#include <vector>

namespace koila::tool {

struct GpuFacts {
  std::vector<std::string> models;  // one for each GPU; "GPU" where only its device file can be seen
  std::string driver;               // the kernel module's version; "" when there is none
  bool has_libcuda = false;         // whether programs would find libcuda.so.1
};

// Reads below `root` ("" is the machine's own; tests pass a folder).
GpuFacts find_gpus(const std::string& root = "");

}  // namespace koila::tool

#endif  // KOILA_TOOL_GPU_H_
