#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/report/report.h"
#include "tests/runtime/report/sample_runs.h"

namespace koila {
namespace {

constexpr const char* kOpen = "<script id=\"data\" type=\"application/json\">";

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++found;
  return found;
}

// As a browser finds it: up to the first end of the element.
std::string data_of(const std::string& page) {
  const std::size_t open = page.find(kOpen);
  if (open == std::string::npos) return "";
  const std::size_t from = open + std::string(kOpen).size();
  return page.substr(from, page.find("</script", from) - from);
}

nlohmann::json json_of(const ReportData& data) { return nlohmann::json::parse(data_of(report_html(data))); }

TEST(Html, IsOnePageThatMayFetchNothing) {
  const std::string page = report_html(samples::rescued());
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_NE(page.find("Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-"), std::string::npos);
  EXPECT_EQ(page.find("unsafe-"), std::string::npos);
  for (const char* loads : {"<link", "<iframe", "<img", " src=", "@import", "url("}) EXPECT_EQ(page.find(loads), std::string::npos) << loads;
  EXPECT_NE(page.find("Copyright (c) 2021 Leon Sorokin"), std::string::npos);
  EXPECT_NE(page.find("Permission is hereby granted"), std::string::npos);
  for (const char* mark : {"@DATA@", "@POLICY@", "@SCRIPTS@", "@STYLES@", "@LICENCES@"}) EXPECT_EQ(page.find(mark), std::string::npos) << mark;
}

TEST(Html, TellsTheRun) {
  const nlohmann::json json = json_of(samples::rescued());
  EXPECT_EQ(json["command"], "python train.py --batch 512 --epochs 20 --lr 3e-4");
  EXPECT_EQ(json["steps"], 10'000);
  EXPECT_EQ(json["rescues"], 29);
  EXPECT_EQ(json["refusals"], 0);
  EXPECT_EQ(json["end"], "exited");
  EXPECT_EQ(json["mode"], "rescue");
  EXPECT_EQ(json["micro_batch"], 192);
  EXPECT_EQ(json["oom_events"].size(), 3);
  EXPECT_EQ(json["oom_events"][1]["at"], 1166.5);
  EXPECT_EQ(json["oom_events"][2]["how"], "offload");
  EXPECT_EQ(json["ladder"][0]["rung"], "micro-batches");
  EXPECT_EQ(json["full_batch"][0]["op"], "aten::cumsum");
  EXPECT_EQ(json["notes"][0], "the autograd.Function MyGelu has no rule");
  EXPECT_EQ(json["step_samples"]["micro_batch"].size(), json["step_samples"]["seconds"].size());
}

TEST(Html, HoldsTheTimelineByCategory) {
  const ReportData data = samples::cuda();
  const nlohmann::json json = json_of(data);
  ASSERT_EQ(json["devices"].size(), 2);
  EXPECT_EQ(json["devices"][0]["name"], "cuda:0");
  const nlohmann::json& timeline = json["devices"][0]["timeline"];
  ASSERT_EQ(timeline["seconds"].size(), kMaxSamples);
  const Sample& sample = data.devices[0].timeline[1000];
  EXPECT_NEAR(timeline["seconds"][1000].get<double>(), sample.seconds, 1e-6);
  EXPECT_EQ(timeline["live"][1000], sample.live_bytes);
  ASSERT_EQ(json["categories"].size(), KOILA_CATEGORIES);
  EXPECT_EQ(json["categories"][KOILA_OPTIMIZER_STATE], "optimizer state");
  EXPECT_EQ(timeline["by_category"][KOILA_ACTIVATIONS][1000], sample.by_category[KOILA_ACTIVATIONS]);
  EXPECT_EQ(json["devices"][0]["holders"].size(), data.devices[0].holders.size());
  EXPECT_EQ(json["devices"][0]["peak_by_category"][KOILA_PARAMETERS], data.devices[0].peak_by_category[KOILA_PARAMETERS]);
  EXPECT_EQ(json["leaks"][0]["holder"], "a list named `losses` in finetune.py");
  EXPECT_EQ(json["sources"][0]["library"], "libc10_cuda.so");
}

TEST(Html, LeavesOutCategoriesThatNobodyHas) {
  const nlohmann::json json = json_of(samples::plain());
  for (const nlohmann::json& column : json["devices"][0]["timeline"]["by_category"]) EXPECT_TRUE(column.empty());
}

// Whatever the strings of the program hold, the page's elements stay as they are, and the strings come out as they went in.
TEST(Html, StringsAreNeverMarkup) {
  const std::string empty = report_html(samples::nothing());
  const std::string page = report_html(samples::hostile());
  for (const char* markup : {"<script", "</script", "<img", "<!--", "<"}) {
    EXPECT_EQ(count(page, markup), count(empty, markup)) << markup;
  }
  EXPECT_EQ(page.find("\xE2\x80\xA8"), std::string::npos);
  EXPECT_EQ(page.find("\xE2\x80\xA9"), std::string::npos);
  const nlohmann::json json = json_of(samples::hostile());
  const std::vector<std::string>& strings = samples::hostile_strings();
  for (std::size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].starts_with("no UTF-8")) {
      EXPECT_EQ(json["notes"][i], "no UTF-8: \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD and a cut one \xEF\xBF\xBD");
    } else {
      EXPECT_EQ(json["notes"][i], strings[i]);
      EXPECT_EQ(json["devices"][0]["holders"][i]["op"], strings[i]);
    }
  }
}

TEST(Html, LongStringsAreCutBetweenCharacters) {
  ReportData data = samples::nothing();
  data.command = "x" + [] { std::string s; for (int i = 0; i < 5000; ++i) s += "\xC3\xA9"; return s; }();
  const std::string command = json_of(data)["command"];
  EXPECT_LT(command.size(), 4200u);
  EXPECT_TRUE(command.ends_with("\xC3\xA9 ...")) << command.substr(command.size() - 10);
}

TEST(Html, NumbersThatAreNoneDoNotBreakIt) {
  ReportData data = samples::rescued();
  data.seconds = std::nan("");
  data.devices[0].timeline[3].seconds = INFINITY;
  EXPECT_TRUE(json_of(data)["seconds"].is_null());
}

TEST(Html, StaysBelowFiveMegabytes) {
  EXPECT_LT(report_html(samples::full()).size(), 5'000'000u);
  EXPECT_LT(report_html(samples::rescued()).size(), 1'000'000u);
}

}  // namespace
}  // namespace koila
