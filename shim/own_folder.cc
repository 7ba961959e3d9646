#include "shim/own_folder.h"

#include <dlfcn.h>
#include <limits.h>
#include <sys/stat.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace koila::shim {
namespace {

// Constant-initialised: the library's constructor may run before its C++ objects are made.
char whole_path[PATH_MAX] = "";

// "/proc/self/cwd/..." begins at the root as well.
bool is_whole(const char* path) { return path[0] == '/' && std::strncmp(path, "/proc/", 6) != 0; }

// The file that the kernel has mapped at that address, where the same file is still found by that name: "(deleted)" behind it, or a name of another
// root folder, leads elsewhere or nowhere.
bool mapped_file(const void* address, char (&path)[PATH_MAX]) {
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return false;
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  char* line = nullptr;
  std::size_t size = 0;
  bool found = false;
  while (!found && getline(&line, &size, maps) > 0) {
    std::uintptr_t begin = 0, end = 0;
    std::uint64_t inode = 0;
    int name_at = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*x %*x:%*x %" SCNu64 " %n", &begin, &end, &inode, &name_at) < 3) continue;
    if (wanted < begin || wanted >= end) continue;
    line[std::strcspn(line, "\n")] = '\0';
    const char* name = line + name_at;
    struct stat status = {};
    if (name_at == 0 || name[0] != '/' || std::strlen(name) >= PATH_MAX) break;
    // Overlay file systems tell another device here than stat() does: the inode it is.
    if (stat(name, &status) != 0 || status.st_ino != inode) break;
    std::strcpy(path, name);
    found = true;
  }
  std::free(line);
  std::fclose(maps);
  return found;
}

const char* path_by_the_loader() {
  Dl_info info;
  return dladdr(reinterpret_cast<const void*>(&remember_own_folder), &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace

void remember_own_folder() {
  if (!is_whole(path_by_the_loader())) mapped_file(reinterpret_cast<const void*>(&remember_own_folder), whole_path);
}

std::string own_folder() {
  const char* loaders = path_by_the_loader();
  const std::string path = is_whole(loaders) ? loaders : whole_path;
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return "";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace koila::shim
