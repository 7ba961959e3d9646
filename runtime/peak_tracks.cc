#include "runtime/peak_tracks.h"

#include <algorithm>

namespace koila {

std::uint64_t PeakTracks::begin(Account& account) {
  const std::lock_guard lock(mutex_);
  bring_up_to_date(account);
  tracks_.push_back({last_number_ + 1, &account, account.live()});
  return ++last_number_;
}

std::int64_t PeakTracks::peak(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto track = find(number);
  if (track == tracks_.end()) return 0;
  bring_up_to_date(*track->account);
  return track->peak;
}

std::int64_t PeakTracks::end(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto track = find(number);
  if (track == tracks_.end()) return 0;
  bring_up_to_date(*track->account);
  const std::int64_t peak = track->peak;
  tracks_.erase(track);
  return peak;
}

std::vector<PeakTracks::Track>::iterator PeakTracks::find(std::uint64_t number) {
  return std::find_if(tracks_.begin(), tracks_.end(), [&](const Track& t) { return t.number == number; });
}

void PeakTracks::bring_up_to_date(Account& account) {
  const std::int64_t peak = account.take_track_peak();
  for (Track& track : tracks_) {
    if (track.account == &account) track.peak = std::max(track.peak, peak);
  }
}

}  // namespace koila
