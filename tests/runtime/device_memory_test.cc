#include "runtime/device_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

namespace koila {
namespace {

constexpr auto kNeverFails = [](std::int64_t) { return false; };

class DeviceMemoryTest : public testing::Test {
 protected:
  // As a hook does it: held, then given by CUDA.
  bool allocate(std::uintptr_t address, std::int64_t bytes, int place = 0) {
    if (memory.hold(place, bytes, kNeverFails) != 0) return false;
    memory.add(address, {bytes, static_cast<std::int16_t>(place), source}, bytes);
    return true;
  }

  Ledger ledger;
  DeviceMemory memory{ledger};
  std::uint16_t source = memory.source(MemoryKind::kDevice, "c10_cuda");
};

TEST_F(DeviceMemoryTest, CountsByDeviceAndSource) {
  const std::uint16_t pool = memory.source(MemoryKind::kPool, "c10_cuda");
  EXPECT_NE(pool, source) << "kinds are apart";
  EXPECT_EQ(memory.source(MemoryKind::kDevice, "c10_cuda"), source);
  allocate(0x1000, 100);
  allocate(0x2000, 50, 1);
  memory.hold(0, 7, kNeverFails);
  memory.add(0x3000, {7, 0, pool}, 7);
  memory.release(*memory.forget(0x1000));
  EXPECT_EQ(ledger.of(0).live(), 7);
  EXPECT_EQ(ledger.of(0).peak(), 107);
  EXPECT_EQ(ledger.of(1).live(), 50);
  const std::vector<SourceFigures> sources = memory.sources();
  ASSERT_EQ(sources.size(), 3U);
  EXPECT_EQ(sources[0].library, "c10_cuda");
  EXPECT_EQ(sources[0].live_bytes, 0);
  EXPECT_EQ(sources[0].peak_bytes, 100);
  EXPECT_EQ(sources[0].allocations, 1);
  EXPECT_EQ(sources[0].frees, 1);
  EXPECT_EQ(sources[1].kind, MemoryKind::kPool);
  EXPECT_EQ(sources[1].live_bytes, 7);
  EXPECT_EQ(sources[2].place, 1);
}

TEST_F(DeviceMemoryTest, ForgetsBeforeFree) {
  allocate(0x1000, 100);
  const auto block = memory.forget(0x1000);
  // CUDA gives the address to another thread before the call that freed it has returned.
  allocate(0x1000, 30);
  memory.release(*block);
  EXPECT_EQ(ledger.of(0).live(), 30);
  EXPECT_EQ(memory.forget(0x1000)->bytes, 30);
}

TEST_F(DeviceMemoryTest, AFailedFreeChangesNothing) {
  allocate(0x1000, 100);
  memory.put_back(0x1000, *memory.forget(0x1000));
  EXPECT_EQ(ledger.of(0).live(), 100);
  EXPECT_EQ(ledger.of(0).frees(), 0);
  EXPECT_EQ(memory.forget(0x1000)->bytes, 100);
}

TEST_F(DeviceMemoryTest, ABlockFreedUnseenMakesRoomForTheNextAtItsAddress) {
  allocate(0x1000, 100);
  allocate(0x1000, 60);
  EXPECT_EQ(ledger.of(0).live(), 60);
  EXPECT_EQ(ledger.of(0).peak(), 100) << "they were never alive at once";
  EXPECT_EQ(ledger.of(0).frees(), 1);
  EXPECT_EQ(memory.forget(0x1000)->bytes, 60);
}

TEST_F(DeviceMemoryTest, WhatDidNotComeNeverShows) {
  EXPECT_EQ(memory.hold(0, 1000, kNeverFails), 0);
  EXPECT_EQ(ledger.of(0).live(), 0);
  allocate(0x1000, 10);
  memory.cancel(0, 1000);
  EXPECT_EQ(ledger.of(0).peak(), 10);
  EXPECT_EQ(ledger.of(0).requests(), 2);
  EXPECT_EQ(ledger.of(0).allocations(), 1);
}

TEST_F(DeviceMemoryTest, RequestsThatFailOnPurposeAreNumbered) {
  std::vector<std::int64_t> numbers;
  const auto second_fails = [&](std::int64_t number) { return numbers.push_back(number), number == 2; };
  EXPECT_EQ(memory.hold(0, 8, second_fails), 0);
  EXPECT_EQ(memory.hold(0, 8, second_fails), 2);
  EXPECT_EQ(memory.hold(0, 8, second_fails), 0);
  EXPECT_EQ(numbers, (std::vector<std::int64_t>{1, 2, 3}));
  ledger.of(0).set_budget(16);
  EXPECT_EQ(memory.hold(0, 1, kNeverFails), 1) << "the second held nothing";
}

TEST_F(DeviceMemoryTest, AResetTakesOneDevicesBlocks) {
  allocate(0x1000, 100);
  allocate(0x2000, 50, 1);
  const PointerTable<Block>::Taken taken = memory.forget_all(0);
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(ledger.of(0).live(), 100) << "until it has happened";
  for (const auto& [address, block] : taken) memory.release(block);
  EXPECT_EQ(ledger.of(0).live(), 0);
  EXPECT_EQ(ledger.of(1).live(), 50);
}

TEST_F(DeviceMemoryTest, CountsSizesByPowersOfTwo) {
  std::uintptr_t address = 0;
  for (const std::int64_t bytes : {1, 512, 1023, 1024}) allocate(++address << 12, bytes);
  allocate(++address << 12, std::int64_t{1} << 60);
  const std::vector<std::int64_t> sizes = memory.sizes(0);
  EXPECT_EQ(sizes[0], 1);
  EXPECT_EQ(sizes[9], 2);
  EXPECT_EQ(sizes[10], 1);
  EXPECT_EQ(sizes[kSizeClasses - 1], 1) << "whatever is larger";
}

TEST_F(DeviceMemoryTest, SourcesBeyondTheLastAreOthers) {
  std::vector<std::uint16_t> numbers;
  for (int i = 0; i < 300; ++i) numbers.push_back(memory.source(MemoryKind::kDevice, "library" + std::to_string(i)));
  EXPECT_EQ(numbers.back(), kMaxSources - 1);
  memory.hold(0, 9, kNeverFails);
  memory.count({9, 0, numbers.back()}, 9);
  EXPECT_EQ(memory.sources().at(0).library, "others");
}

TEST_F(DeviceMemoryTest, AChildKeepsTheNumbersOfSources) {
  const std::uint16_t nccl = memory.source(MemoryKind::kDevice, "nccl");
  allocate(0x1000, 100);
  Ledger its_ledger;
  DeviceMemory childs(its_ledger, &memory);
  EXPECT_TRUE(childs.sources().empty());
  EXPECT_FALSE(childs.forget(0x1000).has_value());
  childs.hold(0, 5, kNeverFails);
  childs.count({5, 0, nccl}, 5);
  EXPECT_EQ(childs.sources().at(0).library, "nccl");
  EXPECT_EQ(childs.source(MemoryKind::kDevice, "nccl"), nccl);
}

// Eight threads under a budget that they often hit; a checker sees that it is never overrun. Also run under scripts/sanitize --thread.
TEST_F(DeviceMemoryTest, IsExactUnderEightThreads) {
  constexpr std::int64_t kBudget = 100'000;
  ledger.of(0).set_budget(kBudget);
  std::atomic<bool> done{false};
  std::atomic<std::int64_t> refused{0};
  std::thread checker([&] {
    while (!done) {
      EXPECT_LE(ledger.of(0).live(), kBudget);
      for (const SourceFigures& figures : memory.sources()) EXPECT_LE(figures.live_bytes, kBudget);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  std::atomic<std::int64_t> kept{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const std::uint16_t mine = memory.source(MemoryKind::kDevice, "library" + std::to_string(t % 3));
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<std::uintptr_t> held;
      for (std::uintptr_t i = 1; i < 20'000; ++i) {
        const std::int64_t bytes = 1 + random() % 4000;
        if (random() % 2 == 0 && !held.empty()) {
          memory.release(*memory.forget(held.back()));
          held.pop_back();
        } else if (memory.hold(0, bytes, kNeverFails) != 0) {
          ++refused;
        } else if (random() % 8 == 0) {
          memory.cancel(0, bytes);
        } else {
          held.push_back((i * 8 + static_cast<std::uintptr_t>(t)) << 9);
          memory.add(held.back(), {bytes, 0, mine}, bytes);
        }
      }
      for (const std::uintptr_t address : held) {
        const auto block = memory.forget(address);
        kept += block->bytes;
        memory.put_back(address, *block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  checker.join();

  EXPECT_GT(refused, 0);
  EXPECT_EQ(ledger.of(0).live(), kept);
  std::int64_t live = 0, allocations = 0, frees = 0;
  for (const SourceFigures& figures : memory.sources()) {
    live += figures.live_bytes;
    allocations += figures.allocations;
    frees += figures.frees;
  }
  EXPECT_EQ(live, kept);
  EXPECT_EQ(allocations, ledger.of(0).allocations());
  EXPECT_EQ(frees, ledger.of(0).frees());
  const std::int64_t left = kBudget - kept;
  EXPECT_EQ(memory.hold(0, left + 1, kNeverFails), 1);
  EXPECT_EQ(memory.hold(0, left, kNeverFails), 0) << "nothing stayed held";
}

}  // namespace
}  // namespace koila
