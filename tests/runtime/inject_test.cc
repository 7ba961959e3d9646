#include "runtime/inject.h"

#include <gtest/gtest.h>

#include <vector>

namespace koila {
namespace {

std::vector<int> failing(const char* text, int device, int allocations) {
  const auto spec = parse_inject(text);
  std::vector<int> numbers;
  for (int i = 1; i <= allocations; ++i)
    if (spec.value().fails(device, i)) numbers.push_back(i);
  return numbers;
}

TEST(Inject, NthFailsOnce) { EXPECT_EQ(failing("nth:3", KOILA_CPU, 100), std::vector<int>{3}); }

TEST(Inject, EveryFailsAgainAndAgain) { EXPECT_EQ(failing("every:4", KOILA_CPU, 13), (std::vector<int>{4, 8, 12})); }

TEST(Inject, RandomIsASeededShare) {
  const auto first = failing("random:0.1:7", KOILA_CPU, 10000);
  EXPECT_NEAR(static_cast<double>(first.size()), 1000, 150);
  EXPECT_EQ(first, failing("random:0.1:7", KOILA_CPU, 10000));
  EXPECT_NE(first, failing("random:0.1:8", KOILA_CPU, 10000));
  EXPECT_TRUE(failing("random:0:7", KOILA_CPU, 1000).empty());
  EXPECT_EQ(failing("random:1:7", KOILA_CPU, 1000).size(), 1000U);
}

TEST(Inject, PrefixNamesTheDevice) {
  EXPECT_EQ(failing("cpu:nth:3", KOILA_CPU, 10).size(), 1U);
  EXPECT_TRUE(failing("cpu:nth:3", 0, 10).empty());
  EXPECT_TRUE(failing("cuda:1:every:2", 0, 10).empty());
  EXPECT_EQ(failing("cuda:1:every:2", 1, 10).size(), 5U);
  EXPECT_EQ(failing("nth:3", 0, 10).size(), 1U);
}

TEST(Inject, RefusesWhatIsNoSpec) {
  for (const char* text : {"", "nth", "nth:", "nth:0", "nth:-1", "nth:3x", "nth:3:4", "every:0", "random:0.5", "random:2:1", "random:x:1",
                           "random:0.5:", "cuda:nth:3", "cuda:99:nth:3", "cuda:-1:nth:3", "gpu:nth:3", "cpu:", "3"})
    EXPECT_EQ(parse_inject(text), std::nullopt) << text;
}

TEST(Injector, CountsFromWhenItIsSet) {
  Ledger ledger;
  Injector injector;
  Account& cpu = ledger.of(KOILA_CPU);
  EXPECT_FALSE(injector.fails(KOILA_CPU, cpu.count_request()));
  injector.set(parse_inject("nth:2"), ledger);
  EXPECT_FALSE(injector.fails(KOILA_CPU, cpu.count_request()));
  EXPECT_TRUE(injector.fails(KOILA_CPU, cpu.count_request()));
  EXPECT_FALSE(injector.fails(KOILA_CPU, cpu.count_request()));
  injector.set(parse_inject("every:1"), ledger);
  EXPECT_TRUE(injector.fails(KOILA_CPU, cpu.count_request()));
  injector.set(std::nullopt, ledger);
  EXPECT_FALSE(injector.fails(KOILA_CPU, cpu.count_request()));
}

TEST(Injector, CountsAnewAfterAFork) {
  Ledger ledger;
  Injector injector;
  injector.set(parse_inject("nth:2"), ledger);
  for (int i = 0; i < 5; ++i) ledger.of(KOILA_CPU).count_request();
  ledger.start_anew_after_fork();
  injector.restart(ledger);
  EXPECT_FALSE(injector.fails(KOILA_CPU, ledger.of(KOILA_CPU).count_request()));
  EXPECT_TRUE(injector.fails(KOILA_CPU, ledger.of(KOILA_CPU).count_request()));
}

}  // namespace
}  // namespace koila
