#include "runtime/report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace koila {
namespace {

constexpr std::int64_t kMi = 1 << 20;

OomEvent rescue() {
  return {KOILA_CPU, KOILA_FORWARD, "aten::linear", 32 * kMi, 190 * kMi, 200 * kMi, KOILA_RESCUED, "", 128, 512, 3};
}

OomEvent refusal() {
  return {KOILA_CPU, KOILA_BACKWARD, "aten::mm", 8 * kMi, 199 * kMi, 200 * kMi, KOILA_REFUSED, "one row does not fit", 0, 512, 1};
}

ReportData data() {
  ReportData data;
  data.pid = 42;
  data.host = "node7";
  data.command = "python train.py";
  data.torch_version = "2.13.0+cpu";
  data.devices = {{KOILA_CPU, 5 * kMi, 199 * kMi, 200 * kMi, 1000, 990}};
  data.events.steps = 20;
  data.events.rescues = 3;
  data.events.refusals = 1;
  data.events.oom_events = {rescue(), refusal()};
  data.events.last_region = {.device = KOILA_CPU, .batch = 512, .micro_batch = 128, .runs = 4, .forward_only = 1, .halvings = 0, .operators = 30, .seconds = 0.25};
  data.events.regions = {data.events.last_region};
  data.events.region_totals = {20, 80, 20, 1, 5.0};
  data.events.full_batch = {{"aten::sort", {40, 2 * kMi}}, {"aten::cumsum", {1, 3 * kMi}}};
  data.events.notes = {"KOILA_RULES is empty"};
  return data;
}

TEST(Report, TextIsAShortPage) {
  EXPECT_EQ(report_text(data()),
            "koila: 20 steps, 3 rescues, 1 refusal; mode rescue, pid 42\n"
            "koila:   cpu: peak 199.0 MiB of a budget of 200.0 MiB, 5.0 MiB live at exit, 1000 allocations, 990 frees\n"
            "koila:   rescued: out of memory in aten::linear (forward) on cpu, wanted 32.0 MiB with 190.0 MiB of 200.0 MiB in use: "
            "running in micro-batches of 128 of 512 rows (3 times)\n"
            "koila:   refused: out of memory in aten::mm (backward) on cpu, wanted 8.0 MiB with 199.0 MiB of 200.0 MiB in use: "
            "one row does not fit\n"
            "koila:   micro-batch in use: 128 of 512 rows; 20 regions in 80 passes (20 forward only), 1 halving, 5.0 s\n"
            "koila:   at full batch for want of a rule: aten::cumsum (3.0 MiB, 1 time), aten::sort (2.0 MiB, 40 times)\n"
            "koila:   note: KOILA_RULES is empty\n"
            "koila:   next: a rule for aten::cumsum (KOILA_RULES), which kept its whole batch in memory, or a larger budget\n");
}

TEST(Report, TextStaysShortWhateverHappened) {
  ReportData many = data();
  for (int i = 0; i < 500; ++i) {
    OomEvent event = rescue();
    event.requested_bytes = i;
    many.events.oom_events.push_back(event);
    many.events.full_batch["op" + std::to_string(i)] = {1, i};
    many.events.notes.push_back("note " + std::to_string(i));
  }
  const std::string text = report_text(many);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 16);
  EXPECT_NE(text.find("and 497 more"), std::string::npos);
}

TEST(Report, JsonHasTheDocumentedFields) {
  const auto json = nlohmann::json::parse(report_json(data()));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["pid"], 42);
  EXPECT_EQ(json["steps"], 20);
  EXPECT_EQ(json["torch_version"], "2.13.0+cpu");
  const auto& cpu = json["devices"]["cpu"];
  EXPECT_EQ(cpu["peak_bytes"], 199 * kMi);
  EXPECT_TRUE(cpu["peak_bytes"].is_number_integer());
  EXPECT_EQ(cpu["live_bytes"], 5 * kMi);
  EXPECT_EQ(cpu["budget_bytes"], 200 * kMi);
  EXPECT_EQ(cpu["allocations"], 1000);
  EXPECT_EQ(cpu["frees"], 990);

  ASSERT_EQ(json["oom_events"].size(), 2U);
  const auto& event = json["oom_events"][0];
  EXPECT_EQ(event["device"], "cpu");
  EXPECT_EQ(event["phase"], "forward");
  EXPECT_EQ(event["op"], "aten::linear");
  EXPECT_EQ(event["requested_bytes"], 32 * kMi);
  EXPECT_EQ(event["live_bytes"], 190 * kMi);
  EXPECT_EQ(event["budget_bytes"], 200 * kMi);
  EXPECT_EQ(event["outcome"], "rescued");
  EXPECT_EQ(event["reason"], "");
  EXPECT_EQ(event["micro_batch"], 128);
  EXPECT_EQ(event["count"], 3);

  ASSERT_EQ(json["refusals"].size(), 1U);
  EXPECT_EQ(json["refusals"][0]["reason"], "one row does not fit");
  EXPECT_EQ(json["micro_batch"], 128);
  EXPECT_EQ(json["regions"][0]["runs"], 4);
  EXPECT_EQ(json["regions_total"]["runs"], 80);
  EXPECT_EQ(json["full_batch_ops"].size(), 2U);
  EXPECT_EQ(json["notes"][0], "KOILA_RULES is empty");
}

