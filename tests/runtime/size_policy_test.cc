#include "runtime/size_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

namespace koila {
namespace {

using Way = SizePolicy::Way;

SizePolicy model(std::int64_t batch, std::int64_t first) { return SizePolicy(batch, first, {Way::kModel, false, 0.03}); }

// A step whose need is a function of the rows at a time: the policy is asked, and told, as an adapter would do it. Says how the step went.
struct Outcome {
  std::int64_t rows;   // at its end
  std::int64_t tries;  // passes that ran out
};
struct Machine {
  std::function<std::int64_t(std::int64_t)> need;
  std::int64_t standing = 0;

  Outcome step(SizePolicy& policy, std::int64_t available) const {
    Outcome outcome{policy.begin(available), 0};
    while (need(outcome.rows) > available && outcome.rows > 1) {
      outcome.rows = policy.failed(outcome.rows);
      ++outcome.tries;
    }
    if (outcome.rows < policy.batch()) {
      policy.passed(outcome.rows, need(outcome.rows), standing);
      const std::int64_t last = policy.batch() % outcome.rows;
      if (last > 0) policy.passed(last, need(last), standing);
      if (!policy.knows_slope() && outcome.rows >= 4) policy.passed(outcome.rows / 4, need(outcome.rows / 4), standing);
    }
    policy.end(need(outcome.rows), 1);  // nothing outside of the passes
    return outcome;
  }
};

TEST(SizePolicy, TakesTheLargestThatFitsAfterOneStep) {
  const Machine machine{[](std::int64_t m) { return 10'000 + 700 * m; }, 6'000};
  SizePolicy policy = model(512, 256);
  EXPECT_EQ(machine.step(policy, 50'000).rows, 32);
  // 54 rows fit into 97% of it: ten passes, of 52 rows.
  const Outcome second = machine.step(policy, 50'000);
  EXPECT_EQ(second.tries, 0);
  EXPECT_EQ(second.rows, 52);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(machine.step(policy, 50'000).rows, 52);
}

TEST(SizePolicy, RowsComeBeforeBoundariesUpToAnEnough) {
  // 20000 bytes of boundaries in all; 10 rows are enough.
  const Machine machine{[](std::int64_t m) { return 1'000 + 500 * m; }, 500};
  const auto rows_at = [&](std::int64_t available) {
    SizePolicy policy = model(64, 32);
    for (int i = 0; i < 3; ++i) {
      policy.stages(20'000, 10);
      machine.step(policy, available);
    }
    return policy.rows();
  };
  EXPECT_EQ(rows_at(10'000), 10);  // 17 would fit, with no room for boundaries
  EXPECT_EQ(rows_at(20'000), 10);
  EXPECT_EQ(rows_at(30'000), 16);  // beside all boundaries
  EXPECT_LT(rows_at(5'000), 10);
  std::int64_t before = 0;
  for (std::int64_t available = 3'000; available < 30'000; available += 500) {
    EXPECT_GE(rows_at(available), before) << available;
    before = rows_at(available);
  }
}

TEST(SizePolicy, WithOneSizeKnownItErrsOnTheSafeSide) {
  SizePolicy policy = model(1000, 10);
  policy.begin(100'000);
  policy.passed(10, 5'000, 1'000);  // 400 bytes a row at most
  policy.end(0, 1);
  EXPECT_EQ(policy.need(20), 9'000);
  EXPECT_EQ(policy.begin(100'000), 200);  // 240 fit: five passes
}

TEST(SizePolicy, MakesPassesEven) {
  const Machine machine{[](std::int64_t m) { return 1'000 * m; }, 0};
  SizePolicy policy = model(100, 32);
  machine.step(policy, 62'000);
  EXPECT_EQ(machine.step(policy, 62'000).rows, 50);  // and not 60 and 40
}

TEST(SizePolicy, GrowsWhenMemoryReturnsAndRunsWholeWhenAllFits) {
  const Machine machine{[](std::int64_t m) { return 5'000 + 100 * m; }, 5'000};
  SizePolicy policy = model(64, 32);
  machine.step(policy, 6'000);
  EXPECT_LE(machine.step(policy, 6'000).rows, 8);
  EXPECT_EQ(machine.step(policy, 9'000).rows, 32);
  EXPECT_EQ(machine.step(policy, 20'000).rows, 64);
  EXPECT_LE(machine.step(policy, 7'000).rows, 16);
}

TEST(SizePolicy, ShrinksBeforeItFailsWhenAnotherTakesMemory) {
  const Machine machine{[](std::int64_t m) { return 5'000 + 100 * m; }, 5'000};
  SizePolicy policy = model(64, 32);
  machine.step(policy, 12'000);
  machine.step(policy, 12'000);
  const Outcome outcome = machine.step(policy, 6'000);
  EXPECT_EQ(outcome.tries, 0);
  EXPECT_LE(machine.need(outcome.rows), 6'000);
}

TEST(SizePolicy, KeepsASizeThatFitsWithoutTheMargin) {
  const Machine machine{[](std::int64_t m) { return 1'000 * m; }, 0};
  SizePolicy policy = model(64, 16);
  machine.step(policy, 34'000);
  EXPECT_EQ(machine.step(policy, 34'000).rows, 32);
  for (std::int64_t available : {32'100, 33'000, 32'000, 35'000, 32'500}) EXPECT_EQ(machine.step(policy, available).rows, 32);
  EXPECT_EQ(machine.step(policy, 31'999).rows, 22);
}

TEST(SizePolicy, DoesNotTryAgainWhatFailedInLikeConditions) {
  // A cliff that no line tells: above 20 rows a kernel wants a workspace.
  const Machine machine{[](std::int64_t m) { return 1'000 * m + (m > 20 ? 100'000 : 0); }, 0};
  SizePolicy policy = model(64, 16);
  std::int64_t tries = 0;
  for (int i = 0; i < 200; ++i) tries += machine.step(policy, 50'000).tries;
  EXPECT_LE(tries, 4);
  EXPECT_GE(policy.rows(), 8);
}

TEST(SizePolicy, ForgetsAFailureInTimeAndLessSoonEachTime) {
  SizePolicy policy = model(64, 32);
  const Machine machine{[](std::int64_t m) { return 1'000 * m; }, 0};
  machine.step(policy, 40'000);
  EXPECT_EQ(machine.step(policy, 40'000).rows, 32);
  std::vector<int> tried;
  for (int i = 0; i < 3000; ++i) {
    if (policy.begin(40'000) == 32) {
      policy.failed(32);
      tried.push_back(i);
    }
    policy.end(0, 1);
  }
  ASSERT_GE(tried.size(), 2u);
  EXPECT_LE(tried.size(), 4u);
  EXPECT_GE(tried[1] - tried[0], 256);
  EXPECT_GE(tried[2] - tried[1], 1024);
}

TEST(SizePolicy, TriesAreBoundedWhateverHappens) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t batch = 1 + random() % 2000;
    SizePolicy policy(batch, 1 + random() % batch, {random() % 2 ? Way::kModel : Way::kPow2, random() % 2 == 0, 0.03});
    for (int step = 0; step < 50; ++step) {
      const Machine machine{[&](std::int64_t m) { return static_cast<std::int64_t>(random() % 1'000'000) + m; }, static_cast<std::int64_t>(random() % 1000)};
      const Outcome outcome = machine.step(policy, random() % 1'000'000);
      EXPECT_GE(outcome.rows, 1);
      EXPECT_LE(outcome.rows, batch);
      EXPECT_LE(outcome.tries, 11);  // log2
    }
  }
}

TEST(SizePolicy, WithoutKnowledgeOfWhatIsAvailableASizeOnlyShrinks) {
  SizePolicy policy = model(64, 32);
  EXPECT_EQ(policy.begin(std::nullopt), 32);
  EXPECT_EQ(policy.failed(32), 16);
  policy.passed(16, 10, 0);
  policy.end(0, 1);
  EXPECT_EQ(policy.begin(std::nullopt), 16);
}

TEST(SizePolicy, RunsWholeWhereTheLimitIsGone) {
  SizePolicy policy = model(64, 32);
  EXPECT_LT((Machine{[](std::int64_t rows) { return 10 * rows; }}.step(policy, 300).rows), 64);
  EXPECT_EQ(policy.begin(std::nullopt), 64);
  EXPECT_EQ(policy.failed(64), 32);  // it had none, and ran out: what is available is not known
  policy.end(0, 1);
  EXPECT_EQ(policy.begin(std::nullopt), 32);
}

TEST(SizePolicy, PowersOfTwo) {
  const Machine machine{[](std::int64_t m) { return 1'000 * m; }, 0};
  SizePolicy policy(100, 64, {Way::kPow2, false, 0.03});
  machine.step(policy, 60'000);
  EXPECT_EQ(machine.step(policy, 60'000).rows, 32);
  EXPECT_EQ(machine.step(policy, 30'000).rows, 16);
  EXPECT_EQ(machine.step(policy, 70'000).rows, 64);
  EXPECT_EQ(machine.step(policy, 200'000).rows, 100);
}

TEST(SizePolicy, CountsWhatStepsNeedOutsideOfTheirPasses) {
  SizePolicy policy = model(512, 64);
  const auto pass = [](std::int64_t m) { return 1'000 + 100 * m; };
  const auto step = [](std::int64_t m) { return 20'000 + 150 * m; };
  std::vector<std::int64_t> used;
  for (int i = 0; i < 6; ++i) {
    const std::int64_t rows = policy.begin(60'000);
    used.push_back(rows);
    EXPECT_LE(step(rows), 60'000) << "step " << i;
    policy.passed(rows, pass(rows), 1'000);
    policy.passed(rows / 4, pass(rows / 4), 1'000);
    policy.end(step(rows), 1);
  }
  EXPECT_EQ(used.back(), 171);  // 254 fit with the margin
}

TEST(SizePolicy, SeveralPartsOfAStepMayFailAtTheSameSize) {
  SizePolicy policy = model(512, 256);
  policy.begin(1'000);
  for (int part = 0; part < 5; ++part) EXPECT_EQ(policy.failed(256), 128);
}

TEST(SizePolicy, ASizeThatWasAskedForOnlyEverShrinks) {
  SizePolicy policy(100, 10, {Way::kFixed, true, 0.03});
  EXPECT_EQ(policy.begin(1'000'000'000), 10);
  policy.passed(10, 10, 0);
  policy.end(0, 1);
  EXPECT_EQ(policy.begin(1'000'000'000), 10);
  EXPECT_EQ(policy.failed(10), 5);
  policy.end(0, 1);
  EXPECT_EQ(policy.begin(1'000'000'000), 5);
}

TEST(SizePolicy, AStepThatWasRefusedBeginsWholeTheNextTime) {
  SizePolicy policy = model(64, 32);
  policy.begin(1000);
  policy.failed(64);
  policy.end(500, 1);
  EXPECT_LT(policy.begin(100), 64);
  policy.refused();
  EXPECT_EQ(policy.begin(100), 64);
  EXPECT_EQ(policy.begin(100), 64) << "as long as it comes through whole";
  policy.failed(64);
  policy.refused();
  EXPECT_LT(policy.begin(100), 64) << "refused again: the other way next";
  policy.came_through();
  EXPECT_LT(policy.begin(100), 64);
}

TEST(SizePolicy, FindsTheFastestSizeAndStaysThere) {
  SizePolicy policy(1024, 512, {Way::kModel, true, 0.03});
  const auto seconds = [](std::int64_t m) { return 1.0 + std::abs(static_cast<double>(m) - 128) / 200; };
  std::vector<std::int64_t> used;
  for (int i = 0; i < 40; ++i) {
    const std::int64_t rows = policy.begin(700'000);
    used.push_back(rows);
    policy.passed(rows, 1'000 * rows, 0);
    policy.passed(rows / 4, 250 * rows, 0);
    policy.end(0, seconds(rows));
  }
  EXPECT_EQ(used.front(), 512);
  EXPECT_EQ(std::count(used.begin() + 12, used.end(), 128), 28);
  // Fewer rows are the fastest wherever memory allows; else what it allows.
  EXPECT_EQ(policy.begin(100'000), 94);
}

TEST(SizePolicy, SecondsChangeNoSizeUnlessAskedFor) {
  const Machine machine{[](std::int64_t m) { return 10'000 + 700 * m; }, 6'000};
  std::mt19937_64 random(3);
  const auto sizes = [&](const std::function<double(std::int64_t rows)>& seconds, const std::vector<SizePolicy::Observation>& known) {
    std::vector<std::int64_t> used;
    SizePolicy policy = model(512, 256);
    policy.restore(known, {}, {});
    for (const std::int64_t available : {50'000, 50'000, 50'000, 20'000, 90'000, 50'000, 50'000, 50'000, 50'000, 400'000, 50'000, 50'000, 50'000, 50'000}) {
      const std::int64_t rows = policy.begin(available);
      used.push_back(rows);
      policy.passed(rows, machine.need(rows), machine.standing);
      policy.end(machine.need(rows), seconds(rows));
    }
    EXPECT_FALSE(policy.timed());
    return used;
  };
  const auto flat = sizes([](std::int64_t) { return 1.0; }, {});
  EXPECT_EQ(sizes([](std::int64_t rows) { return static_cast<double>(rows); }, {}), flat);
  EXPECT_EQ(sizes([](std::int64_t rows) { return 1.0 / static_cast<double>(rows); }, {}), flat);
  EXPECT_EQ(sizes([&](std::int64_t) { return static_cast<double>(random() % 1000); }, {}), flat);
  // Nor do those of another process.
  const auto known = sizes([](std::int64_t) { return 1.0; }, {{26, machine.need(26), 0}, {52, machine.need(52), 0}});
  EXPECT_EQ(sizes([](std::int64_t) { return 1.0; }, {{26, machine.need(26), 0.001}, {52, machine.need(52), 9}}), known);
}

TEST(SizePolicy, SecondsOfAnotherProcessAreHandedOn) {
  SizePolicy policy = model(512, 256);
  policy.restore({{32, 30'000, 0.5}}, {}, {});
  policy.begin(50'000);
  policy.passed(16, 20'000, 0);
  policy.end(20'000, 7);
  for (const SizePolicy::Observation& o : policy.observations()) EXPECT_EQ(o.seconds, o.rows == 32 ? 0.5 : 0) << o.rows;
}

TEST(SizePolicy, WhatWasLearnedCanBeHandedOn) {
  const Machine machine{[](std::int64_t m) { return 10'000 + 700 * m; }, 6'000};
  SizePolicy first = model(512, 256);
  machine.step(first, 50'000);
  SizePolicy second = model(512, 256);
  machine.step(first, 50'000);
  second.restore(first.observations(), first.failures(), first.choices());
  EXPECT_EQ(machine.step(second, 50'000).rows, 52);
}

}  // namespace
}  // namespace koila
