#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "samples.h"

namespace koila {
namespace {

using Json = nlohmann::ordered_json;

std::string problem_of(const std::string& text) {
  const ParsedReport parsed = parse_report_json(text);
  EXPECT_FALSE(parsed.data.has_value());
  EXPECT_FALSE(parsed.problem.empty());
  return parsed.problem;
}

// The full report, changed by a patch.
std::string changed(const char* pointer, const Json& value) {
  Json json = Json::parse(report_json(full_report()));
  json[Json::json_pointer(pointer)] = value;
  return json.dump();
}

TEST(ParseReport, ReadsBackAllThatIsWritten) {
  for (const ReportData& data : {ReportData{}, full_report(), longest_report()}) {
    const ParsedReport parsed = parse_report_json(report_json(data));
    ASSERT_TRUE(parsed.data.has_value()) << parsed.problem;
    EXPECT_EQ(parsed.problem, "");
    EXPECT_EQ(report_json(*parsed.data), report_json(data));
    EXPECT_EQ(report_text(*parsed.data), report_text(data));
    EXPECT_EQ(report_csv(*parsed.data), report_csv(data));
  }
}

// That the samples have every field is what makes the above worth something.
TEST(ParseReport, ReadsFieldsToTheirPlaces) {
  const ReportData data = *parse_report_json(report_json(full_report())).data;
  EXPECT_EQ(data.mode, KOILA_MODE_LAZY);
  EXPECT_EQ(data.end, RunEnd::kCutOff);
  EXPECT_EQ(data.started, 1760000000.25);
  ASSERT_EQ(data.devices.size(), 5U);
  EXPECT_EQ(data.devices[0].device, KOILA_MANAGED);
  EXPECT_EQ(data.devices[2].holders[0].where, "train.py:31 in forward\ntrain.py:60 in <module>");
  EXPECT_EQ(data.devices[2].timeline[1].by_category[KOILA_WORKSPACE], 70);
  EXPECT_EQ(data.devices[3].sizes[47], 1);
  EXPECT_EQ(data.sources[1].kind, MemoryKind::kVirtual);
  EXPECT_EQ(data.events.oom_events[1].at, 1.5);
  EXPECT_EQ(data.events.oom_events[1].phase, KOILA_BACKWARD);
  EXPECT_EQ(data.events.rungs.at(KOILA_RUNG_OFFLOAD).seconds, 2);
  EXPECT_EQ(data.events.last_region.halvings, 3);
  EXPECT_EQ(data.events.full_batch.at("aten::sort").count, 40);
  EXPECT_EQ(data.steps[1].peak_bytes, 199 * kMi);
  EXPECT_EQ(data.leaks[0].holder, "a list named `outputs` in train.py");
  EXPECT_EQ(data.facts.fragmented_bytes, 11);
}

TEST(ParseReport, TakesWhatAnOlderOrANewerKoilaOfTheSchemaWrote) {
  const ParsedReport old = parse_report_json(R"({"schema": 1, "koila_version": "0.0.1", "mode": "rescue", "devices": {"cpu": {"peak_bytes": 7}}})");
  ASSERT_TRUE(old.data.has_value()) << old.problem;
  EXPECT_EQ(old.data->devices[0].peak_bytes, 7);
  EXPECT_EQ(old.data->end, RunEnd::kExited);
  EXPECT_TRUE(parse_report_json(changed("/a_field_of_tomorrow", {1, 2})).data.has_value());
}

TEST(ParseReport, SaysWhatIsWrongAndWhere) {
  EXPECT_EQ(problem_of("{}"), "this is no report of koila: it has no schema and koila_version");
  EXPECT_EQ(problem_of(R"({"schema": 1})"), "this is no report of koila: it has no schema and koila_version");
  EXPECT_EQ(problem_of("[1]"), "the report is [1], expected an object");
  EXPECT_EQ(problem_of(changed("/schema", 2)), "the report has schema 2, written by koila " KOILA_VERSION "; this koila (" KOILA_VERSION ") reads schema 1");
  EXPECT_EQ(problem_of(changed("/devices/cpu/peak_bytes", "7")), "devices.cpu.peak_bytes is \"7\", expected an integer");
  EXPECT_EQ(problem_of(changed("/devices/cpu/peak_bytes", 9223372036854775808U)),
            "devices.cpu.peak_bytes is 9223372036854775808, expected an integer of 63 bits");
  EXPECT_EQ(problem_of(changed("/devices/tpu", Json::object())),
            "devices.tpu is {}, expected a device: cpu, pinned, managed, or cuda:0 to cuda:15");
  EXPECT_EQ(problem_of(changed("/oom_events/1/device", "cuda:99999999999")),
            "oom_events[1].device is \"cuda:99999999999\", expected a device: cpu, pinned, managed, or cuda:0 to cuda:15");
  EXPECT_EQ(problem_of(changed("/mode", "on")), "mode is \"on\", expected one of off, track, rescue, lazy");
  EXPECT_EQ(problem_of(changed("/oom_events/0/phase", nullptr)), "oom_events[0].phase is null, expected a text");
  EXPECT_EQ(problem_of(changed("/devices/cpu/holders/1/category", "food")),
            "devices.cpu.holders[1].category is \"food\", expected one of other, parameters, gradients, optimizer_state, inputs, activations, workspace");
  EXPECT_EQ(problem_of(changed("/devices/cuda:0/sizes/0/from_bytes", 3)), "devices.cuda:0.sizes[0].from_bytes is 3, expected a power of two below 2^48");
  EXPECT_EQ(problem_of(changed("/step_samples/batch", {1})), "the lists beside batch have 3 entries, and it has 1");
  EXPECT_EQ(problem_of(changed("/seconds", std::string(1000, 'x'))), "seconds is \"" + std::string(56, 'x') + "..., expected a number");
  Json without = Json::parse(report_json(full_report()));
  without.erase("mode");
  EXPECT_EQ(problem_of(without.dump()), "the report has no mode");
}

TEST(ParseReport, SaysWhereTheJsonIsDamaged) {
  const std::string whole = report_json(full_report());
  EXPECT_EQ(problem_of("").find("this is no JSON: parse error at line 1, column 1"), 0U);
  EXPECT_NE(problem_of(whole.substr(0, whole.size() / 2)).find("this is no JSON: parse error at line "), std::string::npos);
  EXPECT_EQ(problem_of("\x80\x02}(X").find("this is no JSON"), 0U) << "a pickle";
  EXPECT_EQ(problem_of(std::string(100'000, '[')).find("this is no report of koila"), 0U);
}

TEST(ParseReport, NeverThrowsOnDamage) {
  const std::string whole = report_json(full_report());
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string text = whole;
    for (int change = 0; change < 1 + i % 4; ++change) {
      const std::size_t at = random() % text.size();
      if (i % 3 == 0) text.erase(at, 1 + random() % 20);
      else text[at] = static_cast<char>(i % 3 == 1 ? random() : "0123456789\"{}[],:-e"[random() % 19]);
    }
    const ParsedReport parsed = parse_report_json(text);
    EXPECT_EQ(parsed.problem.empty(), parsed.data.has_value());
    if (!parsed.data) continue;
    EXPECT_FALSE(report_text(*parsed.data).empty());
    EXPECT_FALSE(report_csv(*parsed.data).empty());
    EXPECT_FALSE(report_pickle(*parsed.data).empty());
  }
}

}  // namespace
}  // namespace koila
