// What an ELF file says of itself. Files may be anything: what does not add up is as if it were not there.
#ifndef KOILA_TOOL_ELF_FILE_H_
#define KOILA_TOOL_ELF_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace koila::tool {

struct ElfFacts {
  int bits = 64;
  int machine = 0;            // EM_X86_64 ...
  std::string loader;         // of a program: "/lib64/ld-linux-x86-64.so.2"; "" for a static one, and for libraries
  bool is_dynamic = false;    // has a dynamic section, as every program has that a preload can reach
  std::vector<std::string> needed;
  std::vector<std::string> run_path;  // with $ORIGIN as written
  // Only where all is 64 bits in this machine's byte order: for others the above stops at `machine`.
};

// Nothing when it is no ELF file, or cannot be read.
std::optional<ElfFacts> read_elf(const std::string& path);

// Whether the file defines one of these functions: among its dynamic symbols, and with `hidden` among those that the linker leaves for
// debuggers too.
bool defines_any(const std::string& path, const std::vector<std::string>& names, bool hidden);

// Whether these bytes are anywhere in the file.
bool contains(const std::string& path, const std::string& bytes);

}  // namespace koila::tool

#endif  // KOILA_TOOL_ELF_FILE_H_
