// A cache of micro-batch sizes as text: what size_cache.h says is in the file. Pure functions: no file is opened here.
#ifndef KOILA_RUNTIME_SIZE_CACHE_TEXT_H_
#define KOILA_RUNTIME_SIZE_CACHE_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include "runtime/size_cache.h"

namespace koila {

struct CacheEntry {
  std::string torch;
  CachedStep step;

  bool same_step(const CacheEntry& other) const {
    return torch == other.torch && step.id == other.step.id && step.batch == other.step.batch && step.device == other.step.device;
  }
};

struct CacheText {
  std::vector<CacheEntry> entries;
  std::string problem;  // what the file is or has, without its name; "" when there is none
  bool ours = true;
};

// What was wrong with a step.
struct MalformedStep {
  std::string text;
};

// The end of a problem with a file that is not touched.
constexpr std::string_view kCacheLeftAlone = "; it is not used and left as it is: delete it to have it made anew, or name another file";

CacheText parse_size_cache(const std::string& text);
std::string size_cache_text(const std::vector<CacheEntry>& entries);

// The step as it will be read; throws MalformedStep when it will not be.
CacheEntry as_it_will_be_read(const std::string& torch_version, CachedStep step);

// Among `entries`, in the place of the same step or before all others.
void put_step(std::vector<CacheEntry>& entries, CacheEntry entry);

// The last used first, and no more than there may be.
void put_in_order(std::vector<CacheEntry>& entries);

}  // namespace koila

#endif  // KOILA_RUNTIME_SIZE_CACHE_TEXT_H_