TEST(Report, JsonOfAnEmptyRunHasEveryList) {
  const auto json = nlohmann::json::parse(report_json(ReportData{}));
  for (const char* name : {"oom_events", "refusals", "regions", "full_batch_ops", "notes"}) EXPECT_TRUE(json[name].is_array()) << name;
  EXPECT_TRUE(json["devices"].is_object());
}

TEST(Report, JsonTakesAnyBytesInACommand) {
  ReportData odd = data();
  odd.command = "python \xff\xfe \" \\ \n";
  EXPECT_NO_THROW(nlohmann::json::parse(report_json(odd)));
}

TEST(Report, NothingHappenedIsNotWorthALine) {
  ReportData quiet;
  quiet.devices = {{KOILA_CPU, 0, 3 * kMi, 0, 5, 5}};
  EXPECT_FALSE(quiet.is_worth_a_line());
  quiet.events.steps = 1;
  EXPECT_TRUE(quiet.is_worth_a_line());
  ReportData with_budget;
  with_budget.devices = {{KOILA_CPU, 0, 0, 3 * kMi, 0, 0}};
  EXPECT_TRUE(with_budget.is_worth_a_line());
  ReportData with_oom;
  with_oom.events.oom_events = {refusal()};
  EXPECT_TRUE(with_oom.is_worth_a_line());
}

TEST(Report, NextThingToTryFollowsWhatHappened) {
  ReportData none;
  EXPECT_EQ(next_thing_to_try(none), "");
  ReportData unreached = none;
  unreached.devices = {{KOILA_CPU, 0, kMi, 3 * kMi, 5, 5}};
  EXPECT_NE(next_thing_to_try(unreached).find("never reached"), std::string::npos);
  ReportData tracked = data();
  tracked.mode = KOILA_MODE_TRACK;
  EXPECT_NE(next_thing_to_try(tracked).find("KOILA_MODE=rescue"), std::string::npos);
  ReportData rescued = data();
  rescued.events.refusals = 0;
  EXPECT_NE(next_thing_to_try(rescued).find("aten::cumsum"), std::string::npos);
  rescued.events.full_batch.clear();
  EXPECT_EQ(next_thing_to_try(rescued), "");
  rescued.events.rescues = 19;
  EXPECT_NE(next_thing_to_try(rescued).find("KOILA_MICROBATCH=128"), std::string::npos);
}

TEST(Report, DescribesWhatIsUnknownByLeavingItOut) {
  OomEvent event;
  event.live_bytes = 3 * kMi;
  event.outcome = KOILA_REFUSED;
  EXPECT_EQ(describe(event), "refused: out of memory (forward) on cpu, with 3.0 MiB in use: the program gets the error");
}

TEST(Report, WritesWholeFilesAndSaysWhenItCannot) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("koila_report_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const ReportTarget json{ReportTarget::Kind::kJson, (folder / "r-%p.json").string()};
  EXPECT_EQ(write_report(json, data()), "");
  std::stringstream text;
  text << std::ifstream(folder / ("r-" + std::to_string(getpid()) + ".json")).rdbuf();
  EXPECT_EQ(text.str(), report_json(data()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "nothing else is left behind";

  const ReportTarget nowhere{ReportTarget::Kind::kText, (folder / "none" / "r.txt").string()};
  EXPECT_EQ(write_report(nowhere, data()), "cannot write the report " + nowhere.path + ": No such file or directory");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace koila
