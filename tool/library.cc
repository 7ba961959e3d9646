#include "tool/library.h"

#include <glob.h>
#include <sys/statvfs.h>

#include "runtime/surroundings.h"
#include "tool/elf_file.h"
#include "tool/files.h"

namespace koila::tool {
namespace {

constexpr const char* kName = "/libkoila.so";

Library library_at(const std::string& path) {
  Library library;
  library.path = absolute_path(path);
  library.looked_in = {folder_of(library.path)};
  library.adapters = adapters_in(folder_of(library.path));
  return library;
}

}  // namespace

std::string Library::problem() const {
  if (path.empty()) return "libkoila.so was not found in " + join(looked_in, ", ");
  // The loader takes both for the end of a name, and knows no quoting.
  if (path.find_first_of(" :") != std::string::npos) return path + " has a space or a colon in its name, where LD_PRELOAD ends a name";
  const auto facts = read_elf(path);
  if (!facts) return path + " is not a library, or cannot be read";
  struct statvfs mounted;
  if (statvfs(path.c_str(), &mounted) == 0 && (mounted.f_flag & ST_NOEXEC) != 0) return path + " is on a file system that is mounted noexec";
  return "";
}

Library find_library(const std::string& asked) {
  if (asked.empty()) return find_library_from(folder_of(real_path("/proc/self/exe")));
  if (is_folder(asked)) {
    if (is_file(asked + kName)) return library_at(asked + kName);
  } else if (is_file(asked)) {
    return library_at(asked);
  }
  Library library;
  library.looked_in = {asked};
  return library;
}

Library find_library_from(const std::string& folder) {
  Library library;
  // Installed: as the build was told. Built: tool/ beside lib/. Moved: bin/ beside lib/, which Debian divides by architecture. A Python package:
  // all in one folder, or the command in the environment's bin/.
  for (const std::string place : {"", "/" KOILA_LIB_FROM_TOOL, "/lib", "/../lib", "/../lib/*-linux-gnu", "/../lib64", "/..",
                                   "/../lib/python3*/site-packages/koila", "/../lib/python3*/site-packages/koila/lib", "/../lib/python3*/dist-packages/koila"}) {
    glob_t found = {};
    if (glob((folder + place + kName).c_str(), 0, nullptr, &found) == 0) library = library_at(real_path(found.gl_pathv[0]));
    globfree(&found);
    if (!library.path.empty()) return library;
  }
  library.looked_in = {folder, folder_of(folder) + "/lib"};
  return library;
}

std::string preload_with(const std::string& library, const std::string& before) {
  std::string value = library;
  for (const std::string& entry : split(before, " :"))
    if (name_of(entry) != name_of(library)) value += ":" + entry;
  return value;
}

}  // namespace koila::tool
