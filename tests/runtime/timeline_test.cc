#include "runtime/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

namespace koila {
namespace {

constexpr std::int64_t kMi = 1 << 20;

Sample sample(double seconds, std::int64_t live) {
  Sample made{seconds, live, {}};
  made.by_category[KOILA_ACTIVATIONS] = live;
  return made;
}

// What the runtime does: asks first.
void see(Timeline& timeline, double seconds, std::int64_t live) {
  if (timeline.due(live)) timeline.add(sample(seconds, live));
}

std::int64_t highest(const std::vector<Sample>& samples) {
  std::int64_t most = 0;
  for (const Sample& s : samples) most = std::max(most, s.live_bytes);
  return most;
}

template <class T>
struct Kept final : SeriesSink<T> {
  std::vector<T> entries, open;
  int replaced = 0;
  void append(const T& entry) override { entries.push_back(entry); }
  void replace(const T* from, std::size_t count) override {
    entries.assign(from, from + count);
    ++replaced;
  }
  void pending(const T* from, std::size_t count) override { open.assign(from, from + count); }
};

TEST(Timeline, TakesMovesOfASixtyFourthOfThePeakAndNoSmallerOnes) {
  Timeline timeline;
  EXPECT_TRUE(timeline.due(0));
  timeline.add(sample(0, 64 * kMi));
  EXPECT_FALSE(timeline.due(64 * kMi));
  EXPECT_FALSE(timeline.due(63 * kMi));
  EXPECT_TRUE(timeline.due(63 * kMi - 1));
  EXPECT_FALSE(timeline.due(64 * kMi + kMi / 2));
  EXPECT_TRUE(timeline.due(64 * kMi + kMi * 65 / 100)) << "a peak that is more than a hundredth above the last";
  timeline.add(sample(1, 10 * kMi));
  EXPECT_FALSE(timeline.due(11 * kMi)) << "by the run's peak, and not by what is live";
  EXPECT_TRUE(timeline.due(11 * kMi + 1));
}

TEST(Timeline, OfSmallMemoryOnlyMovesThatAreWorthIt) {
  Timeline timeline;
  timeline.add(sample(0, 1000));
  EXPECT_FALSE(timeline.due(0));
  EXPECT_FALSE(timeline.due(1000 + Timeline::kDistance));
  EXPECT_TRUE(timeline.due(1001 + Timeline::kDistance));
}

TEST(Timeline, OfAnIntervalTheHighestAndTheLastStay) {
  Timeline timeline;
  EXPECT_TRUE(timeline.add(sample(1.000, 10 * kMi)));
  EXPECT_FALSE(timeline.add(sample(1.005, 90 * kMi)));
  EXPECT_FALSE(timeline.add(sample(1.010, 50 * kMi)));
  EXPECT_FALSE(timeline.add(sample(1.015, 20 * kMi)));
  EXPECT_TRUE(timeline.add(sample(9, 30 * kMi)));
  const std::vector<Sample> samples = timeline.snapshot();
  ASSERT_EQ(samples.size(), 3U);
  EXPECT_EQ(samples[0].live_bytes, 90 * kMi);
  EXPECT_EQ(samples[0].seconds, 1.005);
  EXPECT_EQ(samples[0].by_category[KOILA_ACTIVATIONS], 90 * kMi);
  EXPECT_EQ(samples[1].live_bytes, 20 * kMi) << "what was in use until the ninth second";
  EXPECT_EQ(samples[2].live_bytes, 30 * kMi);
}

TEST(Timeline, ALongRunStaysBoundedAndKeepsItsPeaks) {
  Timeline timeline;
  // Ten hours of a saw, a thousand teeth a second in places, with three peaks that nothing else comes near.
  std::vector<double> peaks;
  for (int i = 0; i < 400'000; ++i) {
    const double seconds = i * 0.09;
    see(timeline, seconds, (i % 2 == 0 ? 10 : 50) * kMi);
    see(timeline, seconds + 0.001, 20 * kMi);
    if (i == 7 || i == 200'000 || i == 399'998) {
      see(timeline, seconds + 0.002, (100 + i % 5) * kMi);
      peaks.push_back(seconds + 0.002);
    }
    see(timeline, seconds + 0.003, 15 * kMi);
  }
  const std::vector<Sample> samples = timeline.snapshot();
  EXPECT_LE(samples.size(), kMaxSamples + kPending);
  EXPECT_GE(samples.size(), kMaxSamples / 2);
  for (const double peak : peaks) {
    EXPECT_TRUE(std::any_of(samples.begin(), samples.end(), [&](const Sample& s) { return s.seconds == peak && s.live_bytes >= 100 * kMi; })) << peak;
  }
  EXPECT_TRUE(std::is_sorted(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.seconds < b.seconds; }));
  // Evenly: no part of the run is told in much less detail than another.
  double gap = 0;
  for (std::size_t i = 1; i < samples.size(); ++i) gap = std::max(gap, samples[i].seconds - samples[i - 1].seconds);
  EXPECT_LT(gap, 10 * samples.back().seconds / static_cast<double>(samples.size()));
}

TEST(Timeline, TheHighestIsKeptToAHundredthWhateverTheOrder) {
  Timeline timeline;
  std::int64_t most = 0;
  for (int i = 0; i < 100'000; ++i) {
    const auto live = static_cast<std::int64_t>((1 + std::sin(i * 0.37) * std::cos(i * 0.0021)) * 100 * kMi);
    most = std::max(most, live);
    see(timeline, i * 1e-4, live);
  }
  const std::int64_t kept = highest(timeline.snapshot());
  EXPECT_LE(kept, most);
  EXPECT_GE(kept, most - most / 100);
}

TEST(Timeline, ALateSampleDoesNotGoBackInTime) {
  Timeline timeline;
  timeline.add(sample(5, 10 * kMi));
  timeline.add(sample(4, 90 * kMi));
  const std::vector<Sample> samples = timeline.snapshot();
  EXPECT_EQ(samples.back().seconds, 5);
  EXPECT_EQ(samples.back().live_bytes, 90 * kMi);
}

TEST(Timeline, WhatIsKeptElsewhereIsTheSame) {
  Timeline timeline;
  Kept<Sample> early, late;
  timeline.write_to(&early);
  for (int i = 0; i < 20'000; ++i) {
    if (i == 15'000) timeline.write_to(&late);
    see(timeline, i * 0.1, (i % 7) * kMi);
  }
  timeline.write_to(&late);
  EXPECT_EQ(late.replaced, 1 + 1) << "once at first, and once when it was full again";
  const std::vector<Sample> samples = timeline.snapshot();
  std::vector<Sample> kept = late.entries;
  kept.insert(kept.end(), late.open.begin(), late.open.end());
  ASSERT_EQ(kept.size(), samples.size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(kept[i].seconds, samples[i].seconds);
    EXPECT_EQ(kept[i].live_bytes, samples[i].live_bytes);
  }
}

TEST(Timeline, ThreadsMayAllCome) {
  Timeline timeline;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20'000; ++i) see(timeline, i * 0.01, ((i * 31 + t * 17) % 100) * kMi);
    });
  }
  for (int i = 0; i < 50; ++i) timeline.snapshot();
  for (std::thread& thread : threads) thread.join();
  const std::vector<Sample> samples = timeline.snapshot();
  EXPECT_EQ(highest(samples), 99 * kMi);
  EXPECT_TRUE(std::is_sorted(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.seconds < b.seconds; }));
}

