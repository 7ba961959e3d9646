#include "runtime/leaks.h"

#include <gtest/gtest.h>

namespace koila {
namespace {

constexpr std::int64_t kMi = 1 << 20;

// Looks at every tenth step, of what `alive(step)` says.
template <class F>
std::vector<LeakLook> looks(F alive, int count = 8) {
  std::vector<LeakLook> history;
  for (int i = 1; i <= count; ++i) {
    SurvivorGroup group{KOILA_CPU, KOILA_ACTIVATIONS, "aten::addmm", "train.py:12 in forward", {}};
    group.alive = alive(std::int64_t{10} * i);
    history.push_back({10 * i, {group}});
  }
  return history;
}

using Alive = std::vector<std::pair<std::int64_t, std::int64_t>>;

TEST(Leaks, WhatEachStepLeavesBehindIsOne) {
  const auto leaks = find_leaks(looks([](std::int64_t step) {
    Alive alive;
    for (std::int64_t birth = 3; birth < step; ++birth) alive.emplace_back(birth, kMi);
    return alive;
  }));
  ASSERT_EQ(leaks.size(), 1U);
  EXPECT_EQ(leaks[0].category, KOILA_ACTIVATIONS);
  EXPECT_EQ(leaks[0].op, "aten::addmm");
  EXPECT_EQ(leaks[0].where, "train.py:12 in forward");
  EXPECT_EQ(leaks[0].bytes, 76 * kMi) << "born in 3 to 78; the last two steps' may yet go";
  EXPECT_EQ(leaks[0].bytes_per_step, kMi);
  EXPECT_EQ(leaks[0].first_step, 3);
  EXPECT_EQ(leaks[0].holder, "");
}

TEST(Leaks, OneEveryFewStepsIsOneToo) {
  const auto leaks = find_leaks(looks([](std::int64_t step) {
    Alive alive;
    for (std::int64_t birth = 0; birth < step; birth += 15) alive.emplace_back(birth, kMi);
    return alive;
  }));
  ASSERT_EQ(leaks.size(), 1U);
}

TEST(Leaks, WhatLivesForAStepIsNone) {
  EXPECT_TRUE(find_leaks(looks([](std::int64_t step) { return Alive{{step - 1, step * kMi}, {step, kMi}}; })).empty());
}

TEST(Leaks, StateMadeOnceIsNone) {
  EXPECT_TRUE(find_leaks(looks([](std::int64_t) { return Alive{{1, 100 * kMi}}; })).empty());
  EXPECT_TRUE(find_leaks(looks([](std::int64_t step) {  // and layers that join one after the other
                Alive alive;
                for (std::int64_t birth = 0; birth < std::min<std::int64_t>(step, 80); birth += 20) alive.emplace_back(birth, kMi);
                return alive;
              })).empty());
}

// A buffer that keeps the last `size` steps.
std::vector<LeakLook> buffer(std::int64_t size, int count) {
  return looks(
      [=](std::int64_t step) {
        Alive alive;
        for (std::int64_t birth = std::max<std::int64_t>(step - size, 0); birth < step; ++birth) alive.emplace_back(birth, kMi);
        return alive;
      },
      count);
}

TEST(Leaks, AReplayBufferIsOneWhileItFills) {
  EXPECT_EQ(find_leaks(buffer(100, 8)).size(), 1U);
  EXPECT_TRUE(find_leaks(buffer(100, 16)).empty()) << "full since look 10 of 16: the later half shows no growth";
  EXPECT_TRUE(find_leaks(buffer(20, 8)).empty());
}

TEST(Leaks, GrowthThatIsTakenBackIsNone) {
  EXPECT_TRUE(find_leaks(looks([](std::int64_t step) {  // a collector of garbage comes by every forty steps
                Alive alive;
                for (std::int64_t birth = step - step % 40; birth < step; ++birth) alive.emplace_back(birth, kMi);
                return alive;
              })).empty());
}

TEST(Leaks, GrowthWithDipsIsNone) {
  const std::vector<std::int64_t> lengths = {10, 30, 20, 25, 40, 50, 45, 60};
  EXPECT_TRUE(find_leaks(looks([&](std::int64_t step) {
                Alive alive;
                for (std::int64_t birth = 1; birth <= 5; ++birth) alive.emplace_back(birth, lengths[static_cast<std::size_t>(step / 10 - 1)] * kMi);
                return alive;
              })).empty());
}

TEST(Leaks, AFewBytesAreNone) {
  const auto few = [](std::int64_t bytes) {
    return find_leaks(looks([=](std::int64_t step) {
      Alive alive;
      for (std::int64_t birth = 0; birth < step; ++birth) alive.emplace_back(birth, bytes);
      return alive;
    }));
  };
  EXPECT_TRUE(few(64).empty());
  EXPECT_EQ(few(1024).size(), 1U);
}

TEST(Leaks, ItTakesEightLooks) {
  EXPECT_TRUE(find_leaks(buffer(1000, 7)).empty());
  EXPECT_EQ(find_leaks(buffer(1000, 8)).size(), 1U);
  EXPECT_TRUE(find_leaks({}).empty());
}

TEST(Leaks, GroupsAreToldApartAndTheLargestComesFirst) {
  auto history = buffer(1000, 8);
  for (LeakLook& look : history) {
    SurvivorGroup larger = look.groups[0];
    larger.where = "train.py:30 in evaluate";
    for (auto& [birth, bytes] : larger.alive) bytes *= 2;
    SurvivorGroup steady = look.groups[0];
    steady.category = KOILA_OPTIMIZER_STATE;
    steady.alive = {{1, 500 * kMi}};
    look.groups.push_back(larger);
    look.groups.push_back(steady);
  }
  const auto leaks = find_leaks(history);
  ASSERT_EQ(leaks.size(), 2U);
  EXPECT_EQ(leaks[0].where, "train.py:30 in evaluate");
  EXPECT_EQ(leaks[1].where, "train.py:12 in forward");
}

TEST(Leaks, GrowthOfAFigure) {
  std::vector<std::pair<std::int64_t, std::int64_t>> grows, jumps;
  for (int i = 1; i <= 8; ++i) {
    grows.emplace_back(16 * i, 500 * kMi + i * 16 * 1000);
    jumps.emplace_back(16 * i, i < 4 ? 500 * kMi : 600 * kMi);
  }
  EXPECT_EQ(growth_per_step(grows), 1000);
  EXPECT_EQ(growth_per_step(jumps), 0) << "warmed up, and no more";
  grows.erase(grows.begin());
  EXPECT_EQ(growth_per_step(grows), 0);
}

}  // namespace
}  // namespace koila
