#include "runtime/memory_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace koila {
namespace {

constexpr std::int64_t kMi = 1 << 20;

// A machine of 1024 MiB in a folder, where the process holds 24 MiB.
class FakeMachine : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / ("koila_machine_" + std::to_string(getpid()));
    put("proc/meminfo", "MemFree:         1 kB\nMemTotal:        1048576 kB\n");
    put("proc/self/status", "Name:\tpython\nVmRSS:\t   24576 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  MemoryFacts facts() const { return read_memory_facts(root_.string()); }

  std::filesystem::path root_;
};

TEST_F(FakeMachine, WithoutCgroupsIsAllMemory) {
  EXPECT_EQ(facts().limit(), 1024 * kMi);
  EXPECT_EQ(facts().cgroup_limit, 0);
  EXPECT_EQ(facts().resident, 24 * kMi);
}

TEST_F(FakeMachine, CgroupV2LimitOfTheOwnGroup) {
  put("proc/self/cgroup", "0::/user.slice/job\n");
  put("sys/fs/cgroup/user.slice/job/memory.max", std::to_string(300 * kMi) + "\n");
  EXPECT_EQ(facts().limit(), 300 * kMi);
}

TEST_F(FakeMachine, CgroupV2LowestOnTheWayUp) {
  put("proc/self/cgroup", "0::/user.slice/job\n");
  put("sys/fs/cgroup/user.slice/job/memory.max", "max\n");
  put("sys/fs/cgroup/user.slice/memory.max", std::to_string(200 * kMi) + "\n");
  put("sys/fs/cgroup/memory.max", std::to_string(400 * kMi) + "\n");
  EXPECT_EQ(facts().limit(), 200 * kMi);
}

TEST_F(FakeMachine, CgroupV2UnlimitedIsAllMemory) {
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(facts().limit(), 1024 * kMi);
}

TEST_F(FakeMachine, CgroupPathOfTheHostFallsBackToTheMount) {
  put("proc/self/cgroup", "0::/docker/0123456789ab\n");
  put("sys/fs/cgroup/memory.max", std::to_string(100 * kMi) + "\n");
  EXPECT_EQ(facts().limit(), 100 * kMi);
}

TEST_F(FakeMachine, CgroupV1AmongOtherControllers) {
  put("proc/self/cgroup", "9:name=systemd:/\n5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n");
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(150 * kMi) + "\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(facts().limit(), 150 * kMi);
}

TEST_F(FakeMachine, CgroupV1Unlimited) {
  put("proc/self/cgroup", "4:memory:/\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(facts().cgroup_limit, 0);
  EXPECT_EQ(facts().limit(), 1024 * kMi);
}

TEST_F(FakeMachine, BothVersionsTogetherTakeTheLower) {
  put("proc/self/cgroup", "4:memory:/a\n0::/b\n");
  put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", std::to_string(500 * kMi));
  put("sys/fs/cgroup/unified/b/memory.max", std::to_string(250 * kMi));
  EXPECT_EQ(facts().limit(), 250 * kMi);
}

TEST_F(FakeMachine, LimitAboveTheMachineIsTheMachine) {
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", std::to_string(4096 * kMi));
  EXPECT_EQ(facts().limit(), 1024 * kMi);
}

TEST_F(FakeMachine, BudgetsResolve) {
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", std::to_string(224 * kMi));
  using Kind = MemoryBudget::Kind;
  EXPECT_EQ(resolve_budget({Kind::kNone, 0, 0}, facts()), std::nullopt);
  EXPECT_EQ(resolve_budget({Kind::kBytes, 7, 0}, facts()), 7);
  EXPECT_EQ(resolve_budget({Kind::kShare, 0, 0.5}, facts()), 112 * kMi);
  EXPECT_EQ(resolve_budget({Kind::kAuto, 0, 0}, facts()), 357 * kMi / 2) << "nine tenths of 224 MiB less the 24 MiB in use, in steps of 1.75 MiB";
  MemoryFacts later = facts();
  later.resident += 200 << 10;
  EXPECT_EQ(resolve_budget({Kind::kAuto, 0, 0}, later), 357 * kMi / 2) << "a few pages more in use are no other budget";
  later.resident = later.limit() - kMi;
  EXPECT_EQ(resolve_budget({Kind::kAuto, 0, 0}, later), 9 * kMi / 10) << "what is left is left, though it is no whole step";
}

TEST(MemoryLimit, NothingToReadIsNoBudget) {
  const MemoryFacts facts = read_memory_facts("/nonexistent");
  EXPECT_EQ(facts.limit(), 0);
  EXPECT_EQ(resolve_budget({MemoryBudget::Kind::kAuto, 0, 0}, facts), std::nullopt);
  EXPECT_EQ(resolve_budget({MemoryBudget::Kind::kShare, 0, 0.5}, facts), std::nullopt);
}

TEST(MemoryLimit, ThisMachineHasALimit) { EXPECT_GT(read_memory_facts().limit(), 16 * kMi); }

}  // namespace
}  // namespace koila
