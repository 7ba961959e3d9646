#include "runtime/state_lacks.h"

#include <gtest/gtest.h>

namespace koila {
namespace {

constexpr std::int64_t kMi = 1 << 20;

OomEvent ran_out(std::int64_t live, std::int64_t budget) {
  OomEvent event;
  event.outcome = KOILA_REFUSED;
  event.reason = "KOILA_LADDER leaves micro-batches (rung 1) out. The optimizer state does not fit. It was called at train.py:9 in main.";
  event.requested_bytes = kMi;
  event.live_bytes = live;
  event.budget_bytes = budget;
  return event;
}

TEST(StateLacks, SaysByHowMuch) {
  EXPECT_EQ(with_what_state_lacks(ran_out(58 * kMi, 60 * kMi), 10 * kMi, 3 * kMi),
            "KOILA_LADDER leaves micro-batches (rung 1) out. The optimizer state does not fit: for 10.0 MiB of parameters it comes to 10.0 MiB at least, of which 3.0 MiB "
            "were made; 5.0 MiB more than there is room for. It was called at train.py:9 in main.");
}

TEST(StateLacks, ASecondTensorForEachParameterDoublesIt) {
  const std::string reason = with_what_state_lacks(ran_out(60 * kMi, 60 * kMi), 10 * kMi, 10 * kMi);
  EXPECT_NE(reason.find("comes to 20.0 MiB at least, of which 10.0 MiB were made; 10.0 MiB more than there is room for."), std::string::npos) << reason;
}

TEST(StateLacks, WithoutABudgetTheRoomIsNotKnown) {
  const std::string reason = with_what_state_lacks(ran_out(60 * kMi, 0), 10 * kMi, 0);
  EXPECT_NE(reason.find("of which 0 B were made. It was"), std::string::npos) << reason;
}

TEST(StateLacks, LeavesOtherReasonsAlone) {
  OomEvent event;
  event.reason = "one row of the batch does not fit.";
  EXPECT_FALSE(is_about_state(event.reason));
  EXPECT_EQ(with_what_state_lacks(event, 10, 0), event.reason);
}

}  // namespace
}  // namespace koila