StepSample step(std::int64_t number, std::int64_t peak, std::int64_t rescues = 0) {
  StepSample made;
  made.seconds = static_cast<double>(number);
  made.step = number;
  made.peak_bytes = peak;
  made.live_bytes = peak / 2;
  made.rescues = rescues;
  return made;
}

TEST(StepSeries, MergedStepsKeepTheHigherPeakTheLaterNumberAndAllRescues) {
  StepSample first = step(1, 90, 2), second = step(2, 40, 1);
  first.batch = 64;
  first.micro_batch = 16;
  first.device = 3;
  const StepSample both = merged(first, second);
  EXPECT_EQ(both.step, 2);
  EXPECT_EQ(both.seconds, 2);
  EXPECT_EQ(both.peak_bytes, 90);
  EXPECT_EQ(both.live_bytes, 45);
  EXPECT_EQ(both.device, 3);
  EXPECT_EQ(both.rescues, 3);
  EXPECT_EQ(both.batch, 64);
  EXPECT_EQ(both.micro_batch, 16);
}

TEST(StepSeries, AMillionStepsStayBoundedAndAddUp) {
  StepSeries steps;
  Kept<StepSample> kept;
  steps.write_to(&kept);
  constexpr std::int64_t kMany = 1'000'003;
  for (std::int64_t i = 1; i <= kMany; ++i) steps.add(step(i, i == 345'678 ? 1000 : 100 + i % 10, i % 1000 == 0 ? 1 : 0));
  const std::vector<StepSample> all = steps.snapshot();
  EXPECT_LE(all.size(), kMaxSamples + 1);
  EXPECT_GE(all.size(), kMaxSamples / 2 - 1);
  EXPECT_EQ(all.back().step, kMany);
  std::int64_t rescues = 0, most = 0;
  for (const StepSample& s : all) {
    rescues += s.rescues;
    most = std::max(most, s.peak_bytes);
  }
  EXPECT_EQ(rescues, kMany / 1000);
  EXPECT_EQ(most, 1000);
  ASSERT_EQ(kept.open.size(), 1U);
  EXPECT_EQ(kept.open[0].step, kMany);
  EXPECT_EQ(kept.entries.size() + 1, all.size());
  // Entries of as many steps each, but for the latest.
  const std::int64_t stride = all[1].step - all[0].step;
  for (std::size_t i = 2; i + 1 < all.size(); ++i) EXPECT_EQ(all[i].step - all[i - 1].step, stride) << i;
}

}  // namespace
}  // namespace koila
