// The account of memory that CUPTI reports and no hook saw: what libraries with a cudart of their own inside get, and the driver for itself.
//
// Not thread-safe: the collector locks. CUPTI reports an allocation some time after it was made, and before or after the hook that made it says so:
// either is matched with the other, by address.
#ifndef KOILA_SHIM_CUPTI_UNSEEN_H_
#define KOILA_SHIM_CUPTI_UNSEEN_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

namespace koila::cupti {

class Unseen {
 public:
  struct Figures {
    std::int64_t live_bytes = 0;
    std::int64_t blocks = 0;  // live ones
  };

  // A hook's block.
  void seen(std::uint64_t address);

  // What CUPTI reports. `place` as in abi.h; `library` in short, "" when it cannot be told. `hooked`: it came through a hook, which will say so.
  void allocated(std::uint64_t address, std::int64_t bytes, int place, const std::string& library, bool hooked);
  void released(std::uint64_t address);

  // By place and library. Without those that have nothing left.
  const std::map<std::pair<int, std::string>, Figures>& figures() const { return figures_; }
  std::int64_t reports() const { return reports_; }

  // "by CUPTI: 24.0 MiB on cuda:0 not seen by the hooks: cublas 20.0 MiB, unknown 4.0 MiB".
  std::string describe() const;

 private:
  using Source = std::map<std::pair<int, std::string>, Figures>::iterator;
  struct Block {
    std::int64_t bytes = 0;
    Source source;
    bool counted = false;
  };

  void drop(std::unordered_map<std::uint64_t, Block>::iterator block);

  std::unordered_map<std::uint64_t, Block> live_;
  std::unordered_map<std::uint64_t, int> expected_;  // hooks' blocks that CUPTI has not reported yet
  std::map<std::pair<int, std::string>, Figures> figures_;
  std::int64_t reports_ = 0;
};

}  // namespace koila::cupti

#endif  // KOILA_SHIM_CUPTI_UNSEEN_H_
