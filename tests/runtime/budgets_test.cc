#include "runtime/budgets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

namespace koila {
namespace {

TEST(Budgets, TheSmallestHolds) {
  Ledger ledger;
  Budgets budgets(ledger);
  budgets.set(KOILA_CPU, 100);
  const auto large = budgets.begin(KOILA_CPU, 200);
  EXPECT_EQ(ledger.of(KOILA_CPU).budget(), 100) << "it does not raise the device's own";
  const auto small = budgets.begin(KOILA_CPU, 50);
  EXPECT_EQ(ledger.of(KOILA_CPU).budget(), 50);
  EXPECT_EQ(ledger.of(0).budget(), 0) << "devices are apart";
  budgets.end(small);
  EXPECT_EQ(ledger.of(KOILA_CPU).budget(), 100);
  budgets.set(KOILA_CPU, 0);
  EXPECT_EQ(ledger.of(KOILA_CPU).budget(), 200);
  budgets.end(large);
  EXPECT_EQ(ledger.of(KOILA_CPU).budget(), 0);
}

TEST(Budgets, EndInAnyOrder) {
  Ledger ledger;
  Budgets budgets(ledger);
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::pair<std::uint64_t, std::int64_t>> open;
    for (std::int64_t bytes : {400, 100, 300, 100, 200}) open.emplace_back(budgets.begin(0, bytes), bytes);
    std::shuffle(open.begin(), open.end(), random);
    while (!open.empty()) {
      const auto least = std::min_element(open.begin(), open.end(), [](auto& a, auto& b) { return a.second < b.second; });
      ASSERT_EQ(ledger.of(0).budget(), least->second);
      budgets.end(open.back().first);
      budgets.end(open.back().first);  // nothing
      open.pop_back();
    }
    ASSERT_EQ(ledger.of(0).budget(), 0);
  }
}

TEST(Budgets, TheProgramsWordStandsAgainstTheConfigurations) {
  Ledger ledger;
  Budgets budgets(ledger);
  EXPECT_FALSE(budgets.settled(0));
  budgets.set(0, 70);
  EXPECT_TRUE(budgets.settled(0));
  EXPECT_FALSE(budgets.configure(0, 30));
  EXPECT_EQ(ledger.of(0).budget(), 70);
  EXPECT_TRUE(budgets.configure(1, 30));
  EXPECT_EQ(ledger.of(1).budget(), 30);
  EXPECT_TRUE(budgets.configure(2, std::nullopt));
  EXPECT_TRUE(budgets.settled(2));
}

TEST(Budgets, OneThatHoldsForAWhileLeavesTheConfigurationItsWord) {
  Ledger ledger;
  Budgets budgets(ledger);
  const auto passing = budgets.begin(0, 50);
  EXPECT_FALSE(budgets.settled(0));
  EXPECT_TRUE(budgets.configure(0, 80));
  EXPECT_EQ(ledger.of(0).budget(), 50);
  budgets.end(passing);
  EXPECT_EQ(ledger.of(0).budget(), 80);
}

TEST(Budgets, ThreadsLeaveNothingBehind) {
  Ledger ledger;
  Budgets budgets(ledger);
  budgets.set(KOILA_CPU, 1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const auto mine = budgets.begin(KOILA_CPU, 100 + t);
        EXPECT_LE(ledger.of(KOILA_CPU).budget(), 100 + t);
        budgets.end(mine);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ledger.of(KOILA_CPU).budget(), 1000);
}

}  // namespace
}  // namespace koila
