#include "tool/compare.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "runtime/report/report.h"

namespace koila::tool {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

ReportData run_with(std::int64_t peak, std::int64_t activations) {
  ReportData data;
  data.torch_version = "2.13.0";
  data.seconds = 10;
  DeviceFigures cpu;
  cpu.peak_bytes = peak;
  cpu.peak_by_category[KOILA_ACTIVATIONS] = activations;
  cpu.holders.push_back({KOILA_ACTIVATIONS, "aten::relu", "train.py:3\nmain.py:1", activations, 2, 1});
  data.devices.push_back(cpu);
  data.events.steps = 4;
  for (int step = 1; step <= 4; ++step) {
    StepSample sample;
    sample.step = step;
    sample.seconds = step * 0.5;
    data.steps.push_back(sample);
  }
  return data;
}

const CompareRow& row_of(const Comparison& comparison, const std::string& name) {
  static const CompareRow none{"none", Unit::kCount, {std::nullopt, std::nullopt}};
  const auto found = std::find_if(comparison.rows.begin(), comparison.rows.end(), [&](const CompareRow& row) { return row.name == name; });
  EXPECT_NE(found, comparison.rows.end()) << name;
  return found == comparison.rows.end() ? none : *found;
}

TEST(Compare, FiguresSideBySide) {
  const Comparison comparison = compare({{"a", run_with(100 * kMiB, 60 * kMiB)}, {"b", run_with(50 * kMiB, 10 * kMiB)}});
  const CompareRow& peak = row_of(comparison, "cpu: peak");
  EXPECT_EQ(peak.values, (std::vector<std::optional<double>>{100.0 * kMiB, 50.0 * kMiB}));
  EXPECT_DOUBLE_EQ(*peak.percent(1), -50);
  EXPECT_DOUBLE_EQ(*row_of(comparison, "cpu: peak, activations").values[1], 10.0 * kMiB);
  EXPECT_DOUBLE_EQ(*row_of(comparison, "seconds per step").values[0], 0.5);
  for (const CompareRow& row : comparison.rows) EXPECT_NE(row.name, "refusals") << "0 in both is no row";
}

TEST(Compare, WhatOneHasAndTheOtherHasNot) {
  ReportData before = run_with(100 * kMiB, 60 * kMiB);
  ReportData after = run_with(100 * kMiB, 60 * kMiB);
  after.mode = KOILA_MODE_TRACK;
  after.devices[0].holders.push_back({KOILA_GRADIENTS, "aten::mm", "", 5 * kMiB, 1, 1});
  before.events.full_batch["aten::sort"] = {3, kMiB};
  DeviceFigures cuda;
  cuda.device = 0;
  cuda.peak_bytes = kMiB;
  after.devices.push_back(cuda);
  OomEvent refusal;
  refusal.outcome = KOILA_REFUSED;
  refusal.reason = "because";
  after.events.oom_events.push_back(refusal);
  after.events.refusals = 1;
  const Comparison comparison = compare({{"a", before}, {"b", after}});

  ASSERT_EQ(comparison.holders.size(), 1U) << "what is the same is not told";
  EXPECT_EQ(comparison.holders[0].what, "cpu: gradients of aten::mm");
  EXPECT_EQ(comparison.holders[0].before, 0);
  ASSERT_EQ(comparison.full_batch.size(), 1U);
  EXPECT_EQ(comparison.full_batch[0].what, "aten::sort");
  EXPECT_EQ(comparison.differs, std::vector<std::string>{"mode: rescue  |  track"});
  EXPECT_FALSE(row_of(comparison, "cuda:0: peak").values[0]);
  EXPECT_FALSE(row_of(comparison, "cuda:0: peak").percent(1));

  const std::string text = compare_text(comparison, false);
  for (const char* part : {"new     +5.0 MiB  cpu: gradients of aten::mm", "gone aten::sort (1.0 MiB)", "b: refused: out of memory", "because"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  EXPECT_EQ(text.find('\033'), std::string::npos);
}

TEST(Compare, MoreThanTwoAgainstTheFirst) {
  const Comparison comparison = compare({{"a", run_with(100, 1)}, {"b", run_with(110, 1)}, {"c", run_with(200, 1)}});
  EXPECT_NEAR(*row_of(comparison, "cpu: peak").percent(1), 10, 1e-9);
  EXPECT_NEAR(*row_of(comparison, "cpu: peak").percent(2), 100, 1e-9);
}

TEST(Compare, AsFiles) {
  const Comparison comparison = compare({{"a \"x\"", run_with(100, 60)}, {"b", run_with(50, 10)}});
  const auto json = nlohmann::json::parse(compare_json(comparison));
  EXPECT_EQ(json["runs"], (nlohmann::json{"a \"x\"", "b"}));
  EXPECT_EQ(json["holders"][0]["after_bytes"], 10);
  const auto peak = std::find_if(json["rows"].begin(), json["rows"].end(), [](const auto& row) { return row["name"] == "cpu: peak"; });
  ASSERT_NE(peak, json["rows"].end());
  EXPECT_EQ((*peak)["values"], (nlohmann::json{100, 50}));
  const std::string csv = compare_csv(comparison);
  EXPECT_TRUE(csv.starts_with("figure,unit,\"a \"\"x\"\"\",\"b\"\n")) << csv;
  EXPECT_NE(csv.find("\"cpu: peak\",bytes,100,50\n"), std::string::npos) << csv;
}

TEST(Compare, WhatARunHasNotIsNoZero) {
  ReportData with = run_with(100, 1), without = run_with(100, 1);
  with.devices[0].budget_bytes = kMiB;
  without.devices[0].budget_bytes = 0;
  with.events.region_totals = {};
  with.events.region_totals.count = 1;
  with.events.region_totals.seconds = 2;
  without.events.region_totals = {};
  const Comparison comparison = compare({{"a", without}, {"b", with}});
  EXPECT_FALSE(row_of(comparison, "cpu: budget").values[0]);
  EXPECT_EQ(row_of(comparison, "cpu: budget").values[1], static_cast<double>(kMiB));
  EXPECT_FALSE(row_of(comparison, "seconds in micro-batches").values[0]);
  EXPECT_EQ(row_of(comparison, "seconds in micro-batches").values[1], 2.0);
}

TEST(Compare, EmptyRuns) { EXPECT_FALSE(compare_text(compare({{"a", {}}, {"b", {}}}), true).empty()); }

}  // namespace
}  // namespace koila::tool
