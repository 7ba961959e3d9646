#include "runtime/findings.h"

#include <gtest/gtest.h>

namespace koila {
namespace {

TEST(Findings, CountsAddUpAndOfBytesTheMostIsKept) {
  Findings findings;
  for (const std::int64_t value : {3, 7, 5}) {
    findings.add_fact(KOILA_FACT_AUTOCAST, 1);
    findings.add_fact(KOILA_FACT_FOREACH_BYTES, value);
  }
  EXPECT_EQ(findings.facts().autocast, 3);
  EXPECT_EQ(findings.facts().foreach_bytes, 7);
}

TEST(Findings, EveryFactHasAPlace) {
  for (int fact = 0; fact < KOILA_FACTS; ++fact) {
    Findings findings;
    findings.add_fact(fact, 9);
    const ProgramFacts f = findings.facts();
    EXPECT_EQ(f.autocast + f.half_parameters_bytes + f.checkpoints + f.kept_gradients + f.kept_gradients_bytes + f.graph_in_evaluation +
                  f.graph_in_evaluation_bytes + f.foreach_bytes + f.fused_optimizer + f.expandable_segments + f.fragmented_bytes,
              9)
        << fact;
  }
  Findings findings;
  findings.add_fact(KOILA_FACTS, 9);  // of another build
  findings.add_fact(-1, 9);
}

Leak leak(const char* where, std::int64_t bytes, const char* holder = "") {
  Leak leak;
  leak.where = where;
  leak.bytes = bytes;
  leak.holder = holder;
  return leak;
}

TEST(Findings, ALaterLookAtALeakTakesTheEarliersPlace) {
  Findings findings;
  findings.add_leak(leak("a", 10, "a list"));
  findings.add_leak(leak("b", 20));
  findings.add_leak(leak("a", 30));
  ASSERT_EQ(findings.leaks().size(), 2U);
  EXPECT_EQ(findings.leaks()[0].where, "a");
  EXPECT_EQ(findings.leaks()[0].bytes, 30);
  EXPECT_EQ(findings.leaks()[0].holder, "a list") << "known once";
}

TEST(Findings, WhatHasStoppedAddingUpIsTakenOff) {
  Findings findings;
  findings.add_leak(leak("a", 10));
  findings.add_leak(leak("a", 0));
  EXPECT_TRUE(findings.leaks().empty());
}

TEST(Findings, OfManyLeaksTheLargestStay) {
  Findings findings;
  for (int i = 1; i <= 100; ++i) findings.add_leak(leak(std::to_string(i).c_str(), i));
  ASSERT_EQ(findings.leaks().size(), kMaxLeaks);
  EXPECT_EQ(findings.leaks().front().bytes, 100);
  EXPECT_EQ(findings.leaks().back().bytes, 81);
}

}  // namespace
}  // namespace koila
