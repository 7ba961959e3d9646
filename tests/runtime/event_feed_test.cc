#include "runtime/event_feed.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>

namespace koila {
namespace {

using Told = std::function<void(const koila_event&)>;

void call(void* context, const koila_event* event) { (*static_cast<Told*>(context))(*event); }

FeedEvent event_of(int kind, std::int64_t step) {
  FeedEvent event;
  event.figures.kind = kind;
  event.figures.step = step;
  return event;
}

// Each test's own: its thread stays.
EventFeed& new_feed() { return *new EventFeed; }

TEST(EventFeed, TellsInOrderOnAThreadOfItsOwn) {
  EventFeed& feed = new_feed();
  std::vector<std::int64_t> steps;
  std::string said;
  std::thread::id thread;
  Told told = [&](const koila_event& event) {
    steps.push_back(event.step);
    said = std::string(event.op) + ", " + event.reason;
    thread = std::this_thread::get_id();
    EXPECT_EQ(event.size, sizeof(koila_event));
  };
  const auto number = feed.add(KOILA_EVENT_STEP | KOILA_EVENT_RESCUE, call, &told);
  ASSERT_NE(number, 0U);
  for (std::int64_t i = 0; i < 500; ++i) feed.post(event_of(KOILA_EVENT_STEP, i));
  FeedEvent last = event_of(KOILA_EVENT_RESCUE, 500);
  last.op = "aten::mm";
  last.reason = "because";
  feed.post(std::move(last));
  feed.post(event_of(KOILA_EVENT_REFUSAL, 501));  // none of its kinds
  feed.remove(number);
  ASSERT_EQ(steps.size(), 501U) << "what came before the removal is told";
  for (std::size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], static_cast<std::int64_t>(i));
  EXPECT_EQ(said, "aten::mm, because");
  EXPECT_NE(thread, std::this_thread::get_id());
  feed.post(event_of(KOILA_EVENT_STEP, 1));
  EXPECT_FALSE(feed.wants(KOILA_EVENT_STEP));
}

TEST(EventFeed, OneThatIsRemovedIsNotRunning) {
  EventFeed& feed = new_feed();
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> gone{false}, wrong{false};
    Told told = [&](const koila_event&) {
      if (gone) wrong = true;
      std::this_thread::yield();
      if (gone) wrong = true;
    };
    const auto number = feed.add(KOILA_EVENT_STEP, call, &told);
    std::thread poster([&] {
      for (int i = 0; i < 20; ++i) feed.post(event_of(KOILA_EVENT_STEP, i));
    });
    feed.remove(number);
    gone = true;
    poster.join();
    ASSERT_FALSE(wrong);
  }
}

TEST(EventFeed, MayRemoveItselfAndOthersWithin) {
  EventFeed& feed = new_feed();
  int first = 0, second = 0;
  std::uint64_t one = 0, two = 0;
  Told removes_both = [&](const koila_event&) {
    ++first;
    feed.remove(two);
    feed.remove(one);
  };
  Told counts = [&](const koila_event&) { ++second; };
  one = feed.add(KOILA_EVENT_STEP, call, &removes_both);
  two = feed.add(KOILA_EVENT_STEP, call, &counts);
  int witness = 0;
  Told watches = [&](const koila_event&) { ++witness; };
  const auto three = feed.add(KOILA_EVENT_STEP, call, &watches);
  for (int i = 0; i < 3; ++i) feed.post(event_of(KOILA_EVENT_STEP, i));
  feed.remove(three);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
  EXPECT_EQ(witness, 3);
}

TEST(EventFeed, WhatComesOfACallIsNoEvent) {
  EventFeed& feed = new_feed();
  int calls = 0, late = 0;
  Told counts_late = [&](const koila_event&) { ++late; };
  std::uint64_t added = 0;
  Told posts = [&](const koila_event&) {
    ++calls;
    EXPECT_FALSE(feed.wants(KOILA_EVENT_REFUSAL));
    if (feed.wants(KOILA_EVENT_REFUSAL)) feed.post(event_of(KOILA_EVENT_REFUSAL, 0));
    if (added == 0) added = feed.add(KOILA_EVENT_OUT_OF_MEMORY, call, &counts_late);
  };
  const auto number = feed.add(KOILA_EVENT_OUT_OF_MEMORY, call, &posts);
  feed.post(event_of(KOILA_EVENT_REFUSAL, 0));
  feed.remove(number);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(late, 0) << "that one came after the event";
  feed.post(event_of(KOILA_EVENT_REFUSAL, 0));
  feed.remove(added);
  EXPECT_EQ(late, 1);
}

TEST(EventFeed, OneThatThrowsIsCalledAgain) {
  EventFeed& feed = new_feed();
  int calls = 0;
  Told throws = [&](const koila_event&) {
    ++calls;
    throw std::runtime_error("no");
  };
  const auto number = feed.add(KOILA_EVENT_STEP, call, &throws);
  for (int i = 0; i < 2; ++i) feed.post(event_of(KOILA_EVENT_STEP, i));
  feed.remove(number);
  EXPECT_EQ(calls, 2);
}

TEST(EventFeed, WhoIsTooSlowHearsHowManyItLost) {
  EventFeed& feed = new_feed();
  std::promise<void> go_on, in_call;
  std::shared_future<void> gate = go_on.get_future().share();
  std::vector<koila_event> heard;
  Told slow = [&](const koila_event& event) {
    if (heard.empty()) in_call.set_value();
    heard.push_back(event);
    gate.wait();
  };
  const auto number = feed.add(KOILA_EVENT_STEP, call, &slow);
  feed.post(event_of(KOILA_EVENT_STEP, 0));
  in_call.get_future().wait();
  for (std::int64_t i = 1; i <= static_cast<std::int64_t>(kMaxWaitingEvents) + 7; ++i) feed.post(event_of(KOILA_EVENT_STEP, i));
  go_on.set_value();
  feed.remove(number);
  EXPECT_EQ(heard.size(), kMaxWaitingEvents + 1);
  EXPECT_EQ(heard.back().lost, 0);

  int lost = -1;
  Told after = [&](const koila_event& event) { lost = static_cast<int>(event.lost); };
  const auto next = feed.add(KOILA_EVENT_STEP, call, &after);
  feed.post(event_of(KOILA_EVENT_STEP, 0));
  feed.remove(next);
  EXPECT_EQ(lost, 7);
}

TEST(EventFeed, AfterTheEndNobodyIsCalledAndNobodyWaits) {
  EventFeed& feed = new_feed();
  int calls = 0;
  Told counts = [&](const koila_event&) { ++calls; };
  const auto number = feed.add(KOILA_EVENT_STEP, call, &counts);
  feed.stop();
  feed.post(event_of(KOILA_EVENT_STEP, 0));
  feed.remove(number);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(feed.add(KOILA_EVENT_STEP, call, &counts), 0U);
}

}  // namespace
}  // namespace koila
