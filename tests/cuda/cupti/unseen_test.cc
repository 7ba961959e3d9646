#include "shim/cupti/unseen.h"

#include <gtest/gtest.h>

#include "runtime/abi.h"

namespace koila::cupti {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

std::int64_t live(const Unseen& unseen, int place, const std::string& library) {
  const auto found = unseen.figures().find({place, library});
  return found == unseen.figures().end() ? 0 : found->second.live_bytes;
}

TEST(CuptiUnseen, CountsByPlaceAndLibrary) {
  Unseen unseen;
  unseen.allocated(0x1000, 4 * kMiB, 0, "cublas", false);
  unseen.allocated(0x2000, 8 * kMiB, 0, "cublas", false);
  unseen.allocated(0x3000, 1 * kMiB, 1, "", false);
  unseen.allocated(0x4000, 2 * kMiB, KOILA_PINNED, "nccl", false);
  EXPECT_EQ(live(unseen, 0, "cublas"), 12 * kMiB);
  EXPECT_EQ(unseen.describe(),
            "by CUPTI: 2.0 MiB on pinned not seen by the hooks: nccl 2.0 MiB; 12.0 MiB on cuda:0 not seen by the hooks: cublas 12.0 MiB; "
            "1.0 MiB on cuda:1 not seen by the hooks: unknown 1.0 MiB");
  unseen.released(0x1000);
  EXPECT_EQ(live(unseen, 0, "cublas"), 8 * kMiB);
  unseen.released(0x9999);  // allocated before CUPTI was asked
  EXPECT_EQ(live(unseen, 0, "cublas"), 8 * kMiB);
}

TEST(CuptiUnseen, WhatAHookSawIsNone) {
  Unseen unseen;
  unseen.seen(0x1000);
  unseen.allocated(0x1000, kMiB, 0, "c10_cuda", false);  // the hook was first
  unseen.allocated(0x2000, kMiB, 0, "c10_cuda", false);
  unseen.seen(0x2000);  // the report was first
  unseen.allocated(0x3000, kMiB, 0, "koila", true);  // a hook's, which has no address to tell
  EXPECT_EQ(live(unseen, 0, "c10_cuda"), 0);
  EXPECT_EQ(unseen.describe(), "by CUPTI: no memory that the hooks do not see");
}

TEST(CuptiUnseen, AnAddressUsedAgainIsJudgedAgain) {
  Unseen unseen;
  unseen.seen(0x1000);
  unseen.allocated(0x1000, kMiB, 0, "koila", true);
  unseen.released(0x1000);
  unseen.allocated(0x1000, 2 * kMiB, 0, "cudnn", false);
  EXPECT_EQ(live(unseen, 0, "cudnn"), 2 * kMiB);
  unseen.allocated(0x1000, 3 * kMiB, 0, "cudnn", false);  // the release between was lost
  EXPECT_EQ(live(unseen, 0, "cudnn"), 3 * kMiB);
}

TEST(CuptiUnseen, SaysWhenNothingWasReported) { EXPECT_EQ(Unseen().describe(), "by CUPTI: nothing was reported"); }

}  // namespace
}  // namespace koila::cupti
