#include "runtime/adapters.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "runtime/torch_release.h"

namespace koila {
namespace {

constexpr const char* kFolderPrefix = "torch-";

void add_adapter(const std::string& folder, std::vector<Adapter>& adapters) {
  struct stat status;
  const std::string path = folder + "/libkoila_torch.so";
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (std::string built = built_for(folder + "/libkoila_torch.version"); !built.empty()) adapters.push_back({path, std::move(built)});
}

// 2.9.1 before 2.13.0: glibc's order of versions.
bool is_older(const Adapter& a, const Adapter& b) { return strverscmp(a.built_for.c_str(), b.built_for.c_str()) < 0; }

}  // namespace

std::vector<Adapter> adapters_in(const std::string& folder) {
  std::vector<Adapter> adapters;
  add_adapter(folder, adapters);
  if (DIR* open = opendir(folder.c_str()); open != nullptr) {
    while (const dirent* entry = readdir(open))
      if (std::strncmp(entry->d_name, kFolderPrefix, std::strlen(kFolderPrefix)) == 0) add_adapter(folder + "/" + entry->d_name, adapters);
    closedir(open);
  }
  std::stable_sort(adapters.begin(), adapters.end(), is_older);
  return adapters;
}

const Adapter* adapter_for(const std::vector<Adapter>& adapters, const std::string& running) {
  const Adapter* found = nullptr;
  for (const Adapter& adapter : adapters) {
    if (!same_torch(running, adapter.built_for)) continue;
    if (found == nullptr || adapter.built_for == running) found = &adapter;
  }
  return found;
}

std::string releases_of(const std::vector<Adapter>& adapters) {
  std::string all;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (i > 0) all += i + 1 == adapters.size() ? " and " : ", ";
    all += adapters[i].built_for;
  }
  return all;
}

}  // namespace koila
