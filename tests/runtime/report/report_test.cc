#include "runtime/report/report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace koila {
namespace {

constexpr std::int64_t kMi = 1 << 20;

DeviceFigures cpu(std::int64_t live, std::int64_t peak, std::int64_t budget, std::int64_t allocations, std::int64_t frees) {
  DeviceFigures figures;
  figures.live_bytes = live;
  figures.peak_bytes = peak;
  figures.budget_bytes = budget;
  figures.allocations = allocations;
  figures.frees = frees;
  return figures;
}

OomEvent rescue() {
  return {KOILA_CPU, KOILA_FORWARD, "aten::linear", 32 * kMi, 190 * kMi, 200 * kMi, KOILA_RESCUED, "", 128, 512, KOILA_RUNG_SPLIT, 0.75, 3};
}

OomEvent refusal() {
  return {KOILA_CPU, KOILA_BACKWARD, "aten::mm", 8 * kMi, 199 * kMi, 200 * kMi, KOILA_REFUSED, "one row does not fit", 0, 512, 0, 0.25, 1};
}

ReportData data() {
  ReportData data;
  data.end = RunEnd::kExited;
  data.pid = 42;
  data.host = "node7";
  data.command = "python train.py";
  data.torch_version = "2.13.0+cpu";
  data.devices = {cpu(5 * kMi, 199 * kMi, 200 * kMi, 1000, 990)};
  data.seconds = 60;
  data.events.rungs = {{0, {1, 0.25}}, {KOILA_RUNG_SPLIT, {3, 0.75}}};
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

TEST(Report, TextIsADozenShortLines) {
  ReportData run = data();
  run.steps = {{1.0, 1, KOILA_CPU, 0, 199 * kMi, 512, 128, 1}, {7.46, 20, KOILA_CPU, 0, 199 * kMi, 512, 128, 2}};
  run.devices[0].peak_by_category = {0, 20 * kMi, 0, 0, 0, 178 * kMi, kMi};
  run.devices[0].peak_step = 2;
  run.devices[0].holders = {{KOILA_ACTIVATIONS, "aten::linear", "train.py:31 in forward\ntrain.py:60 in <module>", 100 * kMi, 12, 2}};
  run.events.oom_events[1].reason = "one row of the batch does not fit.";
  EXPECT_EQ(report_text(run),
            "koila: 20 steps, rescued: 512 rows as 4 x 128, 0.34 s a step, 1 refusal; pid 42\n"
            "koila:   cpu: peak 199.0 MiB of 200.0 MiB, in step 3: activations 178.0 MiB (89%), parameters 20.0 MiB (10%)\n"
            "koila:     100.0 MiB in 12 tensors: activations of aten::linear, made at train.py:31 in forward\n"
            "koila:   512 rows at once ran out in aten::linear (forward), wanted 32.0 MiB with 190.0 MiB of 200.0 MiB in use\n"
            "koila:   refused: out of memory in aten::mm (backward) on cpu, wanted 8.0 MiB with 199.0 MiB of 200.0 MiB in use: one\n"
            "koila:     row of the batch does not fit.\n"
            "koila:     do: a smaller model or a shorter input, activation checkpointing, or more memory; on the CPU rung 2 of\n"
            "koila:       KOILA_LADDER and a KOILA_SPILL_DIR with room\n"
            "koila:   running out cost 1.0 s of 60.0 s\n"
            "koila:   at full batch for want of a rule: aten::cumsum (3.0 MiB, 1 time), aten::sort (2.0 MiB, 40 times)\n"
            "koila:   note: KOILA_RULES is empty\n");
}

TEST(Report, TheFirstLineSaysHowItWent) {
  const auto head = [](const ReportData& run) { const std::string text = report_text(run); return text.substr(0, text.find('\n')); };
  ReportData run;
  run.pid = 42;
  run.end = RunEnd::kExited;
  run.torch_version = "2.13.0";
  run.events.steps = 3;
  run.steps = {{1, 1, KOILA_CPU, 0, 1, 0, 0, 0}, {2, 2, KOILA_CPU, 0, 1, 0, 0, 0}, {4, 3, KOILA_CPU, 0, 1, 0, 0, 0}};
  EXPECT_EQ(head(run), "koila: 3 steps, nothing ran out, 1.50 s a step; pid 42");
  run.mode = KOILA_MODE_TRACK;
  EXPECT_EQ(head(run), "koila: 3 steps, nothing ran out, 1.50 s a step; mode track; pid 42");
  run.mode = KOILA_MODE_RESCUE;
  run.steps[1].batch = 50;
  run.events.region_totals.count = 1;
  run.events.last_region = {.device = KOILA_CPU, .batch = 50, .micro_batch = 8, .runs = 7, .forward_only = 0, .halvings = 0, .operators = 3, .seconds = 1};
  EXPECT_EQ(head(run), "koila: 3 steps, 1 rescued: 50 rows as 6 x 8 + 2, 1.50 s a step; pid 42");
  run.steps[0].batch = run.steps[2].batch = 50;
  EXPECT_EQ(head(run), "koila: 3 steps, all rescued: 50 rows as 6 x 8 + 2, 1.50 s a step; pid 42");
  run.microbatch = 8;
  EXPECT_EQ(head(run), "koila: 3 steps, all in micro-batches: 50 rows as 6 x 8 + 2, 1.50 s a step; pid 42");
}

TEST(Report, WhyNotMoreRows) {
  ReportData run = data();
  OomEvent halved = rescue();
  halved.op = "a micro-batch";
  halved.micro_batch = 64;
  run.events.oom_events = {rescue(), halved};
  EXPECT_NE(report_text(run).find("512 rows at once ran out in aten::linear (forward), wanted"), std::string::npos) << report_text(run);
  EXPECT_NE(report_text(run).find("128 rows ran out as well (forward), wanted 32.0 MiB"), std::string::npos) << report_text(run);
}

TEST(Report, ASizeOfAnotherBatchSaysOfWhich) {
  ReportData run = data();
  OomEvent evaluation = rescue(), halved = rescue();
  evaluation.batch = halved.batch = 2048;
  halved.op = "a micro-batch";
  run.events.oom_events = {rescue(), evaluation, halved};
  const std::string text = report_text(run);
  EXPECT_NE(text.find("512 rows at once ran out"), std::string::npos) << text;
  EXPECT_NE(text.find("2048 rows at once ran out"), std::string::npos) << text;
  EXPECT_NE(text.find("128 of 2048 rows ran out as well"), std::string::npos) << text;
}

TEST(Report, WhatRunningOutCostIsSaidOnce) {
  ReportData run = data();
  run.devices.resize(1);
  run.leaks.clear();
  run.events.refusals = 0;
  run.events.full_batch.clear();
  run.events.oom_events = {rescue()};
  run.events.rungs = {{KOILA_RUNG_SPLIT, {3, 0.02 * run.seconds}}};
  const std::string text = report_text(run), words = "running out cost";
  const std::size_t first = text.find(words);
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find(words, first + 1), std::string::npos) << text;
}

TEST(Report, WhatADoHasSaidIsNotNext) {
  ReportData run = data();
  run.mode = KOILA_MODE_TRACK;
  run.leaks.clear();
  run.events.oom_events[1].reason = "KOILA_MODE=track only counts.";
  EXPECT_NE(report_text(run).find("do: KOILA_MODE=rescue"), std::string::npos) << report_text(run);
  EXPECT_EQ(report_text(run).find("next: KOILA_MODE=rescue"), std::string::npos) << report_text(run);
}

TEST(Report, TheTimelineReachesThePeak) {
  DeviceFigures cpu;
  cpu.device = KOILA_CPU;
  cpu.peak_bytes = 100;
  cpu.peak_by_category = {40, 60};
  cpu.peak_seconds = 1.5;
  show_peak(cpu);
  EXPECT_TRUE(cpu.timeline.empty()) << "a device that is not followed over time";
  cpu.timeline = {{1, 99, {99}}, {2, 10, {10}}};
  show_peak(cpu);
  ASSERT_EQ(cpu.timeline.size(), 3U);
  EXPECT_EQ(cpu.timeline[1].seconds, 1.5);
  EXPECT_EQ(cpu.timeline[1].live_bytes, 100);
  EXPECT_EQ(cpu.timeline[1].by_category[1], 60);
  show_peak(cpu);
  EXPECT_EQ(cpu.timeline.size(), 3U) << "once";
  cpu.timeline = {{1.5, 99, {99}}};
  show_peak(cpu);
  ASSERT_EQ(cpu.timeline.size(), 1U) << "no two entries of one moment";
  EXPECT_EQ(cpu.timeline[0].live_bytes, 100);
  cpu.timeline.assign(kMaxSamples, Sample{2, 10, {10}});
  show_peak(cpu);
  EXPECT_EQ(cpu.timeline.size(), kMaxSamples);
  EXPECT_EQ(cpu.timeline[0].live_bytes, 100);
  cpu.device = 0;
  cpu.timeline = {{1, 99, {99}}};
  show_peak(cpu);
  EXPECT_EQ(cpu.timeline.size(), 1U) << "the peak of a CUDA device is not one of tensors";
}

TEST(Report, EveryFormHasOneFigureForAStep) {
  ReportData run = data();
  run.steps = {{50, 1, KOILA_CPU, 0, 1, 0, 0, 0}, {52, 5, KOILA_CPU, 0, 1, 0, 0, 0}};
  EXPECT_EQ(run.seconds_per_step(), 0.5) << "and not the sixty seconds of the run by twenty steps";
  EXPECT_EQ(nlohmann::json::parse(report_json(run))["seconds_per_step"], 0.5);
  EXPECT_NE(report_html(run).find("\"per_step\":0.5,"), std::string::npos);
  EXPECT_NE(report_text(run).find(", 0.50 s a step"), std::string::npos);
  run.steps.resize(1);
  EXPECT_TRUE(nlohmann::json::parse(report_json(run))["seconds_per_step"].is_null());
  EXPECT_EQ(report_text(run).find("a step;"), std::string::npos);
}

TEST(Report, TheLongTextHasEveryFigure) {
  EXPECT_EQ(report_long_text(data()),
            "koila: 20 steps, 3 rescues, 1 refusal; mode rescue, pid 42\n"
            "koila:   cpu: peak 199.0 MiB of a budget of 200.0 MiB, 5.0 MiB live at exit, 1000 allocations, 990 frees\n"
            "koila:   rescued: out of memory in aten::linear (forward) on cpu, wanted 32.0 MiB with 190.0 MiB of 200.0 MiB in use:\n"
            "koila:     running in micro-batches of 128 of 512 rows (3 times, 0.8 s)\n"
            "koila:   refused: out of memory in aten::mm (backward) on cpu, wanted 8.0 MiB with 199.0 MiB of 200.0 MiB in use: one\n"
            "koila:     row does not fit (0.2 s)\n"
            "koila:     do: a smaller model or a shorter input, activation checkpointing, or more memory; on the CPU rung 2 of\n"
            "koila:       KOILA_LADDER and a KOILA_SPILL_DIR with room\n"
            "koila:   running out cost 1.0 s of 60.0 s: micro-batches 3 times 0.8 s, refuse 1 time 0.2 s\n"
            "koila:   micro-batch in use: 128 of 512 rows; 20 regions in 80 passes (20 forward only), 1 halving, 5.0 s\n"
            "koila:   at full batch for want of a rule: aten::cumsum (3.0 MiB, 1 time), aten::sort (2.0 MiB, 40 times)\n"
            "koila:   note: KOILA_RULES is empty\n");
}

// A program on two devices: the first with PyTorch's allocator in it, the second full.
ReportData on_cuda() {
  ReportData data;
  data.end = RunEnd::kExited;
  data.pid = 42;
  DeviceFigures managed = cpu(0, kMi, 0, 1, 1);
  managed.device = KOILA_MANAGED;
  DeviceFigures pinned = cpu(2 * kMi, 2 * kMi, 0, 1, 0);
  pinned.device = KOILA_PINNED;
  DeviceFigures first = cpu(3 * kMi, 9 * kMi, 0, 12, 4);
  first.device = 0;
  first.tensor_bytes = kMi;
  first.tensor_peak_bytes = 6 * kMi;
  first.used_bytes = 100 * kMi;
  first.untracked_bytes = 90 * kMi;
  first.sizes = {0, 3, 0, 9};
  DeviceFigures second = cpu(4 * kMi, 4 * kMi, 4 * kMi, 1, 0);
  second.device = 1;
  second.failed_allocations = 2;
  second.outside_peak_bytes = 3 * kMi;
  second.outside_written_bytes = 30 * kMi;
  data.devices = {managed, pinned, first, second};
  data.sources = {{KOILA_MANAGED, MemoryKind::kManaged, "program", 0, kMi, 1, 1},
                  {KOILA_PINNED, MemoryKind::kPinned, "program", 2 * kMi, 2 * kMi, 1, 0},
                  {0, MemoryKind::kDevice, "nccl", kMi, kMi, 1, 0},
                  {0, MemoryKind::kDevice, "c10_cuda", kMi, 7 * kMi, 8, 3},
                  {0, MemoryKind::kPool, "program", kMi, 2 * kMi, 3, 1},
                  {1, MemoryKind::kDevice, "program", 4 * kMi, 4 * kMi, 1, 0}};
  return data;
}

TEST(Report, LongTextSaysWhoHoldsADevicesMemory) {
  EXPECT_EQ(report_long_text(on_cuda()),
            "koila: a program without PyTorch; mode rescue, pid 42\n"
            "koila:   cuda:0: peak 9.0 MiB, 3.0 MiB live at exit, 12 allocations, 4 frees\n"
            "koila:   cuda:0 by source: c10_cuda 1.0 MiB (peak 7.0 MiB), pool of program 1.0 MiB (peak 2.0 MiB), nccl 1.0 MiB\n"
            "koila:   cuda:0 tensors inside the caching allocator: peak 6.0 MiB, 1.0 MiB live at exit\n"
            "koila:   cuda:0 untracked: 90.0 MiB of the 100.0 MiB last seen in use (CUDA's own, static runtimes, other processes)\n"
            "koila:   cuda:1: peak 4.0 MiB of a budget of 4.0 MiB, 4.0 MiB live at exit, 1 allocation, 0 frees, 2 failed\n"
            "koila:   cuda:1 by source: program 4.0 MiB\n"
            "koila:   kept outside, in pinned memory for cuda:1: peak 3.0 MiB, 30.0 MiB written in all\n"
            "koila:   managed: peak 1.0 MiB, 0 B live at exit, 1 allocation, 1 free\n"
            "koila:   managed by source: program 0 B (peak 1.0 MiB)\n"
            "koila:   pinned: peak 2.0 MiB, 2.0 MiB live at exit, 1 allocation, 0 frees\n"
            "koila:   pinned by source: program 2.0 MiB\n");
}

TEST(Report, TextSaysWhoHoldsADevicesMemory) {
  EXPECT_EQ(report_text(on_cuda()),
            "koila: a program without PyTorch; pid 42\n"
            "koila:   cuda:0: peak 9.0 MiB, 3.0 MiB live at the end, 90.0 MiB untracked\n"
            "koila:   cuda:0 by source: c10_cuda 1.0 MiB (peak 7.0 MiB), pool of program 1.0 MiB (peak 2.0 MiB), nccl 1.0 MiB\n"
            "koila:   cuda:1: peak 4.0 MiB of 4.0 MiB, 4.0 MiB live at the end, 2 allocations failed\n"
            "koila:   cuda:1 by source: program 4.0 MiB\n"
            "koila:   kept outside, in pinned memory for cuda:1: peak 3.0 MiB, 30.0 MiB written in all\n"
            "koila:   managed: peak 1.0 MiB, 0 B live at the end\n"
            "koila:   managed by source: program 0 B (peak 1.0 MiB)\n"
            "koila:   pinned: peak 2.0 MiB, 2.0 MiB live at the end\n"
            "koila:   pinned by source: program 2.0 MiB\n");
}

TEST(Report, JsonSaysWhoHoldsADevicesMemory) {
  const auto json = nlohmann::json::parse(report_json(on_cuda()));
  const auto& first = json["devices"]["cuda:0"];
  EXPECT_EQ(first["failed_allocations"], 0);
  EXPECT_EQ(first["tensor_bytes"], kMi);
  EXPECT_EQ(first["tensor_peak_bytes"], 6 * kMi);
  EXPECT_EQ(first["used_bytes"], 100 * kMi);
  EXPECT_EQ(first["untracked_bytes"], 90 * kMi);
  EXPECT_EQ(first["sizes"], nlohmann::json::parse(R"([{"from_bytes": 2, "count": 3}, {"from_bytes": 8, "count": 9}])"));
  EXPECT_EQ(json["devices"]["cuda:1"]["failed_allocations"], 2);
  EXPECT_EQ(json["devices"]["cuda:1"]["outside_bytes"], 0);
  EXPECT_EQ(json["devices"]["cuda:1"]["outside_peak_bytes"], 3 * kMi);
  EXPECT_EQ(json["devices"]["cuda:1"]["outside_written_bytes"], 30 * kMi);
  EXPECT_FALSE(json["devices"]["pinned"].contains("tensor_bytes"));
  ASSERT_EQ(json["sources"].size(), 6U);
  EXPECT_EQ(json["sources"][4], nlohmann::json::parse(R"({"device": "cuda:0", "kind": "pool", "library": "program", "live_bytes": 1048576,
                                                          "peak_bytes": 2097152, "allocations": 3, "frees": 1})"));
}

TEST(Report, TheCpusEntryHasNothingOfCuda) {
  const auto json = nlohmann::json::parse(report_json(data()));
  for (const char* name : {"failed_allocations", "tensor_bytes", "used_bytes", "untracked_bytes", "sizes"})
    EXPECT_FALSE(json["devices"]["cpu"].contains(name)) << name;
  EXPECT_TRUE(json["sources"].empty());
}

TEST(Report, NamesFiveSourcesAndCountsTheRest) {
  ReportData many = on_cuda();
  for (int i = 0; i < 20; ++i) many.sources.push_back({0, MemoryKind::kDevice, "other", 1, 1, 1, 0});
  EXPECT_NE(report_text(many, {false, 200}).find("nccl 1.0 MiB, other 1 B, other 1 B and 18 more\n"), std::string::npos);
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
  for (const std::string& text : {report_text(many), report_long_text(many)}) EXPECT_LE(std::count(text.begin(), text.end(), '\n'), kTextLines);
  EXPECT_NE(report_long_text(many).find("and 497 more"), std::string::npos);
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
  quiet.devices = {cpu(0, 3 * kMi, 0, 5, 5)};
  EXPECT_FALSE(quiet.is_worth_a_line());
  quiet.events.steps = 1;
  EXPECT_TRUE(quiet.is_worth_a_line());
  ReportData with_budget;
  with_budget.devices = {cpu(0, 0, 3 * kMi, 0, 0)};
  EXPECT_TRUE(with_budget.is_worth_a_line());
  ReportData with_oom;
  with_oom.events.oom_events = {refusal()};
  EXPECT_TRUE(with_oom.is_worth_a_line());
  ReportData without_luck = on_cuda();
  without_luck.devices = {without_luck.devices.back()};
  without_luck.devices[0].allocations = 0;
  without_luck.devices[0].budget_bytes = 0;
  EXPECT_TRUE(without_luck.is_worth_a_line());
  without_luck.devices[0].failed_allocations = 0;
  EXPECT_FALSE(without_luck.is_worth_a_line());
}

TEST(Report, NextThingToTryFollowsWhatHappened) {
  ReportData none;
  EXPECT_EQ(next_thing_to_try(none), "");
  ReportData unreached = none;
  unreached.devices = {cpu(0, kMi, 3 * kMi, 5, 5)};
  EXPECT_NE(next_thing_to_try(unreached).find("never reached"), std::string::npos);
  ReportData reached = on_cuda();
  EXPECT_EQ(next_thing_to_try(reached), "") << "allocations failed under the budget";
  ReportData tracked = data();
  tracked.mode = KOILA_MODE_TRACK;
  EXPECT_NE(next_thing_to_try(tracked).find("KOILA_MODE=rescue"), std::string::npos);
  ReportData rescued = data();
  rescued.events.refusals = 0;
  EXPECT_NE(next_thing_to_try(rescued).find("aten::cumsum"), std::string::npos);
  rescued.events.full_batch.clear();
  rescued.events.rungs.clear();
  EXPECT_NE(next_thing_to_try(rescued).find("nothing to do: every step came through"), std::string::npos);
  rescued.events.rungs[KOILA_RUNG_SPLIT].count = 19;
  EXPECT_NE(next_thing_to_try(rescued).find("KOILA_MICROBATCH=128"), std::string::npos);
  rescued.events.rungs[KOILA_RUNG_OFFLOAD].count = 2;
  EXPECT_NE(next_thing_to_try(rescued).find("in 2 steps"), std::string::npos);
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
