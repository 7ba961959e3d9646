#include "runtime/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace koila {
namespace {

TEST(Ledger, CountsLivePeakAndCalls) {
  Ledger ledger;
  Account& cpu = ledger.of(KOILA_CPU);
  EXPECT_TRUE(cpu.try_reserve(100));
  EXPECT_TRUE(cpu.try_reserve(50));
  cpu.release(100);
  EXPECT_TRUE(cpu.try_reserve(20));
  EXPECT_EQ(cpu.live(), 70);
  EXPECT_EQ(cpu.peak(), 150);
  EXPECT_EQ(cpu.allocations(), 3);
  EXPECT_EQ(cpu.frees(), 1);
  EXPECT_EQ(ledger.of(0).live(), 0) << "devices are apart";
}

TEST(Ledger, BudgetIsExactToTheByte) {
  Account account;
  account.set_budget(100);
  EXPECT_TRUE(account.try_reserve(60));
  EXPECT_FALSE(account.try_reserve(41));
  EXPECT_EQ(account.live(), 60) << "what does not fit is not counted";
  EXPECT_EQ(account.peak(), 60);
  EXPECT_EQ(account.allocations(), 1);
  EXPECT_TRUE(account.try_reserve(40));
  EXPECT_FALSE(account.try_reserve(1));
  EXPECT_TRUE(account.try_reserve(0));
}

TEST(Ledger, FreesOfBytesFromBeforeABudgetAreExact) {
  Account account;
  EXPECT_TRUE(account.try_reserve(1000));
  account.set_budget(100);
  EXPECT_FALSE(account.try_reserve(1)) << "live bytes are beyond the budget already";
  account.release(950);
  EXPECT_TRUE(account.try_reserve(50));
  EXPECT_FALSE(account.try_reserve(1));
  account.set_budget(0);
  EXPECT_TRUE(account.try_reserve(1 << 20));
  account.release(1 << 20);
  account.release(100);
  EXPECT_EQ(account.live(), 0);
}

TEST(Ledger, ResetPeakKeepsTheRunsPeak) {
  Account account;
  account.try_reserve(500);
  account.release(400);
  account.reset_peak();
  EXPECT_EQ(account.peak(), 100);
  EXPECT_EQ(account.run_peak(), 500);
  account.try_reserve(50);
  EXPECT_EQ(account.peak(), 150);
  account.try_reserve(600);
  EXPECT_EQ(account.run_peak(), 750);
}

TEST(Ledger, ForkedChildOwesNothingForInheritedBytes) {
  Account account;
  account.set_budget(100);
  account.try_reserve(90);
  account.start_anew_after_fork();
  EXPECT_EQ(account.live(), 90);
  EXPECT_EQ(account.allocations(), 0);
  EXPECT_TRUE(account.try_reserve(100)) << "the child has its own budget";
  EXPECT_FALSE(account.try_reserve(1));
  account.release(90);
  account.release(100);
  EXPECT_EQ(account.live(), 0);
}

TEST(Ledger, HeldBytesAreOffTheBudgetAndNotLive) {
  Account account;
  account.set_budget(100);
  EXPECT_TRUE(account.hold(60));
  EXPECT_EQ(account.live(), 0);
  EXPECT_FALSE(account.hold(41));
  EXPECT_TRUE(account.hold(40));
  account.settle(60, 60);
  account.cancel(40);
  EXPECT_EQ(account.live(), 60);
  EXPECT_EQ(account.peak(), 60) << "what did not come never shows";
  EXPECT_EQ(account.allocations(), 1);
  EXPECT_TRUE(account.hold(40));
  account.cancel(40);
  account.give_back(60);
  EXPECT_EQ(account.live(), 0);
  EXPECT_EQ(account.frees(), 1);
  EXPECT_TRUE(account.hold(100));
}

TEST(Ledger, MoreMayComeThanWasHeld) {
  Account account;
  account.set_budget(100);
  EXPECT_TRUE(account.hold(90));
  account.settle(90, 110);
  EXPECT_EQ(account.live(), 110);
  EXPECT_FALSE(account.hold(1));
  account.give_back(110);
  EXPECT_TRUE(account.hold(100));
}

TEST(Ledger, ABudgetThatComesLateCountsWhatIsHeld) {
  Account account;
  EXPECT_TRUE(account.hold(70));
  account.settle(70, 70);
  EXPECT_TRUE(account.hold(20));
  account.set_budget(100);
  EXPECT_FALSE(account.hold(11));
  EXPECT_TRUE(account.hold(10));
}

TEST(Ledger, ARequestBeyondAllNumbersIsOverAnyBudget) {
  Account account;
  account.set_budget(100);
  EXPECT_FALSE(account.hold(std::numeric_limits<std::int64_t>::max()));
  EXPECT_FALSE(account.hold(static_cast<std::int64_t>(~std::size_t{0}))) << "cudaMalloc(-1)";
  EXPECT_TRUE(account.hold(100));
  EXPECT_FALSE(account.hold(std::numeric_limits<std::int64_t>::max()));
}

TEST(Ledger, AForkedChildHasNothingOfTheParentsDevices) {
  Ledger ledger;
  ledger.of(0).set_budget(100);
  ledger.of(0).hold(80);
  ledger.of(0).settle(80, 80);
  ledger.of(KOILA_PINNED).hold(8);
  ledger.of(KOILA_CPU).try_reserve(7);
  ledger.start_anew_after_fork();
  EXPECT_EQ(ledger.of(0).live(), 0);
  EXPECT_EQ(ledger.of(0).peak(), 0);
  EXPECT_TRUE(ledger.of(0).hold(100));
  EXPECT_EQ(ledger.of(KOILA_CPU).live(), 7) << "CPU tensors are still there to be freed";
}

TEST(Ledger, AccountsShareNoCacheLine) { EXPECT_EQ(sizeof(Account) % 64, 0U); }

// Threads reserve and release at random under a budget that they often hit; a checker sees that it is never overrun.
TEST(Ledger, ThreadsNeverOverrunTheBudget) {
  constexpr std::int64_t kBudget = 10'000;
  constexpr int kThreads = 4;
  Account account;
  account.set_budget(kBudget);
  std::atomic<bool> done{false};
  std::atomic<std::int64_t> refused{0}, held_at_end{0}, reserved{0};
  std::thread checker([&] {
    while (!done) EXPECT_LE(account.live(), kBudget);
  });

  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<std::int64_t> held;
      for (int i = 0; i < 50'000; ++i) {
        const std::int64_t bytes = random() % 2000;
        if (random() % 2 == 0 && !held.empty()) {
          account.release(held.back());
          held.pop_back();
        } else if (account.try_reserve(bytes)) {
          held.push_back(bytes);
          ++reserved;
        } else {
          ++refused;
        }
      }
      for (const std::int64_t bytes : held) held_at_end += bytes;
    });
  for (std::thread& thread : threads) thread.join();
  done = true;
  checker.join();

  EXPECT_EQ(account.live(), held_at_end);
  EXPECT_EQ(account.allocations(), reserved);
  EXPECT_GT(refused, 0);
  EXPECT_LE(account.peak(), kBudget);
  EXPECT_GE(account.peak(), account.live());
}

TEST(Ledger, PeakWithoutBudgetIsNotLostBetweenThreads) {
  Account account;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) account.try_reserve(3);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(account.peak(), 120'000);
  EXPECT_EQ(account.live(), 120'000);
}

}  // namespace
}  // namespace koila
