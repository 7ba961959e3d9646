// Records and reports that somebody has made up: whatever stands in them, the command says something, in order, and ends.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include <nlohmann/json.hpp>

#include "runtime/record/layout.h"
#include "runtime/record/record.h"
#include "runtime/record/writer.h"
#include "runtime/report/report.h"
#include "every_form.h"
#include "tool/command_line.h"
#include "tool/source.h"

namespace koila::tool {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(), kLeast = std::numeric_limits<std::int64_t>::min();
const std::string kEscape = "\x1b]0;title\x07\x1b[31m\xc2\x9b" "31m\x9b" "31m</script><!-- <img src=x onerror=alert(1)>";

void expect_every_form(const ReportData& data) { EXPECT_EQ(problem_of_forms(data, kEscape), ""); }

class HostileRecord : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/koila_hostile_XXXXXX";
    folder_ = mkdtemp(name);
    setenv("TMPDIR", folder_.c_str(), 1);
    ASSERT_EQ(prepare_record_folder(), "");
    path_ = record_folder() + "/16777216.koila";
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A whole record, in which the test then writes what it likes.
  record::Base& base() {
    if (base_) return *base_;
    ReportData identity;
    identity.pid = 1 << 24;
    identity.command = "train.py " + kEscape;
    identity.host = kEscape;
    identity.torch_version = kEscape;
    std::string problem;
    writer_ = RecordWriter::open(path_, identity, clock_, problem);
    EXPECT_NE(writer_, nullptr) << problem;
    writer_->timeline_of(KOILA_CPU);
    std::ifstream file(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    words_.resize(bytes_.size() / 8);
    std::memcpy(words_.data(), bytes_.data(), words_.size() * 8);
    base_ = reinterpret_cast<record::Base*>(words_.data());
    return *base_;
  }
  record::Section& section() { return *reinterpret_cast<record::Section*>(reinterpret_cast<char*>(&base()) + record::bytes_with(0)); }

  ReadRecord read() {
    std::ofstream(path_, std::ios::binary | std::ios::trunc).write(reinterpret_cast<const char*>(words_.data()), static_cast<std::streamsize>(words_.size() * 8));
    return read_record(path_);
  }

  // The same by the command, which lists it as well.
  void expect_told() {
    const ReadRecord record = read();
    ASSERT_TRUE(record.data) << record.problem;
    expect_every_form(*record.data);
    testing::internal::CaptureStdout();
    EXPECT_EQ(report_command({}), 0);
    EXPECT_EQ(report_command({path_}), 0);
    EXPECT_EQ(top_command({"--once", path_}), 0);
    EXPECT_TRUE(is_plain(testing::internal::GetCapturedStdout()));
  }

