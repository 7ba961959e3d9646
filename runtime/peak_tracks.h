// Peaks of stretches of the program that lie within and across each other, over the one mark that each account has for them.
//
// Thread-safe. Whenever a stretch begins, ends or is asked about, what the mark has seen since the last time counts for all that were open, and the mark
// starts again: so an account does no more for many of them than for one.
#ifndef KOILA_RUNTIME_PEAK_TRACKS_H_
#define KOILA_RUNTIME_PEAK_TRACKS_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/ledger.h"

namespace koila {

class PeakTracks {
 public:
  // Returns its number, from 1. The account must outlive it.
  std::uint64_t begin(Account& account);
  // The most that was live since; 0 when there is none of that number.
  std::int64_t peak(std::uint64_t number);
  std::int64_t end(std::uint64_t number);

  // Around a fork, so that the child finds it whole.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Track {
    std::uint64_t number = 0;
    Account* account = nullptr;
    std::int64_t peak = 0;
  };

  std::vector<Track>::iterator find(std::uint64_t number);
  void bring_up_to_date(Account& account);

  std::mutex mutex_;
  std::vector<Track> tracks_;
  std::uint64_t last_number_ = 0;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_PEAK_TRACKS_H_
