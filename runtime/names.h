// Strings by number: operators and source lines, which many blocks share.
#ifndef KOILA_RUNTIME_NAMES_H_
#define KOILA_RUNTIME_NAMES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace koila {

// Thread-safe. Number 0 is "", and whatever comes when the table is full. Names stay where they are for as long as the process lives.
class Names {
 public:
  // In the child of a fork it takes the place of the parent's, whose lock may be held for ever: numbers stay what they were.
  explicit Names(std::size_t at_most, const Names* parents = nullptr) : at_most_(at_most), names_(new std::atomic<const std::string*>[at_most]{}) {
    if (parents == nullptr) return;
    for (std::size_t i = 0; i < parents->at_most_; ++i) {
      const std::string* name = parents->names_[i].load(std::memory_order_acquire);
      if (name == nullptr) break;
      add(name);
    }
  }

  std::uint32_t number(const std::string& name) {
    if (name.empty()) return 0;
    const std::lock_guard lock(mutex_);
    const auto found = numbers_.find(name);
    if (found != numbers_.end()) return found->second;
    if (numbers_.size() >= at_most_) return 0;
    return add(new std::string(name));
  }

  const std::string& name(std::uint32_t number) const {
    static const std::string none;
    return number == 0 || number > at_most_ ? none : *names_[number - 1].load(std::memory_order_acquire);
  }

 private:
  std::uint32_t add(const std::string* name) {
    const auto number = static_cast<std::uint32_t>(numbers_.size() + 1);
    names_[number - 1].store(name, std::memory_order_release);
    numbers_.emplace(*name, number);
    return number;
  }

  const std::size_t at_most_;
  std::mutex mutex_;
  std::unique_ptr<std::atomic<const std::string*>[]> names_;      // those that there are first, then null
  std::unordered_map<std::string_view, std::uint32_t> numbers_;  // of the strings in names_
};

}  // namespace koila

#endif  // KOILA_RUNTIME_NAMES_H_
