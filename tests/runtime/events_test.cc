#include "runtime/events.h"

#include <gtest/gtest.h>

#include <string>

namespace koila {
namespace {

OomEvent rescue(const std::string& op, std::int64_t bytes) {
  OomEvent event;
  event.op = op;
  event.requested_bytes = bytes;
  event.micro_batch = 16;
  event.batch = 64;
  return event;
}

TEST(Events, LikeOnesAreCountedAndNotListed) {
  Events events;
  EXPECT_TRUE(events.add_oom(rescue("aten::linear", 100)));
  EXPECT_FALSE(events.add_oom(rescue("aten::linear", 100)));
  EXPECT_TRUE(events.add_oom(rescue("aten::linear", 200)));
  EXPECT_TRUE(events.add_oom(rescue("aten::relu", 100)));
  OomEvent refusal = rescue("aten::linear", 100);
  refusal.outcome = KOILA_REFUSED;
  EXPECT_TRUE(events.add_oom(refusal));

  const EventList list = events.snapshot();
  ASSERT_EQ(list.oom_events.size(), 4U);
  EXPECT_EQ(list.oom_events[0].count, 2);
  EXPECT_EQ(list.rescues, 4);
  EXPECT_EQ(list.refusals, 1);
}

TEST(Events, ListsAreBoundedAndTotalsAreNot) {
  Events events;
  constexpr int kMany = 5000;
  for (int i = 0; i < kMany; ++i) {
    events.add_oom(rescue("op", i));
    events.add_region({.device = KOILA_CPU, .batch = 64, .micro_batch = i, .runs = 4, .forward_only = 1, .halvings = 1, .operators = 9, .seconds = 0.5});
    events.add_full_batch("op" + std::to_string(i), 10);
    events.add_note("note " + std::to_string(i));
    events.add_step();
  }
  const EventList list = events.snapshot();
  EXPECT_EQ(list.oom_events.size(), kMaxOomEvents);
  EXPECT_EQ(list.regions.size(), kMaxRegions);
  EXPECT_EQ(list.full_batch.size(), kMaxFullBatchOps);
  EXPECT_EQ(list.notes.size(), kMaxNotes);
  EXPECT_EQ(list.rescues, kMany);
  EXPECT_EQ(list.steps, kMany);
  EXPECT_EQ(list.region_totals.count, kMany);
  EXPECT_EQ(list.region_totals.runs, 4 * kMany);
  EXPECT_DOUBLE_EQ(list.region_totals.seconds, 0.5 * kMany);
  EXPECT_EQ(list.last_region.micro_batch, kMany - 1);
}

TEST(Events, AStepHasItsOwnRescuesAndRegions) {
  Events events;
  events.add_oom(rescue("aten::linear", 1));
  events.add_region({.device = KOILA_CPU, .batch = 64, .micro_batch = 16, .runs = 4, .forward_only = 0, .halvings = 0, .operators = 1, .seconds = 0});
  const EndedStep first = events.add_step();
  EXPECT_EQ(first.number, 1);
  EXPECT_EQ(first.rescues, 1);
  EXPECT_EQ(first.batch, 64);
  EXPECT_EQ(first.micro_batch, 16);
  const EndedStep second = events.add_step();
  EXPECT_EQ(second.number, 2);
  EXPECT_EQ(second.rescues, 0);
  EXPECT_EQ(second.batch, 0) << "nothing of it was split";
  events.add_oom(rescue("aten::linear", 2));
  EXPECT_EQ(events.snapshot().oom_events.at(0).step, 0);
  EXPECT_EQ(events.snapshot().oom_events.at(1).step, 2);
}

TEST(Events, FullBatchKeepsTheLargestCall) {
  Events events;
  events.add_full_batch("aten::sort", 10);
  events.add_full_batch("aten::sort", 30);
  events.add_full_batch("aten::sort", 20);
  const EventList list = events.snapshot();
  EXPECT_EQ(list.full_batch.at("aten::sort").count, 3);
  EXPECT_EQ(list.full_batch.at("aten::sort").bytes, 30);
}

TEST(Events, NotesAreKeptOnce) {
  Events events;
  events.add_note("a");
  events.add_note("b");
  events.add_note("a");
  EXPECT_EQ(events.snapshot().notes, (std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace koila
