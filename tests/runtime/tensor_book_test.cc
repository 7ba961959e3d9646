#include "runtime/tensor_book.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

namespace koila {
namespace {

koila_origin from(koila_when when, std::uint16_t op = 0) { return {static_cast<std::uint8_t>(when), op, 0}; }

std::int64_t sum(const CategoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

TEST(TensorBook, CountsWhatIsAliveByWhatItIsFor) {
  TensorBook book;
  book.add(KOILA_CPU, 0x1000, 100, from(KOILA_SETUP));
  book.add(KOILA_CPU, 0x2000, 10, from(KOILA_IN_FORWARD));
  book.add(0, 0x3000, 7, from(KOILA_BEFORE_GRAPH));
  EXPECT_EQ(book.live(KOILA_CPU)[KOILA_OTHER], 100);
  EXPECT_EQ(book.live(KOILA_CPU)[KOILA_ACTIVATIONS], 10);
  EXPECT_EQ(book.live(0)[KOILA_INPUTS], 7);
  book.remove(KOILA_CPU, 0x2000);
  book.remove(KOILA_CPU, 0x2000);
  book.remove(KOILA_CPU, 0x9000);
  EXPECT_EQ(sum(book.live(KOILA_CPU)), 100);
}

TEST(TensorBook, LeavesOutWhatIsKnownAndPlacesThatHaveNoTensors) {
  TensorBook book;
  book.add(KOILA_CPU, 0x1000, 100, from(KOILA_SETUP));
  book.add(KOILA_CPU, 0x1000, 50, from(KOILA_SETUP));
  book.add(KOILA_PINNED, 0x2000, 50, from(KOILA_SETUP));
  book.add(KOILA_CUDA_DEVICES, 0x3000, 50, from(KOILA_SETUP));
  EXPECT_EQ(sum(book.live(KOILA_CPU)), 100);
  EXPECT_EQ(book.blocks().size(), 1U);
}

TEST(TensorBook, WhatABackwardPassMakesInTheSizeOfAParameterIsAGradient) {
  TensorBook book;
  book.add(KOILA_CPU, 0x1000, 100, from(KOILA_SETUP));
  book.add(KOILA_CPU, 0x2000, 100, from(KOILA_IN_BACKWARD));
  EXPECT_EQ(book.live(KOILA_CPU)[KOILA_WORKSPACE], 100) << "nothing is known of parameters yet";
  book.set_category(0x1000, KOILA_PARAMETERS);
  book.add(KOILA_CPU, 0x3000, 100, from(KOILA_IN_BACKWARD));
  book.add(KOILA_CPU, 0x4000, 101, from(KOILA_IN_BACKWARD));
  const CategoryBytes live = book.live(KOILA_CPU);
  EXPECT_EQ(live[KOILA_PARAMETERS], 100);
  EXPECT_EQ(live[KOILA_GRADIENTS], 100);
  EXPECT_EQ(live[KOILA_WORKSPACE], 201);
}

TEST(TensorBook, WhatAnOptimizerLeavesBehindIsState) {
  TensorBook book;
  book.add(KOILA_CPU, 0x1000, 100, from(KOILA_IN_OPTIMIZER));
  book.add(KOILA_CPU, 0x2000, 30, from(KOILA_IN_OPTIMIZER));
  book.remove(KOILA_CPU, 0x2000);
  EXPECT_EQ(book.live(KOILA_CPU)[KOILA_WORKSPACE], 100);
  book.begin_backward();
  EXPECT_EQ(book.live(KOILA_CPU)[KOILA_OPTIMIZER_STATE], 100);
  EXPECT_EQ(book.live(KOILA_CPU)[KOILA_WORKSPACE], 0);
}

TEST(TensorBook, WithoutAWordOfAnOptimizerTheSizeTells) {
  TensorBook book;
  book.add(KOILA_CPU, 0x1000, 100, from(KOILA_SETUP));
  book.set_category(0x1000, KOILA_PARAMETERS);
  book.add(KOILA_CPU, 0x2000, 100, from(KOILA_WITHOUT_GRAPH));
  book.add(KOILA_CPU, 0x3000, 64, from(KOILA_WITHOUT_GRAPH));
  book.begin_backward();
  EXPECT_EQ(book.live(KOILA_CPU)[KOILA_OPTIMIZER_STATE], 100);
  EXPECT_EQ(book.live(KOILA_CPU)[KOILA_OTHER], 64);
}

TEST(TensorBook, KnowsWhatWasAliveAtThePeak) {
  TensorBook book;
  const auto linear = static_cast<std::uint16_t>(book.ops().number("aten::linear"));
  book.add(KOILA_CPU, 0x1000, 100, from(KOILA_SETUP));
  book.end_step();
  book.add(KOILA_CPU, 0x2000, 400, from(KOILA_IN_FORWARD, linear));
  book.add(KOILA_CPU, 0x3000, 500, from(KOILA_IN_FORWARD, linear));
  book.remove(KOILA_CPU, 0x2000);
  book.add(KOILA_CPU, 0x4000, 50, from(KOILA_IN_BACKWARD));
  const TensorBook::Peak peak = book.peak(KOILA_CPU);
  EXPECT_EQ(peak.bytes, 1000);
  EXPECT_EQ(peak.step, 1);
  EXPECT_EQ(peak.by_category[KOILA_OTHER], 100);
  EXPECT_EQ(peak.by_category[KOILA_ACTIVATIONS], 900);
  EXPECT_EQ(peak.by_category[KOILA_WORKSPACE], 0);
  ASSERT_EQ(peak.holders.size(), 2U);
  EXPECT_EQ(peak.holders[0].op, "aten::linear");
  EXPECT_EQ(peak.holders[0].bytes, 900);
  EXPECT_EQ(peak.holders[0].count, 2);
  EXPECT_EQ(peak.holders[0].step, 1);
  EXPECT_EQ(peak.holders[1].bytes, 100);
}

TEST(TensorBook, AsksAtThePeakItselfWhenNothingWasFreedSince) {
  TensorBook book;
  book.add(KOILA_CPU, 0x1000, 100, from(KOILA_SETUP));
  ASSERT_EQ(book.peak(KOILA_CPU).holders.size(), 1U);
}

// The first step's peak is seen before anything is known of parameters.
TEST(TensorBook, WhatIsLearntLaterMovesInThePeakToo) {
  TensorBook book;
  book.add(KOILA_CPU, 0x1000, 500, from(KOILA_SETUP));
  book.add(KOILA_CPU, 0x1100, 40, from(KOILA_SETUP));
  book.add(KOILA_CPU, 0x2000, 500, from(KOILA_IN_FORWARD));
  EXPECT_EQ(book.peak(KOILA_CPU).by_category[KOILA_OTHER], 540);
  book.remove(KOILA_CPU, 0x2000);
  book.add(KOILA_CPU, 0x3000, 60, from(KOILA_SETUP));
  book.set_category(0x1000, KOILA_PARAMETERS);
  book.set_category(0x3000, KOILA_PARAMETERS);
  const TensorBook::Peak peak = book.peak(KOILA_CPU);
  EXPECT_EQ(peak.bytes, 1040);
  EXPECT_EQ(peak.by_category[KOILA_PARAMETERS], 500) << "the last came after the peak";
  EXPECT_EQ(peak.by_category[KOILA_OTHER], 40);
  ASSERT_EQ(peak.holders.size(), 3U);
  EXPECT_EQ(peak.holders[1].category, KOILA_PARAMETERS);
  EXPECT_EQ(peak.holders[1].bytes, 500);
  EXPECT_EQ(peak.holders[1].count, 1);
  EXPECT_EQ(peak.holders[2].bytes, 40);
}

TEST(TensorBook, TheFirstBatchIsAnInputAndTheDataSetIsNot) {
  TensorBook book;
  book.add(KOILA_CPU, 0x1000, 300, from(KOILA_SETUP));
  book.add(KOILA_CPU, 0x2000, 20, from(KOILA_SETUP));
  book.add(KOILA_CPU, 0x3000, 500, from(KOILA_IN_FORWARD));
  book.begin_backward();
  book.remove(KOILA_CPU, 0x3000);
  book.remove(KOILA_CPU, 0x2000);
  book.begin_backward();
  book.remove(KOILA_CPU, 0x1000);
  const TensorBook::Peak peak = book.peak(KOILA_CPU);
  EXPECT_EQ(peak.by_category[KOILA_INPUTS], 20);
  EXPECT_EQ(peak.by_category[KOILA_OTHER], 300);
}

TEST(TensorBook, KeepsTheLatestOfATrace) {
  TensorBook none;
  none.add(KOILA_CPU, 0x1000, 1, from(KOILA_SETUP));
  EXPECT_TRUE(none.trace(std::chrono::steady_clock::now()).empty());

  TensorBook book(/*trace=*/true);
  const auto started = std::chrono::steady_clock::now();
  for (std::uintptr_t i = 1; i <= kMaxTrace + 3; ++i) book.add(KOILA_CPU, i * 64, 8, from(KOILA_SETUP));
  book.remove(KOILA_CPU, 64);
  const std::vector<TraceEvent> trace = book.trace(started);
  ASSERT_EQ(trace.size(), kMaxTrace);
  EXPECT_EQ(trace.front().address, 5U * 64);
  EXPECT_FALSE(trace.back().alloc);
  EXPECT_EQ(trace.back().address, 64U);
  EXPECT_GE(trace.front().microseconds, 0);
}

TEST(TensorBook, AChildKeepsTheNamesAndNothingElse) {
  TensorBook parent;
  const auto number = parent.ops().number("aten::mm");
  parent.add(KOILA_CPU, 0x1000, 1, from(KOILA_SETUP));
  TensorBook child(false, &parent);
  EXPECT_EQ(child.ops().name(number), "aten::mm");
  EXPECT_EQ(child.ops().number("aten::mm"), number);
  EXPECT_EQ(child.ops().number("aten::add"), number + 1);
  EXPECT_TRUE(child.blocks().empty());
}

TEST(Names, AFullTableGivesTheNumberOfNone) {
  Names names(2);
  EXPECT_EQ(names.number("a"), 1U);
  EXPECT_EQ(names.number("b"), 2U);
  EXPECT_EQ(names.number("c"), 0U);
  EXPECT_EQ(names.number("a"), 1U);
  EXPECT_EQ(names.name(0), "");
  EXPECT_EQ(names.name(3), "");
}

// Of a training loop whose second step has state and gradients that the first had not: its peak is a little above that of the first.
TEST(TensorBook, CategoriesAndHoldersAreOfOneMoment) {
  TensorBook book;
  const auto add = [&](std::uintptr_t address, std::int64_t bytes, koila_when when) { book.add(KOILA_CPU, address, bytes, from(when)); };
  add(0x1000, 1000, KOILA_SETUP);
  for (std::uintptr_t i = 0; i < 200; ++i) add(0x10000 + i, 1000, KOILA_IN_FORWARD);
  for (std::uintptr_t i = 0; i < 200; ++i) book.remove(KOILA_CPU, 0x10000 + i);
  add(0x2000, 2000, KOILA_IN_OPTIMIZER);
  book.begin_backward();
  for (std::uintptr_t i = 0; i < 199; ++i) add(0x20000 + i, 1000, KOILA_IN_FORWARD);
  for (std::uintptr_t i = 0; i < 30; ++i) {
    book.remove(KOILA_CPU, 0x20000 + i);
    add(0x30000 + i, 10, KOILA_IN_BACKWARD);
  }
  const TensorBook::Peak peak = book.peak(KOILA_CPU);
  EXPECT_EQ(peak.bytes, 202'000);
  CategoryBytes of_holders = {};
  for (const Holder& holder : peak.holders) of_holders[static_cast<std::size_t>(holder.category)] += holder.bytes;
  EXPECT_EQ(of_holders, peak.by_category);
  EXPECT_EQ(peak.by_category[KOILA_OPTIMIZER_STATE], 2000);
  EXPECT_EQ(peak.by_category[KOILA_ACTIVATIONS], 199'000);
}

TEST(TensorBook, AHigherPeakForgetsWhatWentAfterTheLast) {
  TensorBook book;
  book.add(KOILA_CPU, 0x1000, 100, from(KOILA_IN_FORWARD));
  book.remove(KOILA_CPU, 0x1000);
  book.add(KOILA_CPU, 0x2000, 101, from(KOILA_IN_FORWARD));
  const TensorBook::Peak peak = book.peak(KOILA_CPU);
  ASSERT_EQ(peak.holders.size(), 1U);
  EXPECT_EQ(peak.holders[0].bytes, 101);
}

TEST(TensorBook, AddsUpWhateverThreadsDo) {
  TensorBook book;
  std::vector<std::thread> threads;
  for (std::uintptr_t t = 0; t < 4; ++t) {
    threads.emplace_back([&book, t] {
      for (std::uintptr_t i = 1; i <= 20'000; ++i) {
        const std::uintptr_t address = (t << 40) + i * 64;
        book.add(KOILA_CPU, address, 8, from(KOILA_IN_OPTIMIZER));
        if (i % 3 == 0) book.set_category(address, KOILA_GRADIENTS);
        if (i % 100 == 0) book.begin_backward();
        if (i % 2 == 0) book.remove(KOILA_CPU, address);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  book.begin_backward();
  EXPECT_EQ(sum(book.live(KOILA_CPU)), 4 * 10'000 * 8);
  EXPECT_EQ(book.live(KOILA_CPU)[KOILA_WORKSPACE], 0);
}

}  // namespace
}  // namespace koila