  std::string folder_, path_;
  RunClock clock_;
  std::unique_ptr<RecordWriter> writer_;
  std::string bytes_;
  std::vector<std::uint64_t> words_;
  record::Base* base_ = nullptr;
};

TEST_F(HostileRecord, ATimeThatNoCalendarHas) {
  for (const double started : {1e300, 1e18, 9e18, 1e12, std::numeric_limits<double>::max()}) {
    record::Identity identity = *base().identity.read();
    identity.started = started;
    base().identity.write(identity);
    expect_told();
  }
}

TEST_F(HostileRecord, NumbersThatNameNothing) {
  for (const std::int64_t number : {kMost, kLeast, std::int64_t{77}, std::int64_t{-77}, std::int64_t{5}}) {
    record::Identity identity = *base().identity.read();
    identity.mode = number;
    base().identity.write(identity);
    record::Page page = *base().page.read();
    page.last_region.device = static_cast<int>(number);
    for (auto& rung : page.rungs) rung = {number, 1};
    base().page.write(page);
    for (int field = 0; field < 4; ++field) {
      record::Oom oom;
      (field == 0 ? oom.device : field == 1 ? oom.phase : field == 2 ? oom.outcome : oom.rung) = number;
      base().oom_events.of[field].write(oom);
    }
    koila_region_event region = {};
    region.device = static_cast<int>(number);
    base().regions[0].write(region);
    expect_told();
  }
}

TEST_F(HostileRecord, FiguresThatCannotBeAddedUp) {
  for (const std::int64_t figure : {kMost, kLeast, kMost - 1}) {
    record::Page page = *base().page.read();
    page.steps = page.rescues = page.refusals = figure;
    page.region_totals = {figure, figure, figure, figure, 1e300};
    page.last_region = {0, figure, figure, figure, figure, figure, figure, 1e300};
    for (auto& rung : page.rungs) rung = {figure, 1e300};
    base().page.write(page);
    for (int i = 0; i < 3; ++i) {
      record::Oom oom;
      oom.outcome = i % 2;
      oom.device = KOILA_CPU;
      oom.requested_bytes = oom.live_bytes = oom.budget_bytes = oom.micro_batch = oom.batch = oom.count = oom.step = figure;
      oom.seconds = oom.at = 1e300;
      oom.op = kEscape;
      oom.reason = kEscape + "\n" + kEscape;
      base().oom_events.of[i].write(oom);
      base().full_batch.of[i].write({figure, figure, kEscape + std::to_string(i)});
      base().leaks.of[1][i].write({KOILA_CPU, KOILA_ACTIVATIONS, figure, figure, figure, kEscape, kEscape, kEscape});
      base().sources.of[1][i].write({0, 0, figure, figure, figure, figure, kEscape});
      section().holders.of[1][i].write({KOILA_ACTIVATIONS, figure, figure, figure, kEscape, kEscape});
    }
    base().leaks.extent.write({1, 3});
    base().sources.extent.write({1, 3});
    section().holders.extent.write({1, 3});
    record::Device device = *section().device.read();
    device.live_bytes = device.peak_bytes = device.budget_bytes = device.allocations = device.frees = device.outside_bytes = device.outside_peak_bytes = figure;
    device.outside_written_bytes = device.peak_step = device.failed_allocations = device.tensor_bytes = device.tensor_peak_bytes = device.used_bytes = figure;
    device.live_by_category.fill(figure);
    device.peak_by_category.fill(figure);
    device.seconds = device.peak_seconds = 1e300;
    section().device.write(device);
    ProgramFacts facts;
    facts.half_parameters_bytes = facts.kept_gradients = facts.kept_gradients_bytes = facts.graph_in_evaluation = facts.graph_in_evaluation_bytes = figure;
    facts.foreach_bytes = facts.fragmented_bytes = figure;
    base().facts.write(facts);
    base().notes[0].write(kEscape);
    expect_told();
  }
}

TEST_F(HostileRecord, AnyBytesAtAll) {
  base();
  const std::vector<std::uint64_t> whole = words_;
  std::mt19937_64 random(9);
  for (int i = 0; i < 300; ++i) {
    words_ = whole;
    base_ = reinterpret_cast<record::Base*>(words_.data());
    for (std::size_t n = random() % 200; n > 0; --n) words_[random() % (n % 3 == 0 ? words_.size() : 400)] = random() % 3 == 0 ? random() : 0x7fffffffffffffff;
    const ReadRecord record = read();
    if (record.data) expect_every_form(*record.data);
  }
}

TEST(HostileJson, DeepOrOfManyPartsItIsNoReport) {
  const std::string head = R"({"schema":1,"koila_version":"x","mode":"rescue","devices":{},"notes":)";
  for (const std::string& inside : {std::string(2'000'000, '['), [] {
         std::string many = "[";
         for (int i = 0; i < 5'000'000; ++i) many += "[],";
         return many + "[]]";
       }()}) {
    for (const std::string& text : {inside, head + inside + "}"}) {
      const ParsedReport parsed = parse_report_json(text);
      EXPECT_FALSE(parsed.data);
      EXPECT_NE(parsed.problem.find("no report of koila"), std::string::npos) << parsed.problem;
    }
  }
  EXPECT_NE(parse_report_json(std::string(kReportBytesAtMost + 1, ' ')).problem.find("larger than"), std::string::npos);
}

TEST(HostileJson, FiguresAtTheirLimits) {
  ReportData data;
  data.devices.resize(1);
  data.events.oom_events.resize(2);
  data.steps.resize(2);
  data.leaks.resize(2);
  data.events.regions.resize(1);
  data.events.full_batch["aten::x"] = {};
  Json json = Json::parse(report_json(data));
  for (const Json& number : {Json(kMost), Json(kLeast), Json(1e308), Json(-1e308)}) {
    const auto fill = [&](auto&& self, Json& node, const std::string& key) -> void {
      if (node.is_structured())
        for (const auto& [name, child] : node.items()) self(self, child, name);
      else if (node.is_number() && key != "schema" && node.is_number_integer() == number.is_number_integer()) node = number;
    };
    Json hostile = json;
    fill(fill, hostile, "");
    const ParsedReport parsed = parse_report_json(hostile.dump());
    ASSERT_TRUE(parsed.data) << parsed.problem;
    expect_every_form(*parsed.data);
  }
}

TEST(HostileJson, ListsOfAnyLengthAreAsLongAsKoilaWritesThem) {
  Json json = Json::parse(report_json({}));
  const Json leak = {{"device", "cpu"}, {"category", "activations"}, {"bytes", kMost}, {"bytes_per_step", kMost}, {"holder", "x"}};
  json["leaks"] = Json::array();
  for (int i = 0; i < 20'000; ++i) json["leaks"].push_back(leak);
  const ParsedReport parsed = parse_report_json(json.dump());
  ASSERT_TRUE(parsed.data) << parsed.problem;
  expect_every_form(*parsed.data);
}

TEST(Compare, NoCellOfTheTableIsAFormula) {
  const ReportData data;
  for (const std::string name : {"=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "plain"}) {
    const std::string csv = compare_csv(compare({{name, data}, {"b", data}}));
    const std::string cell = csv.substr(csv.find(",\"") + 2, 1);
    EXPECT_EQ(std::string("=+-@").find(cell), std::string::npos) << csv;
  }
}

}  // namespace
}  // namespace koila::tool
