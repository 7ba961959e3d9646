// KOILA_INJECT_OOM: allocations that fail on purpose, so that tests can run out of memory anywhere.
#ifndef KOILA_RUNTIME_INJECT_H_
#define KOILA_RUNTIME_INJECT_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/ledger.h"

namespace koila {

// Which allocations of a device fail, by their number from 1.
struct InjectSpec {
  enum class Kind { kNth, kEvery, kRandom };
  Kind kind = Kind::kNth;
  std::int64_t number = 0;  // nth, every
  double share = 0;         // random: of all allocations, 0 to 1
  std::uint64_t seed = 0;   // random: the same seed fails the same allocations
  std::optional<int> device;  // nothing: every device

  bool fails(int device, std::int64_t allocation) const;
};

// "nth:120", "every:50", "random:0.02:SEED", each with an optional prefix "cpu:" or "cuda:0:".
std::optional<InjectSpec> parse_inject(std::string_view text);
constexpr const char* kInjectForm = "nth:120, every:50 or random:0.02:SEED, after cpu: or cuda:0: if it is for one device";

// The spec in force. Thread-safe; asking costs one load when there is none.
class Injector {
 public:
  // Takes the place of the spec in force, and counts from the next allocation of each device on. Nothing: none.
  void set(const std::optional<InjectSpec>& spec, const Ledger& ledger);

  // The spec in force counts from the next allocation on again (in the child of a fork, whose ledger starts anew).
  void restart(const Ledger& ledger);

  // `request` as Account::count_request numbered it.
  bool fails(int device, std::int64_t request) const {
    const Armed* armed = armed_.load(std::memory_order_acquire);
    return armed != nullptr && armed->spec.fails(device, request - armed->before[device - kFirstPlace]);
  }

 private:
  struct Armed {
    InjectSpec spec;
    std::int64_t before[kPlaces];  // requests made before the spec came into force
  };
  // Replaced ones are leaked: another thread may be reading, and only tests ever replace one.
  std::atomic<const Armed*> armed_{nullptr};
};

}  // namespace koila

#endif  // KOILA_RUNTIME_INJECT_H_
