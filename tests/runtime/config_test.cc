#include "runtime/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace koila {
namespace {

ParsedConfig parse(const Environment& environment) { return parse_config(environment); }

// The one problem of a bad value; fails the test when there are more or none.
std::string problem_of(const std::string& name, const std::string& value) {
  const ParsedConfig parsed = parse({{name, value}});
  EXPECT_EQ(parsed.problems.size(), 1U) << name << "=" << value;
  EXPECT_TRUE(parsed.has_errors()) << name << "=" << value;
  return parsed.problems.empty() ? "" : parsed.problems[0].text;
}

TEST(Config, DefaultsWithoutVariables) {
  const ParsedConfig parsed = parse({{"PATH", "/bin"}, {"HOME", "/"}});
  EXPECT_TRUE(parsed.problems.empty());
  EXPECT_EQ(parsed.config.mode, KOILA_MODE_RESCUE);
  EXPECT_EQ(parsed.config.microbatch, 0);
  EXPECT_EQ(parsed.config.cpu_memory.kind, MemoryBudget::Kind::kNone);
  EXPECT_EQ(parsed.config.log_level, KOILA_LOG_WARN);
  ASSERT_EQ(parsed.config.reports.size(), 1U);
  EXPECT_EQ(parsed.config.reports[0].kind, ReportTarget::Kind::kStderr);
  EXPECT_FALSE(parsed.config.inject);
  EXPECT_TRUE(parsed.config.keeps_record);
  EXPECT_EQ(parsed.config.record, "");
  EXPECT_EQ(parsed.config.cache, "");
  EXPECT_EQ(parsed.config.policy, KOILA_POLICY_MODEL);
  EXPECT_EQ(parsed.config.ladder, 0b0111);
}

TEST(Config, NoRecordWhereItIsOff) {
  const ParsedConfig parsed = parse({{"KOILA_RECORD", "off"}});
  EXPECT_TRUE(parsed.problems.empty());
  EXPECT_FALSE(parsed.config.keeps_record);
  EXPECT_EQ(parsed.config.record, "");
}

TEST(Config, ReadsEveryVariable) {
  const ParsedConfig parsed = parse({{"KOILA_MODE", "lazy"},
                                     {"KOILA_MICROBATCH", "7"},
                                     {"KOILA_CPU_MEMORY", "512MiB"},
                                     {"KOILA_REPORT", "a.json, b.txt,stderr"},
                                     {"KOILA_RECORD", "run-%p.koila"},
                                     {"KOILA_LOG", "debug"},
                                     {"KOILA_LOG_FILE", "koila.log"},
                                     {"KOILA_SPILL_DIR", "/spill"},
                                     {"KOILA_RULES", "my.rules"},
                                     {"KOILA_CACHE", "sizes-%h.json"},
                                     {"KOILA_POLICY", "pow2"},
                                     {"KOILA_LADDER", "0,1"},
                                     {"KOILA_INJECT_OOM", "cpu:nth:120"},
                                     {"KOILA_STRICT", "1"},
                                     {"KOILA_PYTHON", "/usr/bin/python3"}});
  EXPECT_TRUE(parsed.problems.empty());
  const Config& config = parsed.config;
  EXPECT_EQ(config.mode, KOILA_MODE_LAZY);
  EXPECT_EQ(config.record, "run-%p.koila");
  EXPECT_TRUE(config.keeps_record);
  EXPECT_EQ(config.microbatch, 7);
  EXPECT_EQ(config.cpu_memory.kind, MemoryBudget::Kind::kBytes);
  EXPECT_EQ(config.cpu_memory.bytes, 512LL << 20);
  ASSERT_EQ(config.reports.size(), 3U);
  EXPECT_EQ(config.reports[0].kind, ReportTarget::Kind::kJson);
  EXPECT_EQ(config.reports[0].path, "a.json");
  EXPECT_EQ(config.reports[1].kind, ReportTarget::Kind::kText);
  EXPECT_EQ(config.reports[1].path, "b.txt");
  EXPECT_EQ(config.reports[2].kind, ReportTarget::Kind::kStderr);
  EXPECT_EQ(config.log_level, KOILA_LOG_DEBUG);
  EXPECT_EQ(config.log_file, "koila.log");
  EXPECT_EQ(config.spill_dir, "/spill");
  EXPECT_EQ(config.rules, "my.rules");
  EXPECT_EQ(config.cache, "sizes-%h.json");
  EXPECT_EQ(config.policy, KOILA_POLICY_POW2);
  EXPECT_EQ(config.ladder, KOILA_RUNG_RETRY | KOILA_RUNG_SPLIT);
  ASSERT_TRUE(config.inject);
  EXPECT_EQ(config.inject->number, 120);
  EXPECT_TRUE(config.strict);
}

TEST(Config, BudgetTakesShareAndAuto) {
  const MemoryBudget share = parse({{"KOILA_CPU_MEMORY", "50%"}}).config.cpu_memory;
  EXPECT_EQ(share.kind, MemoryBudget::Kind::kShare);
  EXPECT_DOUBLE_EQ(share.share, 0.5);
  EXPECT_EQ(parse({{"KOILA_CPU_MEMORY", "auto"}}).config.cpu_memory.kind, MemoryBudget::Kind::kAuto);
}

TEST(Config, DeviceBudgetsAreForAllOrForEach) {
  const auto all = parse({{"KOILA_DEVICE_MEMORY", "8GiB"}}).config.device_memory;
  ASSERT_EQ(all.size(), 1U);
  EXPECT_FALSE(all[0].device);
  EXPECT_EQ(all[0].budget.bytes, 8LL << 30);
  const auto each = parse({{"KOILA_DEVICE_MEMORY", "0:8GiB, 1:25% ,90%"}}).config.device_memory;
  ASSERT_EQ(each.size(), 3U);
  EXPECT_EQ(each[0].device, 0);
  EXPECT_EQ(each[1].device, 1);
  EXPECT_EQ(each[1].budget.kind, MemoryBudget::Kind::kShare);
  EXPECT_DOUBLE_EQ(each[1].budget.share, 0.25);
  EXPECT_FALSE(each[2].device);
}

TEST(Config, BadDeviceBudgetsAreNamed) {
  for (const char* value : {"lots", "8", "-1GiB", "0:", ":8GiB", "16:1GiB", "-1:1GiB", "x:1GiB", "120%", "0:1GiB,0:2GiB", "1GiB,2GiB", ",", "1GiB,",
                            "auto"}) {
    const std::string problem = problem_of("KOILA_DEVICE_MEMORY", value);
    EXPECT_NE(problem.find(value), std::string::npos) << problem;
    EXPECT_NE(problem.find("using no budget"), std::string::npos) << problem;
    EXPECT_TRUE(parse({{"KOILA_DEVICE_MEMORY", value}}).config.device_memory.empty()) << value;
  }
}

TEST(Config, EmptyIsNotSet) {
  const ParsedConfig parsed = parse({{"KOILA_CPU_MEMORY", ""}, {"KOILA_REPORT", ""}, {"KOILA_CACHE", ""}, {"KOILA_POLICY", ""}, {"KOILA_LADDER", ""}});
  EXPECT_TRUE(parsed.problems.empty());
  EXPECT_EQ(parsed.config.reports.size(), 1U);
  EXPECT_EQ(parsed.config.ladder, KOILA_RUNGS_ALL);
}

TEST(Config, BadValueSaysNameValueFormAndWhatIsUsed) {
  EXPECT_EQ(problem_of("KOILA_CPU_MEMORY", "12XB"),
            "KOILA_CPU_MEMORY=12XB is not understood: want a size with its unit such as 512MiB, 4G or 1.5GiB (units: B, K, M, G, T, KiB, MiB, GiB, TiB of 1024; "
            "KB, MB, GB, TB of 1000), a share such as 50%, or auto; using no budget");
  EXPECT_EQ(problem_of("KOILA_MODE", "on"), "KOILA_MODE=on is not understood: want off, track, rescue or lazy; using rescue");
}

TEST(Config, BadValuesLeaveTheDefault) {
  const std::pair<const char*, const char*> bad[] = {
      {"KOILA_MODE", "RESCUE"},       {"KOILA_MICROBATCH", "0"},  {"KOILA_MICROBATCH", "-3"}, {"KOILA_MICROBATCH", "4rows"},
      {"KOILA_CPU_MEMORY", "512"},    {"KOILA_CPU_MEMORY", "0B"}, {"KOILA_LOG", "loud"},
      {"KOILA_INJECT_OOM", "nth:0"},  {"KOILA_STRICT", "true"},   {"KOILA_REPORT", "report"}, {"KOILA_REPORT", ","},
      {"KOILA_REPORT", "report.htm"}, {"KOILA_POLICY", "linear"}, {"KOILA_POLICY", "MODEL"}, {"KOILA_LADDER", "4"},
      {"KOILA_LADDER", "0,1,"},       {"KOILA_LADDER", "01"},     {"KOILA_LADDER", "-1"},     {"KOILA_LADDER", "0 1"},
      {"KOILA_LADDER", "0;1"},        {"KOILA_LADDER", ","},      {"KOILA_LADDER", "off"},    {"KOILA_LADDER", "0,1,x"}};
  for (const auto& [name, value] : bad) {
    problem_of(name, value);
    const Config config = parse({{name, value}}).config;
    EXPECT_EQ(config.mode, KOILA_MODE_RESCUE);
    EXPECT_EQ(config.microbatch, 0);
    EXPECT_EQ(config.cpu_memory.kind, MemoryBudget::Kind::kNone);
    EXPECT_EQ(config.log_level, KOILA_LOG_WARN);
    EXPECT_FALSE(config.strict);
    EXPECT_FALSE(config.inject);
    EXPECT_EQ(config.reports.size(), 1U);
    EXPECT_EQ(config.policy, KOILA_POLICY_MODEL);
    EXPECT_EQ(config.ladder, KOILA_RUNGS_ALL);
  }
}

TEST(Config, LadderIsASetOfRungsAndRefusingIsAlwaysThere) {
  const std::pair<const char*, int> ladders[] = {
      {"0", 0b001}, {"1", 0b010}, {"2", 0b100}, {"0,1,2", 0b111}, {" 2 , 0 ", 0b101}, {"1,1", 0b010}, {"0,1,3", 0b011}, {"3", 0}, {"0,1,2,3", 0b111}};
  for (const auto& [value, rungs] : ladders) {
    const ParsedConfig parsed = parse({{"KOILA_LADDER", value}});
    EXPECT_TRUE(parsed.problems.empty()) << value;
    EXPECT_EQ(parsed.config.ladder, rungs) << value;
  }
  EXPECT_EQ(problem_of("KOILA_LADDER", "1-2"), "KOILA_LADDER=1-2 is not understood: want rungs from 0 to 3 with commas such as 0,1,2; using 0,1,2");
}

TEST(Config, PolicyIsAModelPowersOfTwoOrTheFastest) {
  EXPECT_EQ(parse({{"KOILA_POLICY", "model"}}).config.policy, KOILA_POLICY_MODEL);
  EXPECT_EQ(parse({{"KOILA_POLICY", "pow2"}}).config.policy, KOILA_POLICY_POW2);
  EXPECT_EQ(parse({{"KOILA_POLICY", "fastest"}}).config.policy, KOILA_POLICY_FASTEST);
  EXPECT_EQ(problem_of("KOILA_POLICY", "best"), "KOILA_POLICY=best is not understood: want model, pow2 or fastest; using model");
}

TEST(Config, ReportOffIsNoTarget) { EXPECT_TRUE(parse({{"KOILA_REPORT", "off"}}).config.reports.empty()); }

TEST(Config, ReportKeepsTheGoodPartOfAList) {
  const ParsedConfig parsed = parse({{"KOILA_REPORT", "a.json,b.pdf"}});
  ASSERT_EQ(parsed.config.reports.size(), 1U);
  EXPECT_EQ(parsed.config.reports[0].path, "a.json");
  ASSERT_EQ(parsed.problems.size(), 1U);
  EXPECT_EQ(parsed.problems[0].text,
            "KOILA_REPORT=a.json,b.pdf is not understood: want off, or stderr and paths that end in .txt, .json, .html, .csv or .pickle, with commas; "
            "using a.json");
}

TEST(Config, ReportsFormGoesByItsSuffix) {
  using Kind = ReportTarget::Kind;
  const std::pair<const char*, Kind> forms[] = {{"stderr", Kind::kStderr}, {"a.txt", Kind::kText},  {"a.json", Kind::kJson},
                                                {"/b/a.html", Kind::kHtml}, {"a.csv", Kind::kCsv}, {"a.b-%p.pickle", Kind::kPickle}};
  for (const auto& [path, kind] : forms) {
    const auto target = parse_report_target(path);
    ASSERT_TRUE(target.has_value()) << path;
    EXPECT_EQ(target->kind, kind) << path;
    EXPECT_EQ(target->path, kind == Kind::kStderr ? "" : path);
  }
  for (const char* path : {"", "a", "a.pkl", "pickle", "a.JSON", "a.csv "}) EXPECT_FALSE(parse_report_target(path).has_value()) << path;
}

TEST(Config, UnknownNameSuggestsTheNearest) {
  const std::pair<const char*, const char*> typos[] = {{"KOILA_CPU_MEMROY", "KOILA_CPU_MEMORY"},
                                                       {"KOILA_MODES", "KOILA_MODE"},
                                                       {"KOILA_MICRO_BATCH", "KOILA_MICROBATCH"},
                                                       {"KOILA_INJECT", "KOILA_INJECT_OOM"}};
  for (const auto& [typo, right] : typos)
    EXPECT_NE(problem_of(typo, "1").find(std::string("did you mean ") + right + "?"), std::string::npos) << typo;
}

TEST(Config, UnknownNameThatIsLikeNoneSuggestsNone) {
  for (const char* name : {"KOILA_BUDGET", "KOILA_QWERTY", "KOILA_"}) {
    EXPECT_EQ(problem_of(name, "1").find("did you mean"), std::string::npos) << problem_of(name, "1");
    EXPECT_NE(problem_of(name, "1").find("koila run --help"), std::string::npos) << name;
  }
}

TEST(Config, CuptiIsAskedOnRequestOnly) {
  EXPECT_FALSE(parse({}).config.cupti);
  EXPECT_FALSE(parse({{"KOILA_CUPTI", "0"}}).config.cupti);
  EXPECT_TRUE(parse({{"KOILA_CUPTI", "1"}}).config.cupti);
  EXPECT_FALSE(parse({{"KOILA_CUPTI", "yes"}}).config.cupti);
  EXPECT_NE(problem_of("KOILA_CUPTI", "yes").find("want 0 or 1"), std::string::npos);
}

TEST(Config, PathsExpand) {
  EXPECT_EQ(expand_path("r-%p.json"), "r-" + std::to_string(getpid()) + ".json");
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  EXPECT_EQ(expand_path("%h/100%%/%x%"), std::string(host) + "/100%/%x%");
}

TEST(Config, EnvironmentIsKoilasOnly) {
  setenv("KOILA_TEST_VARIABLE", "a=b", 1);
  setenv("NOT_KOILA", "1", 1);
  const Environment environment = koila_environment();
  unsetenv("KOILA_TEST_VARIABLE");
  unsetenv("NOT_KOILA");
  bool found = false;
  for (const auto& [name, value] : environment) {
    EXPECT_EQ(name.rfind("KOILA_", 0), 0U);
    found = found || (name == "KOILA_TEST_VARIABLE" && value == "a=b");
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace koila
