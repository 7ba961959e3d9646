#include "runtime/pointer_table.h"

#include "runtime/device_memory.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

namespace koila {
namespace {

Block block(std::int64_t bytes, std::int16_t place = 0) { return {bytes, place, 0}; }

TEST(PointerTable, TakesWhatWasInsertedOnce) {
  PointerTable<Block> table;
  EXPECT_TRUE(table.insert(0x1000, block(5)));
  EXPECT_FALSE(table.take(0x1001).has_value()) << "an address within is not the block's";
  ASSERT_EQ(table.take(0x1000)->bytes, 5);
  EXPECT_FALSE(table.take(0x1000).has_value());
  EXPECT_EQ(table.size(), 0);
}

TEST(PointerTable, KeepsTheFirstOfTwoAtOneAddress) {
  PointerTable<Block> table;
  EXPECT_TRUE(table.insert(0x1000, block(5)));
  EXPECT_FALSE(table.insert(0x1000, block(6)));
  EXPECT_EQ(table.take(0x1000)->bytes, 5);
}

TEST(PointerTable, TakesAllOfAPlace) {
  PointerTable<Block> table;
  for (std::uintptr_t i = 1; i <= 1000; ++i) table.insert(i << 21, block(static_cast<std::int64_t>(i), i % 2));
  const PointerTable<Block>::Taken taken = table.take_all([](const Block& b) { return b.place == 1; });
  EXPECT_EQ(taken.size(), 500U);
  EXPECT_EQ(table.size(), 500);
  for (const auto& [address, b] : taken) {
    EXPECT_EQ(address, static_cast<std::uintptr_t>(b.bytes) << 21);
    EXPECT_FALSE(table.take(address).has_value());
    EXPECT_TRUE(table.insert(address, b));
  }
  for (std::uintptr_t i = 1; i <= 1000; ++i) ASSERT_EQ(table.take(i << 21)->bytes, static_cast<std::int64_t>(i));
}

// Against std::map, with addresses near one another, so that probing sequences run into one another and close up again.
TEST(PointerTable, IsAMap) {
  PointerTable<Block> table;
  std::map<std::uintptr_t, std::int64_t> model;
  std::mt19937 random(1);
  for (int i = 0; i < 300'000; ++i) {
    const std::uintptr_t address = (std::uintptr_t{1} << 40) + 512 * (1 + random() % 5000);
    if (random() % 2 == 0) {
      ASSERT_EQ(table.insert(address, block(i)), model.emplace(address, i).second);
    } else {
      const auto taken = table.take(address);
      const auto it = model.find(address);
      ASSERT_EQ(taken.has_value(), it != model.end());
      if (taken) {
        ASSERT_EQ(taken->bytes, it->second);
        model.erase(it);
      }
    }
  }
  EXPECT_EQ(table.size(), static_cast<std::int64_t>(model.size()));
}

TEST(PointerTable, ThreadsSeeTheirOwn) {
  PointerTable<Block> table;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<std::uintptr_t> mine;
      for (std::uintptr_t i = 1; i < 20'000; ++i) {
        if (random() % 2 == 0 || mine.empty()) {
          const std::uintptr_t address = (i * 8 + static_cast<std::uintptr_t>(t)) << 9;
          ASSERT_TRUE(table.insert(address, block(static_cast<std::int64_t>(address))));
          mine.push_back(address);
        } else {
          ASSERT_EQ(table.take(mine.back())->bytes, static_cast<std::int64_t>(mine.back()));
          mine.pop_back();
        }
      }
      for (const std::uintptr_t address : mine) ASSERT_TRUE(table.take(address));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table.size(), 0);
}

}  // namespace
}  // namespace koila
