// The torch that a program will meet: of a Python, which is asked without importing torch, or of what a C++ program is linked with.
#ifndef KOILA_TOOL_PYTHON_H_
#define KOILA_TOOL_PYTHON_H_

#include <string>

#include "tool/elf_file.h"
#include "tool/program.h"

namespace koila::tool {

struct TorchFacts {
  bool asked = false;       // whether it could be told at all: a Python that answered, or an ELF file that was read
  std::string python;       // "3.11.7"; "" for a program that is no Python
  std::string folder;       // of the package, or of the LibTorch distribution; "" when there is no torch
  std::string version;      // "2.13.0+cpu"; "" when there is no torch, or it does not say
  std::string cuda;         // the CUDA that it was built for, such as "13.0"; "" for a build without, and when it cannot be told
  std::string rocm;         // the same of AMD's
};

// Runs the program's Python for an instant (`find_spec("torch")`); of other programs it reads the files. No torch is loaded by it.
TorchFacts find_torch(const Program& program);

// What is in a torch package's folder, or in that of a LibTorch distribution.
TorchFacts torch_in(const std::string& folder);

// Where the loader would find a library that the file is linked with: along its run path, LD_LIBRARY_PATH and the system's folders; "" when
// nowhere there.
std::string find_needed(const std::string& path, const ElfFacts& facts, const std::string& library);

}  // namespace koila::tool

#endif  // KOILA_TOOL_PYTHON_H_
