// Where koila::batch, range and chunked (koila/batch.h) remember which size went through.
//
// C++17; header-only over LibTorch. The caches that the process has by itself (default_size_cache() and its kind) are one for the program and
// every library that sees its symbols; a library built with hidden visibility has its own.
#ifndef KOILA_SIZE_CACHE_H_
#define KOILA_SIZE_CACHE_H_

#include <c10/core/Device.h>
#include <c10/util/Type.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <typeindex>
#include <utility>
#include <vector>

namespace koila {

// A place in the program's text. As a default argument it is the caller's: void f(CallSite site = CallSite::here()).
struct CallSite {
  const char* file = "";
  int line = 0;
  static constexpr CallSite here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// What one call is known by. A cache looks at the parts that it goes by, and no others.
struct SizeKey {
  CallSite site;
  std::type_index function;         // of what is called: each lambda is a type of its own
  const void* address = nullptr;    // of a plain function, whose type tells little
  std::string_view context = {};    // BatchOptions::context
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  std::int64_t available_bytes = 0;  // in coarse steps
};

// What is remembered of one kind of call.
struct RememberedSize {
  std::int64_t size = 0;      // what the next call begins with, if it asks for no less; in rows
  std::int64_t failed = 0;    // the smallest size that ran out of memory; 0: none has, and a call begins with what it asks for
  std::int64_t successes = 0;  // calls and chunks in a row that went through below the size asked for
  std::int64_t patience = 1;  // how many times BatchOptions::grow_after of them it takes to try more: doubled whenever more ran out of memory
  bool trying_more = false;   // `size` is more than what went through last
};

// Remembers sizes. Thread-safe; a cache that is given to a call must outlive it. Two calls of one kind at the same time: the one that ends last
// is remembered.
class SizeCache {
 public:
  enum class By : std::uint8_t {
    kCallSiteAndMemory,  // the place of the call, the device, and how much memory it had when the call began
    kFunction,           // what is called, wherever and with whatever memory: a lambda's or functor's type, a plain function's address
    kNothing,            // forgets at once: each call begins with the size it asks for
  };
  // For people to read.
  struct Entry {
    std::string where;  // "train.cc:41", the options' context, or the function's type
    c10::Device device;
    std::int64_t available_bytes;  // the lower end of the step of memory it holds for; 0 where memory plays no part or is not known
    std::int64_t size;             // in rows
    std::int64_t failed;           // 0: nothing ran out of memory
  };

  explicit SizeCache(By by = By::kCallSiteAndMemory) : by_(by) {}
  SizeCache(const SizeCache&) = delete;
  SizeCache& operator=(const SizeCache&) = delete;

  By by() const { return by_; }

  RememberedSize find(const SizeKey& key) const {
    if (by_ == By::kNothing) return {};
    const Key mine = reduced(key);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sizes_.find(mine);
    return found != sizes_.end() ? found->second : RememberedSize();
  }
  void remember(const SizeKey& key, const RememberedSize& size) {
    if (by_ == By::kNothing) return;
    Key mine = reduced(key);
    const std::lock_guard<std::mutex> lock(mutex_);
    sizes_[std::move(mine)] = size;
  }

  // In no particular order.
  std::vector<Entry> entries() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Entry> all;
    all.reserve(sizes_.size());
    for (const auto& [key, size] : sizes_) all.push_back({key.where(), key.device, key.available_bytes, size.size, size.failed});
    return all;
  }
  void clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    sizes_.clear();
  }

 private:
  struct Key {
    std::string place;  // a file, or a context
    int line = 0;
    std::type_index function;
    const void* address = nullptr;
    c10::Device device;
    std::int64_t available_bytes = 0;

    bool operator<(const Key& other) const { return parts() < other.parts(); }
    std::tuple<const std::string&, int, const std::type_index&, const void*, std::pair<int, int>, std::int64_t> parts() const {
      return {place, line, function, address, {static_cast<int>(device.type()), device.index()}, available_bytes};
    }
    std::string where() const {
      if (place.empty()) return c10::demangle(function.name());
      return line > 0 ? place + ":" + std::to_string(line) : place;
    }
  };

  // A context stands for the place and for the function.
  Key reduced(const SizeKey& key) const {
    const bool by_site = by_ == By::kCallSiteAndMemory;
    Key mine{std::string(key.context), 0, key.function, key.address, c10::Device(c10::DeviceType::CPU), 0};
    if (!key.context.empty()) {
      mine.function = typeid(void);
      mine.address = nullptr;
    } else if (by_site) {
      mine.place = key.site.file;
      mine.line = key.site.line;
    }
    if (by_site) {
      mine.device = key.device;
      mine.available_bytes = key.available_bytes;
    }
    return mine;
  }

  const By by_;
  mutable std::mutex mutex_;
  std::map<Key, RememberedSize> sizes_;
};

namespace detail {

// Never destroyed: a thread may outlive the statics.
template <SizeCache::By by>
SizeCache& process_size_cache() {
  static SizeCache* const cache = new SizeCache(by);
  return *cache;
}

inline std::atomic<SizeCache*>& chosen_size_cache() {
  static std::atomic<SizeCache*> chosen{nullptr};
  return chosen;
}

}  // namespace detail

// The process' caches, one of each kind. They live as long as the process.
inline SizeCache& call_site_size_cache() { return detail::process_size_cache<SizeCache::By::kCallSiteAndMemory>(); }
inline SizeCache& global_size_cache() { return detail::process_size_cache<SizeCache::By::kFunction>(); }
inline SizeCache& no_size_cache() { return detail::process_size_cache<SizeCache::By::kNothing>(); }

// What calls use that name no cache: call_site_size_cache(), until another is set. That one must live until it is set back.
inline SizeCache& default_size_cache() {
  SizeCache* chosen = detail::chosen_size_cache().load(std::memory_order_acquire);
  return chosen != nullptr ? *chosen : call_site_size_cache();
}
inline void set_default_size_cache(SizeCache& cache) { detail::chosen_size_cache().store(&cache, std::memory_order_release); }

}  // namespace koila

#endif  // KOILA_SIZE_CACHE_H_
