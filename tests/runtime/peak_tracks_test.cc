#include "runtime/peak_tracks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>
#include <vector>

namespace koila {
namespace {

// So much comes, and goes again.
void pass(Account& account, std::int64_t bytes) {
  account.try_reserve(bytes);
  account.release(bytes);
}

TEST(PeakTracks, OneSeesItsOwnStretch) {
  Account account;
  pass(account, 1000);
  account.try_reserve(10);
  PeakTracks tracks;
  const auto track = tracks.begin(account);
  EXPECT_EQ(tracks.peak(track), 10) << "what was before is nothing to it";
  pass(account, 90);
  EXPECT_EQ(tracks.peak(track), 100);
  EXPECT_EQ(tracks.end(track), 100);
  EXPECT_EQ(tracks.peak(track), 0);
  EXPECT_EQ(tracks.end(track), 0);
}

TEST(PeakTracks, WithinEachOther) {
  Account account;
  PeakTracks tracks;
  const auto outer = tracks.begin(account);
  pass(account, 100);
  const auto inner = tracks.begin(account);
  pass(account, 40);
  EXPECT_EQ(tracks.end(inner), 40);
  pass(account, 70);
  EXPECT_EQ(tracks.end(outer), 100);
}

TEST(PeakTracks, AcrossEachOther) {
  Account account;
  PeakTracks tracks;
  const auto first = tracks.begin(account);
  pass(account, 10);
  const auto second = tracks.begin(account);
  pass(account, 50);
  EXPECT_EQ(tracks.end(first), 50);
  pass(account, 200);
  const auto third = tracks.begin(account);
  pass(account, 30);
  EXPECT_EQ(tracks.end(second), 200);
  EXPECT_EQ(tracks.end(third), 30);
}

TEST(PeakTracks, OtherMarksAreNothingToThem) {
  Account account, other;
  PeakTracks tracks;
  const auto track = tracks.begin(account);
  pass(account, 500);
  account.reset_peak();
  account.mark_peak();
  account.begin_step();
  pass(other, 9000);
  const auto elsewhere = tracks.begin(other);
  pass(account, 100);
  EXPECT_EQ(account.peak(), 100) << "and they are nothing to those";
  EXPECT_EQ(account.run_peak(), 500);
  EXPECT_EQ(tracks.end(track), 500);
  EXPECT_EQ(tracks.end(elsewhere), 0);
}

// Against a list of all that was live.
TEST(PeakTracks, AnyWayAtAll) {
  std::mt19937 random(3);
  Account account;
  PeakTracks tracks;
  std::vector<std::int64_t> blocks, history = {0};
  std::map<std::uint64_t, std::size_t> open;
  for (int i = 0; i < 20'000; ++i) {
    switch (random() % 6) {
      case 0:
        open.emplace(tracks.begin(account), history.size() - 1);
        break;
      case 1: {
        if (open.empty()) break;
        const auto one = std::next(open.begin(), static_cast<std::ptrdiff_t>(random() % open.size()));
        const std::int64_t peak = *std::max_element(history.begin() + static_cast<std::ptrdiff_t>(one->second), history.end());
        ASSERT_EQ(tracks.peak(one->first), peak);
        if (random() % 2 == 0) break;
        ASSERT_EQ(tracks.end(one->first), peak);
        open.erase(one);
        break;
      }
      case 2:
      case 3:
        if (blocks.empty()) break;
        account.release(blocks.back());
        blocks.pop_back();
        history.push_back(account.live());
        break;
      default:
        blocks.push_back(static_cast<std::int64_t>(random() % 100));
        account.try_reserve(blocks.back());
        history.push_back(account.live());
    }
  }
}

TEST(PeakTracks, Threads) {
  Account account;
  PeakTracks tracks;
  const auto whole = tracks.begin(account);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const auto mine = tracks.begin(account);
        account.try_reserve(100);
        EXPECT_GE(tracks.end(mine), 100);
        account.release(100);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::int64_t peak = tracks.end(whole);
  EXPECT_GE(peak, 100);
  EXPECT_LE(peak, 400);
}

}  // namespace
}  // namespace koila
