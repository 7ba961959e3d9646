#include "runtime/size_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>

namespace koila {
namespace {

constexpr const char* kTorch = "2.13.0+cpu";
constexpr std::int64_t kMi = 1 << 20;

// A folder of the test's own, gone with it, and the cache's path in it.
class SizeCache : public ::testing::Test {
 protected:
  void SetUp() override {
    // In memory where that can be had: thousands of renames take their time on a disk.
    folder_ = access("/dev/shm", W_OK) == 0 ? "/dev/shm/koila-size-cache-XXXXXX" : "/tmp/koila-size-cache-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/sizes.json";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void fill(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  std::string text() const {
    std::stringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.insert(entry.path().filename());
    return names;
  }

  // A file that must not be used, whatever the reason, nor written to.
  void expect_left_alone(const std::string& what);

  std::string folder_;
  std::string path_;
};

CachedStep step(std::uint64_t id, std::int64_t used = 1000) {
  CachedStep step;
  step.id = id;
  step.batch = 64;
  step.device = "cpu";
  step.seeds = {{"aten::linear", 0xfedcba9876543210U, 2, 0, -1, 0, 1, 7}, {"aten::cat.out", id, 1, 0, 3, 2, 4, 1}};
  step.observations = {{16, 100 * kMi, 0.1}, {8, 60 * kMi, 1.0 / 3}};
  step.failures = {{32, 150 * kMi}};
  step.choices = {{144 * kMi, 16, false}, {80 * kMi, 8, true}};
  step.used = used;
  return step;
}

void write(const std::string& path, const std::vector<CachedStep>& steps, const std::string& torch = kTorch) {
  const SizeCacheWritten written = write_size_cache(path, torch, steps);
  EXPECT_EQ(written.problem, "");
  EXPECT_FALSE(written.busy);
}

std::vector<CachedStep> good(const std::string& path, const std::string& torch = kTorch) {
  const SizeCacheFile file = read_size_cache(path, torch);
  EXPECT_EQ(file.problem, "");
  EXPECT_TRUE(file.ours);
  return file.steps;
}

void SizeCache::expect_left_alone(const std::string& what) {
  const std::string before = text();
  const SizeCacheFile file = read_size_cache(path_, kTorch);
  EXPECT_FALSE(file.ours) << before.substr(0, 200);
  EXPECT_TRUE(file.steps.empty());
  EXPECT_NE(file.problem.find("the cache " + path_ + " (KOILA_CACHE) "), std::string::npos) << file.problem;
  EXPECT_NE(file.problem.find(what), std::string::npos) << file.problem;
  EXPECT_NE(file.problem.find("delete it to have it made anew"), std::string::npos) << file.problem;
  EXPECT_EQ(file.problem.find('\n'), std::string::npos);
  EXPECT_EQ(write_size_cache(path_, kTorch, {step(1)}).problem, file.problem);
  EXPECT_EQ(text(), before);
  EXPECT_EQ(names(), std::set<std::string>{"sizes.json"}) << "nothing is made beside it";
}

// Runs it in a forked process, and gives its status as waitpid does.
pid_t fork_to(const std::function<void()>& run) {
  const pid_t child = fork();
  if (child == 0) {
    run();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  return child;
}

int status_of(pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST_F(SizeCache, WhatIsWrittenIsRead) {
  EXPECT_TRUE(good(path_).empty());
  CachedStep other = step(std::numeric_limits<std::uint64_t>::max(), 2000);
  other.batch = std::numeric_limits<std::int64_t>::max();
  other.device = "NVIDIA \"H100\"\n80GB";
  other.seeds = {{"mylib::op", 0, std::numeric_limits<int>::max(), -1, -1, 63, 1, 1}};
  other.observations = {{other.batch, other.batch, std::numeric_limits<double>::min()}};
  other.failures.clear();
  other.choices.clear();
  write(path_, {step((1ULL << 63) + 1), other});
  EXPECT_EQ(good(path_), (std::vector{other, step((1ULL << 63) + 1)})) << "the last used first";
}

TEST_F(SizeCache, VersionsOfTorchStandSideBySide) {
  write(path_, {step(1)});
  write(path_, {step(1), step(2)}, "2.14.0");
  write(path_, {step(3, 1001)});
  EXPECT_EQ(good(path_), (std::vector{step(3, 1001), step(1)}));
  EXPECT_EQ(good(path_, "2.14.0").size(), 2U);
  EXPECT_TRUE(good(path_, "2.15.0").empty());
}

TEST_F(SizeCache, BatchesAndDevicesAreStepsOfTheirOwn) {
  CachedStep larger = step(1);
  larger.batch = 128;
  CachedStep elsewhere = step(1);
  elsewhere.device = "NVIDIA H100";
  write(path_, {step(1)});
  write(path_, {larger, elsewhere});
  EXPECT_EQ(good(path_).size(), 3U);
}

TEST_F(SizeCache, TheSameStepIsMerged) {
  CachedStep theirs = step(1, 3000);
  theirs.observations = {{4, 1, 1}, {8, 1, 1}};
  theirs.failures = {{64, 7}, {48, 8}};
  theirs.choices = {{7, 1}, {8, 2}};
  CachedStep ours = step(1, 2000);
  ours.seeds.pop_back();
  ours.observations = {{8, 2, 2}, {2, 2, 2}};
  ours.failures = {{32, 8}};
  ours.choices = {{9, 3}, {7, 4}};
  write(path_, {theirs, step(2)});
  write(path_, {ours});
  CachedStep both = ours;
  both.used = 3000;
  both.observations = {{4, 1, 1}, {8, 2, 2}, {2, 2, 2}};
  both.failures = {{64, 7}, {32, 8}};
  both.choices = {{8, 2}, {9, 3}, {7, 4}};
  EXPECT_EQ(good(path_), (std::vector{both, step(2)}));
}

TEST_F(SizeCache, ChoicesOfTheClockStandBesideThoseOfMemory) {
  CachedStep fastest = step(1);
  fastest.choices = {{7, 1, true}, {8, 2, true}};
  CachedStep model = step(1);
  model.choices = {{7, 3, false}};
  write(path_, {fastest});
  write(path_, {model});
  ASSERT_EQ(good(path_).size(), 1U);
  EXPECT_EQ(good(path_)[0].choices, (std::vector<CachedChoice>{{7, 1, true}, {8, 2, true}, {7, 3, false}}));
  fastest.choices = {{7, 4, true}};
  write(path_, {fastest});
  EXPECT_EQ(good(path_)[0].choices, (std::vector<CachedChoice>{{8, 2, true}, {7, 3, false}, {7, 4, true}}));
}

TEST_F(SizeCache, ChoicesOfAnEarlierKoilaMayBeOfTheClock) {
  write(path_, {step(1)});
  std::string before = text();
  for (std::size_t at; (at = before.find(",\"timed\":")) != std::string::npos;) before.erase(at, before.find('}', at) - at);
  fill(before);
  ASSERT_EQ(good(path_).size(), 1U);
  EXPECT_EQ(good(path_)[0].choices, (std::vector<CachedChoice>{{144 * kMi, 16, true}, {80 * kMi, 8, true}}));
}

TEST_F(SizeCache, FilesOfOthersAreLeftAlone) {
  write(path_, {step(1)});
  const std::string valid = text();
  std::filesystem::remove(path_ + ".lock");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = valid;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return changed.replace(at, from.size(), to);
  };
  const std::pair<std::string, const char*> files[] = {
      {"my thesis, the only copy\n", "is no JSON"},
      {"\n", "is no JSON"},
      {std::string(100, '\0'), "is no JSON"},
      {valid.substr(0, valid.size() / 2), "is no JSON"},
      {valid + "{}", "is no JSON"},
      {with("aten", "at\xff\xfe"), "is no JSON"},
      {with("64", "1e999"), "is no JSON"},
      {std::string(1000000, '['), "is JSON of something else"},
      {std::string(20, '[') + std::string(20, ']'), "is JSON of something else"},
      {"{}", "is JSON of something else"},
      {"[]", "is JSON of something else"},
      {"null", "is JSON of something else"},
      {"12", "is JSON of something else"},
      {R"({"steps":[]})", "is JSON of something else"},
      {R"({"koila_cache":1,"steps":[]})", "is JSON of something else"},
      {R"({"magic":"koila micro-batch sizes","steps":[]})", "is JSON of something else"},
      {with("micro-batch", "macro-batch"), "is JSON of something else"},
      {with("\"koila_cache\":1", "\"koila_cache\":\"1\""), "is JSON of something else"},
      {with("\"koila_cache\":1", "\"koila_cache\":1.5"), "is JSON of something else"},
      {with("\"koila_cache\":1", "\"koila_cache\":0"), "is JSON of something else"},
      {with("\"koila_cache\":1", "\"koila_cache\":2"), "is of a newer koila (format 2, and this one knows 1)"},
      {with("\"koila_cache\":1", "\"koila_cache\":18446744073709551615"), "is of a newer koila (format 18446744073709551615,"},
      {R"({"koila_cache":1,"magic":"koila micro-batch sizes","steps":{}})", "has no list of steps"},
      {R"({"koila_cache":1,"magic":"koila micro-batch sizes"})", "has no list of steps"},
      {std::string(kCacheFileBytes + 1, ' '), "is larger than 4 MiB"},
      {valid + std::string(kCacheFileBytes, ' '), "is larger than 4 MiB"},
  };
  for (const auto& [contents, what] : files) {
    fill(contents);
    expect_left_alone(what);
  }
}

TEST_F(SizeCache, AnEmptyFileIsNobodys) {
  fill("");
  EXPECT_TRUE(good(path_).empty());
  write(path_, {step(1)});
  EXPECT_EQ(good(path_).size(), 1U);
}

TEST_F(SizeCache, AWrongStepIsLeftOut) {
  write(path_, {step(1), step(2), step(3)});
  const nlohmann::ordered_json valid = nlohmann::ordered_json::parse(text());
  using Change = std::function<void(nlohmann::ordered_json&)>;
  const std::pair<Change, const char*> changes[] = {
      {[](auto& s) { s = 7; }, "it is no object"},
      {[](auto& s) { s.erase("batch"); }, "it has no 'batch'"},
      {[](auto& s) { s.erase("choices"); }, "it has no 'choices'"},
      {[](auto& s) { s["batch"] = 0; }, "its 'batch' is 0"},
      {[](auto& s) { s["batch"] = "64"; }, "its 'batch' is no whole number"},
      {[](auto& s) { s["batch"] = 64.0; }, "its 'batch' is no whole number"},
      {[](auto& s) { s["batch"] = 1ULL << 63; }, "its 'batch' is 9223372036854775808"},
      {[](auto& s) { s["used"] = -1; }, "its 'used' is -1"},
      {[](auto& s) { s["torch"] = ""; }, "its 'torch' is no name"},
      {[](auto& s) { s["device"] = nullptr; }, "its 'device' is no name"},
      {[](auto& s) { s["device"] = std::string(201, 'x'); }, "its 'device' is too long a name"},
      {[](auto& s) { s["id"] = 1; }, "its 'id' is no name"},
      {[](auto& s) { s["id"] = "0000000000000001 "; }, "its 'id' is no key"},
      {[](auto& s) { s["id"] = "00000000000000001"; }, "its 'id' is no key"},
      {[](auto& s) { s["id"] = "000000000000000g"; }, "its 'id' is no key"},
      {[](auto& s) { s["id"] = "1"; }, "its 'id' is no key"},
      {[](auto& s) { s["seeds"] = 1; }, "its 'seeds' are no list"},
      {[](auto& s) { s["seeds"][0] = 1; }, "it has no 'op'"},
      {[](auto& s) { s["seeds"][0]["key"] = "-000000000000001"; }, "its 'key' is no key"},
      {[](auto& s) { s["seeds"][0]["times"] = 0; }, "its 'times' is 0"},
      {[](auto& s) { s["seeds"][0]["argument"] = -2; }, "its 'argument' is -2"},
      {[](auto& s) { s["seeds"][0]["argument"] = 1LL << 32; }, "its 'argument' is 4294967296"},
      {[](auto& s) { s["seeds"][0]["element"] = -2; }, "its 'element' is -2"},
      {[](auto& s) { s["seeds"][0]["dim"] = 64; }, "its 'dim' is 64"},
      {[](auto& s) { s["seeds"][0]["dim"] = -1; }, "its 'dim' is -1"},
      {[](auto& s) { s["seeds"][0]["outer"] = 0; }, "its 'outer' is 0"},
      {[](auto& s) { s["seeds"][0]["inner"] = -3; }, "its 'inner' is -3"},
      {[](auto& s) { s["seeds"][0]["inner"] = 1LL << 58; }, "its placement is of more than fits a dimension"},
      {[](auto& s) { s["seeds"] = std::vector(33, s["seeds"][0]); }, "it has 33 seeds"},
      {[](auto& s) { s["observations"][0]["rows"] = 65; }, "its 'rows' is 65"},
      {[](auto& s) { s["observations"][0]["rows"] = 0; }, "its 'rows' is 0"},
      {[](auto& s) { s["observations"][0]["rows"] = -5; }, "its 'rows' is -5"},
      {[](auto& s) { s["observations"][0]["bytes"] = -1; }, "its 'bytes' is -1"},
      {[](auto& s) { s["observations"][0]["seconds"] = -0.5; }, "its 'seconds' are no time"},
      {[](auto& s) { s["observations"][0]["seconds"] = nullptr; }, "its 'seconds' are no time"},
      {[](auto& s) { s["observations"] = std::vector(33, s["observations"][0]); }, "it has 33 observations"},
      {[](auto& s) { s["failures"][0]["rows"] = 65; }, "its 'rows' is 65"},
      {[](auto& s) { s["failures"][0]["available"] = -1; }, "its 'available' is -1"},
      {[](auto& s) { s["failures"] = std::vector(17, s["failures"][0]); }, "it has 17 failures"},
      {[](auto& s) { s["choices"][0]["rows"] = 65; }, "its 'rows' is 65"},
      {[](auto& s) { s["choices"][0]["available"] = -1; }, "its 'available' is -1"},
      {[](auto& s) { s["choices"][0]["timed"] = 1; }, "its 'timed' is neither true nor false"},
      {[](auto& s) { s["choices"] = std::vector(33, s["choices"][0]); }, "it has 33 choices"},
      {[](auto& s) { s["id"] = "0000000000000003"; }, "it stands there twice"},
  };
  const std::vector<CachedStep> others = {good(path_)[0], good(path_)[2]};
  for (const auto& [change, what] : changes) {
    nlohmann::ordered_json changed = valid;
    change(changed["steps"][1]);
    // The wrong one stands last, behind the one it may be the same as.
    std::swap(changed["steps"][1], changed["steps"][2]);
    fill(changed.dump());
    const SizeCacheFile file = read_size_cache(path_, kTorch);
    EXPECT_TRUE(file.ours) << what;
    EXPECT_EQ(file.steps, others) << what;
    EXPECT_NE(file.problem.find(std::string("the cache ") + path_ + " (KOILA_CACHE) has a wrong step, number 3: " + what + "; it is left out: delete the file"), std::string::npos)
        << file.problem;
    write(path_, {step(4, 10)});
    EXPECT_EQ(good(path_).size(), 3U) << what;
  }
  nlohmann::ordered_json changed = valid;
  for (nlohmann::ordered_json& one : changed["steps"]) one["batch"] = -1;
  fill(changed.dump());
  const SizeCacheFile file = read_size_cache(path_, kTorch);
  EXPECT_NE(file.problem.find("number 1: its 'batch' is -1; it and 2 more are left out"), std::string::npos) << file.problem;
  EXPECT_TRUE(file.ours);
}

TEST_F(SizeCache, StepsThatCouldNotBeReadAreNotWritten) {
  const auto refused = [&](const std::function<void(CachedStep&)>& change) {
    CachedStep wrong = step(2);
    change(wrong);
    const std::string problem = write_size_cache(path_, kTorch, {step(1), wrong}).problem;
    EXPECT_EQ(good(path_), std::vector{step(1)});
    return problem;
  };
  const std::string start = "the cache " + path_ + " (KOILA_CACHE) goes without a step: ";
  EXPECT_EQ(refused([](CachedStep& s) { s.observations[0].seconds = std::nan(""); }), start + "its 'seconds' are no time");
  EXPECT_EQ(refused([](CachedStep& s) { s.observations[0].seconds = HUGE_VAL; }), start + "its 'seconds' are no time");
  EXPECT_EQ(refused([](CachedStep& s) { s.choices[0].rows = 65; }), start + "its 'rows' is 65");
  EXPECT_EQ(refused([](CachedStep& s) { s.device = ""; }), start + "its 'device' is no name");
  EXPECT_EQ(refused([](CachedStep& s) { s.seeds.resize(33, s.seeds[0]); }), start + "it has 33 seeds");
}

TEST_F(SizeCache, BytesThatAreNoTextDoNotThrow) {
  CachedStep odd = step(1);
  odd.device = "GPU\xff\xc3";
  odd.seeds[0].op = std::string("a\0b\x80", 4);
  write(path_, {odd}, "2.13\xfe");
  write(path_, {odd}, "2.13\xfe");
  const std::vector<CachedStep> read = good(path_, "2.13\xef\xbf\xbd");
  ASSERT_EQ(read.size(), 1U) << "the same step as before";
  EXPECT_EQ(read[0].seeds[0].op, std::string("a\0b\xef\xbf\xbd", 6));
  const std::string path = folder_ + "/a\nb\xff.json";
  std::ofstream(path) << "x";
  EXPECT_NE(read_size_cache(path, kTorch).problem.find("/a b"), std::string::npos);
}

TEST_F(SizeCache, OnlySoMuchIsKept) {
  std::vector<CachedStep> many;
  for (std::uint64_t i = 0; i < 300; ++i) many.push_back(step(i, 1000 + static_cast<std::int64_t>(i * 7919 % 300)));
  write(path_, many);
  std::sort(many.begin(), many.end(), [](const CachedStep& a, const CachedStep& b) { return a.used > b.used; });
  many.resize(kCachedSteps);
  EXPECT_EQ(good(path_), many);
  write(path_, {step(1000, 1000)}, "2.14.0");
  EXPECT_TRUE(good(path_, "2.14.0").empty()) << "it was used before all others";
  write(path_, {step(1000, many.back().used)}, "2.14.0");
  EXPECT_EQ(good(path_, "2.14.0").size(), 1U) << "used in the same second as another, and newer";
  EXPECT_EQ(good(path_).size(), kCachedSteps - 1) << "all versions count";

  CachedStep full = step(2000, 5000);
  full.seeds.assign(kCachedSeeds, full.seeds[0]);
  full.observations.clear();
  full.failures.clear();
  full.choices.clear();
  for (int i = 1; i <= 40; ++i) {
    full.observations.push_back({i, i, 1});
    full.failures.push_back({1, i});
    full.choices.push_back({i, 1});
  }
  write(path_, {full});
  full.observations = {{41, 1, 1}};
  full.failures = {{1, 41}};
  full.choices = {{41, 1}};
  write(path_, {full});
  const CachedStep kept = good(path_)[0];
  EXPECT_EQ(kept.seeds.size(), kCachedSeeds);
  ASSERT_EQ(kept.observations.size(), kCachedObservations);
  EXPECT_EQ(kept.observations.front().rows, 10) << "the oldest go";
  EXPECT_EQ(kept.observations.back().rows, 41);
  ASSERT_EQ(kept.failures.size(), kCachedFailures);
  EXPECT_EQ(kept.failures.front().available, 26);
  ASSERT_EQ(kept.choices.size(), kCachedChoices);
  EXPECT_EQ(kept.choices.front().available, 10);
}

TEST_F(SizeCache, NeverMoreIsWrittenThanIsRead) {
  CachedStep full = step(0);
  full.seeds.assign(kCachedSeeds, full.seeds[0]);
  for (CachedSeed& seed : full.seeds) seed.op = std::string(kCachedNameBytes, '\1');
  std::vector<CachedStep> many;
  for (std::uint64_t i = 0; i < kCachedSteps; ++i) {
    full.id = i;
    full.used = 1000 - static_cast<std::int64_t>(i);
    many.push_back(full);
  }
  write(path_, many);
  EXPECT_LE(text().size(), kCacheFileBytes);
  const std::vector<CachedStep> kept = good(path_);
  ASSERT_GT(kept.size(), 50U);
  ASSERT_LT(kept.size(), kCachedSteps);
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), many.begin())) << "the last used stay";
}

TEST_F(SizeCache, TimesToComeAreNow) {
  write(path_, {step(1, std::numeric_limits<std::int64_t>::max())});
  write(path_, {step(2, std::time(nullptr))});
  for (const CachedStep& read : good(path_)) EXPECT_LE(read.used, std::time(nullptr));
}

// All of it in the test's own folder (or where nothing can be made): should the code be wrong, root would lose a device for a cache.
TEST_F(SizeCache, PlacesThatCannotBeWrittenAreSaid) {
  const auto problem_of = [](const std::string& path) {
    const SizeCacheWritten written = write_size_cache(path, kTorch, {step(1)});
    EXPECT_FALSE(written.busy);
    EXPECT_EQ(written.problem.find('\n'), std::string::npos);
    EXPECT_EQ(written.problem.find("the cache " + path + " (KOILA_CACHE) "), 0U) << written.problem;
    return written.problem;
  };
  const auto is = [](const std::string& problem, const char* what) { EXPECT_NE(problem.find(what), std::string::npos) << problem; };
  is(problem_of(folder_), "is not a regular file");
  is(read_size_cache(folder_, kTorch).problem, "is not a regular file");
  EXPECT_FALSE(read_size_cache(folder_, kTorch).ours);

  is(problem_of(folder_ + "/none/sizes.json"), "No such file or directory");
  is(read_size_cache(folder_ + "/none/sizes.json", kTorch).problem, "its folder is not there");
  is(problem_of("/proc/sizes.json"), "cannot be locked");
  fill("x");
  is(problem_of(path_ + "/sizes.json"), "Not a directory");
  is(read_size_cache(path_ + "/sizes.json", kTorch).problem, "Not a directory");

  ASSERT_EQ(mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  is(problem_of(folder_ + "/pipe"), "is not a regular file");
  ASSERT_EQ(symlink("nowhere", (folder_ + "/link").c_str()), 0);
  is(problem_of(folder_ + "/link"), "is a link that leads nowhere");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ + "/link"));
  std::filesystem::create_directories(folder_ + "/in_the_way.json.koila.partial/full");
  EXPECT_EQ(write_size_cache(folder_ + "/in_the_way.json", kTorch, {step(1)}).problem, "") << "there are other names";
  ASSERT_EQ(symlink("elsewhere", (folder_ + "/linked.json.lock").c_str()), 0);
  is(problem_of(folder_ + "/linked.json"), "cannot be locked");
}

TEST_F(SizeCache, ALinkStays) {
  const std::string link = folder_ + "/link.json";
  std::filesystem::create_directory(folder_ + "/real");
  write(folder_ + "/real/sizes.json", {step(1)});
  std::filesystem::create_symlink("real/sizes.json", link);
  write(link, {step(2)});
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(good(folder_ + "/real/sizes.json").size(), 2U);
  EXPECT_EQ(good(link).size(), 2U);
}

TEST_F(SizeCache, NothingToWriteTouchesNothing) {
  write(path_, {});
  EXPECT_TRUE(names().empty());
  write_size_cache(path_, kTorch, {CachedStep{}});
  EXPECT_TRUE(names().empty());
}

TEST_F(SizeCache, ItIsForItsUserAloneUntilItIsSharedAndThenItStaysSo) {
  const auto mode = [&] {
    struct stat status = {};
    EXPECT_EQ(stat(path_.c_str(), &status), 0);
    return status.st_mode & 07777;
  };
  const mode_t before = umask(027);
  write(path_, {step(1)});
  EXPECT_EQ(mode(), 0600U);
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  write(path_, {step(2)});
  EXPECT_EQ(mode(), 0666U);
  ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  write(path_, {step(3)});
  EXPECT_EQ(mode(), 0600U);
  umask(before);
  EXPECT_EQ(names(), (std::set<std::string>{"sizes.json", "sizes.json.lock"}));
  if (geteuid() != 0) return;
  ASSERT_EQ(chown(path_.c_str(), 12345, 23456), 0);
  write(path_, {step(4)});
  struct stat status = {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 12345U);
  EXPECT_EQ(status.st_gid, 23456U);
}

TEST_F(SizeCache, WhoMayNotWriteReadsOnly) {
  write(path_, {step(1)});
  ASSERT_EQ(chmod(path_.c_str(), 0444), 0);
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  const std::string before = text();
  const pid_t child = fork_to([&] {
    ASSERT_TRUE(geteuid() != 0 || seteuid(65534) == 0);
    EXPECT_EQ(good(path_).size(), 1U);
    EXPECT_NE(write_size_cache(path_, kTorch, {step(2)}).problem.find("cannot be written: Permission denied"), std::string::npos);
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(text(), before);
  ASSERT_EQ(chmod(path_.c_str(), 0000), 0);
  const pid_t other = fork_to([&] {
    ASSERT_TRUE(geteuid() != 0 || seteuid(65534) == 0);
    EXPECT_NE(read_size_cache(path_, kTorch).problem.find("cannot be read: Permission denied"), std::string::npos);
    EXPECT_FALSE(read_size_cache(path_, kTorch).ours);
  });
  EXPECT_EQ(status_of(other), 0);
}

TEST_F(SizeCache, AFullDiskLeavesWhatWasThere) {
  write(path_, {step(1)});
  const std::string before = text();
  const pid_t child = fork_to([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {before.size(), before.size()};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_NE(write_size_cache(path_, kTorch, {step(2)}).problem.find("cannot be written: File too large"), std::string::npos);
    EXPECT_NE(write_size_cache(folder_ + "/new.json", kTorch, {step(1), step(2)}).problem.find("cannot be written"), std::string::npos);
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(text(), before);
  EXPECT_EQ(names(), (std::set<std::string>{"new.json.lock", "sizes.json", "sizes.json.lock"})) << "no half of a file stays";
}

TEST_F(SizeCache, BusyIsLeftForLater) {
  write(path_, {step(1)});
  const int lock = open((path_ + ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  const SizeCacheWritten written = write_size_cache(path_, kTorch, {step(2)});
  EXPECT_TRUE(written.busy);
  EXPECT_NE(written.problem.find("is being written by others"), std::string::npos);
  EXPECT_EQ(good(path_), std::vector{step(1)}) << "who reads does not wait";
  std::filesystem::remove(path_ + ".lock");
  write(path_, {step(2)});
  EXPECT_EQ(good(path_).size(), 2U);
  close(lock);
}

// A lock that a worker was forked with lasts as long as the worker, unless it is given back by name.
TEST_F(SizeCache, ForkedWorkersDoNotKeepTheLock) {
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (std::uint64_t id = 0; !done; ++id) write_size_cache(path_, kTorch, {step(id % 100)});
  });
  std::vector<pid_t> workers;
  for (int i = 0; i < 50; ++i) {
    const pid_t worker = fork();
    if (worker == 0) {
      pause();
      _exit(0);
    }
    workers.push_back(worker);
    usleep(300);
  }
  done = true;
  writer.join();
  write(path_, {step(1000)});
  for (const pid_t worker : workers) {
    kill(worker, SIGKILL);
    status_of(worker);
  }
}

TEST_F(SizeCache, ManyThreadsAndProcessesLoseNothing) {
  constexpr std::uint64_t kProcesses = 6, kThreads = 4, kSteps = 8;
  std::vector<pid_t> children;
  for (std::uint64_t process = 0; process < kProcesses; ++process) {
    children.push_back(fork_to([&] {
      std::vector<std::thread> threads;
      for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
          for (std::uint64_t i = 0; i < kSteps; ++i) {
            CachedStep shared = step(0xffff);
            shared.choices = {{static_cast<std::int64_t>(process * kThreads + thread), 1}};
            const std::vector<CachedStep> steps = {step((process * kThreads + thread) * kSteps + i), shared};
            SizeCacheWritten written;
            do written = write_size_cache(path_, kTorch, steps);
            while (written.busy);
            EXPECT_EQ(written.problem, "");
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    }));
  }
  std::size_t most = 0, left = children.size();
  while (left > 0) {
    const SizeCacheFile file = read_size_cache(path_, kTorch);
    EXPECT_EQ(file.problem, "");
    EXPECT_TRUE(file.ours);
    EXPECT_GE(file.steps.size(), most);
    most = std::max(most, file.steps.size());
    if (HasFailure()) break;
    for (pid_t& child : children) {
      int status = 0;
      if (child == 0 || waitpid(child, &status, WNOHANG) != child) continue;
      EXPECT_EQ(status, 0);
      child = 0;
      --left;
    }
  }
  for (const pid_t child : children)
    if (child != 0) status_of(child);
  std::set<std::uint64_t> ids;
  for (const CachedStep& read : good(path_)) {
    ids.insert(read.id);
    EXPECT_EQ(read.choices.size(), read.id == 0xffff ? kProcesses * kThreads : 2U);
  }
  EXPECT_EQ(ids.size(), kProcesses * kThreads * kSteps + 1);
}

TEST_F(SizeCache, AKilledWriterLeavesAWholeFile) {
  std::vector<CachedStep> many;
  for (std::uint64_t i = 0; i < 100; ++i) many.push_back(step(i));
  write(path_, many);
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      for (std::uint64_t id = 100;; ++id) write_size_cache(path_, kTorch, {step(100 + id % 100)});
    }
    usleep(random() % 20000);
    kill(child, SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(status_of(child)));
    EXPECT_GE(good(path_).size(), many.size());
    if (HasFailure()) return;
  }
  std::ofstream(path_ + ".koila.partial") << "half of a fi";
  write(path_, {step(1000)});
  EXPECT_EQ(names(), (std::set<std::string>{"sizes.json", "sizes.json.lock"})) << "what it left goes with the next";
}

TEST_F(SizeCache, DamagedFilesNeitherThrowNorAreOverwritten) {
  CachedStep named = step(0xabcdef);
  named.device = "NVIDIA \"H100\" \xc3\xa4";
  write(path_, {step(1), named, step(3)});
  const std::string valid = text();
  std::mt19937 random(20240229);
  const auto any = [&](std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(random); };
  int kept = 0, used = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string damaged = valid;
    for (std::size_t flips = any(4); flips > 0; --flips) damaged[any(damaged.size())] ^= static_cast<char>(1 << any(8));
    if (any(4) == 0) damaged.resize(any(damaged.size()));
    if (any(4) == 0) damaged[any(damaged.size() + 1) % std::max<std::size_t>(damaged.size(), 1)] = "0129-{}[]\",:ex.\0\xff"[any(18)];
    fill(damaged);
    SizeCacheFile file;
    ASSERT_NO_THROW(file = read_size_cache(path_, kTorch)) << damaged;
    ASSERT_EQ(file.problem.find('\n'), std::string::npos);
    ASSERT_TRUE(file.problem.empty() || file.problem.starts_with("the cache ")) << file.problem;
    SizeCacheWritten written;
    ASSERT_NO_THROW(written = write_size_cache(path_, kTorch, {step(77)})) << damaged;
    if (!file.ours) {
      ++kept;
      ASSERT_NE(file.problem, "");
      ASSERT_EQ(text(), damaged);
      ASSERT_EQ(written.problem, file.problem);
      continue;
    }
    ++used;
    ASSERT_EQ(written.problem, "") << damaged;
    const std::vector<CachedStep> after = good(path_);
    for (const CachedStep& one : file.steps) {
      ASSERT_TRUE(one.id == 77 || std::find(after.begin(), after.end(), one) != after.end()) << damaged;
      ASSERT_GE(one.batch, 1);
      for (const CachedObservation& observation : one.observations) ASSERT_TRUE(observation.rows >= 1 && observation.rows <= one.batch && observation.bytes >= 0);
      for (const CachedSeed& seed : one.seeds) ASSERT_TRUE(seed.dim >= 0 && seed.dim < 64);
    }
  }
  EXPECT_GT(kept, 1000);
  EXPECT_GT(used, 1000);
}

TEST(Coarse, EightStepsToADoublingRoundedDown) {
  for (std::int64_t small = 0; small < 16; ++small) EXPECT_EQ(coarse(small), small);
  EXPECT_EQ(coarse(17), 16);
  EXPECT_EQ(coarse(31), 30);
  EXPECT_EQ(coarse(kMi), kMi);
  EXPECT_EQ(coarse(kMi - 1), kMi - kMi / 16);
  EXPECT_EQ(coarse(kMi + kMi / 8 - 1), kMi);
  EXPECT_EQ(coarse(kMi + kMi / 8), kMi + kMi / 8);
  EXPECT_EQ(coarse(-1), 0);
  EXPECT_EQ(coarse(std::numeric_limits<std::int64_t>::min()), 0);
  EXPECT_EQ(coarse(std::numeric_limits<std::int64_t>::max()), 15LL << 59);
  std::set<std::int64_t> steps;
  std::mt19937_64 random(3);
  for (int i = 0; i < 10000; ++i) {
    const auto available = static_cast<std::int64_t>(random() >> (1 + random() % 60));
    const std::int64_t rounded = coarse(available);
    EXPECT_LE(rounded, available);
    EXPECT_GE(rounded, available - available / 8);
    EXPECT_EQ(coarse(rounded), rounded);
  }
  for (std::int64_t available = kMi; available < 2 * kMi; available += 1000) steps.insert(coarse(available));
  EXPECT_EQ(steps.size(), 8U);
}

}  // namespace
}  // namespace koila
