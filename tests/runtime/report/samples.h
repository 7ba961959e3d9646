// Reports to try the written forms on.
#ifndef KOILA_TESTS_RUNTIME_REPORT_SAMPLES_H_
#define KOILA_TESTS_RUNTIME_REPORT_SAMPLES_H_

#include <string>

#include "runtime/report/report.h"

namespace koila {

constexpr std::int64_t kMi = 1 << 20;

// Every field has a value of its own.
inline DeviceFigures full_device(int device) {
  DeviceFigures figures;
  figures.device = device;
  figures.live_bytes = 5 * kMi + device;
  figures.peak_bytes = 199 * kMi;
  figures.budget_bytes = 200 * kMi;
  figures.allocations = 1000;
  figures.frees = 990;
  figures.outside_bytes = 1;
  figures.outside_peak_bytes = 2 * kMi;
  figures.outside_written_bytes = 3 * kMi;
  if (device >= KOILA_CPU) {
    for (int category = 0; category < KOILA_CATEGORIES; ++category) {
      figures.live_by_category[category] = (category + 1) * 1000;
      figures.peak_by_category[category] = (category + 1) * 6 * kMi;
    }
    figures.peak_seconds = 1.25;
    figures.peak_step = 2;
    figures.holders = {{KOILA_ACTIVATIONS, "aten::addmm", "train.py:31 in forward\ntrain.py:60 in <module>", 60 * kMi, 12, 2},
                       {KOILA_PARAMETERS, "aten::empty.memory_format", "", 11 * kMi, 8, 0}};
    figures.timeline = {{0.5, 10 * kMi, {1, 2, 3, 4, 5, 6, 7}}, {1.25, 199 * kMi, {10, 20, 30, 40, 50, 60, 70}}, {2.000001, 7 * kMi, {0, 7 * kMi}}};
  }
  if (device == KOILA_CPU) return figures;
  figures.failed_allocations = 3;
  figures.sizes.resize(kSizeClasses);
  figures.sizes[20] = 7;
  figures.sizes[47] = 1;
  if (device < 0) return figures;
  figures.tensor_bytes = 4;
  figures.tensor_peak_bytes = 180 * kMi;
  figures.used_bytes = 300 * kMi;
  figures.untracked_bytes = 90 * kMi;
  return figures;
}

inline ReportData full_report() {
  ReportData data;
  data.mode = KOILA_MODE_LAZY;
  data.microbatch = 16;
  data.pid = 42;
  data.host = "node7";
  data.command = "python train.py --name \"\xc3\xa9\"";
  data.torch_version = "2.13.0+cu130";
  data.started = 1760000000.25;
  data.seconds = 60.5;
  data.end = RunEnd::kCutOff;
  data.devices = {full_device(KOILA_MANAGED), full_device(KOILA_PINNED), full_device(KOILA_CPU), full_device(0), full_device(1)};
  data.sources = {{KOILA_PINNED, MemoryKind::kPinned, "program", 1, 2, 3, 4}, {0, MemoryKind::kVirtual, "c10_cuda", 5, 6, 7, 8}};
  EventList& events = data.events;
  events.steps = 20;
  events.rescues = 3;
  events.refusals = 1;
  events.rungs = {{0, {1, 0.25}}, {KOILA_RUNG_RETRY, {1, 0.125}}, {KOILA_RUNG_SPLIT, {1, 0.75}}, {KOILA_RUNG_OFFLOAD, {1, 2}}};
  events.oom_events = {
      {KOILA_CPU, KOILA_FORWARD, "aten::linear", 32 * kMi, 190 * kMi, 200 * kMi, KOILA_RESCUED, "", 128, 512, KOILA_RUNG_SPLIT, 0.75, 3, 0.75, 1},
      {0, KOILA_BACKWARD, "aten::mm", 8 * kMi, 199 * kMi, 200 * kMi, KOILA_REFUSED, "one row does not fit", 0, 512, 0, 0.25, 1, 1.5, 2},
      {1, KOILA_NO_GRAD, "", 0, 1, 0, KOILA_RESCUED, "", 0, 0, KOILA_RUNG_RETRY, 0, 1, 0, 0}};
  events.regions = {{KOILA_CPU, 512, 256, 2, 0, 1, 30, 0.5}, {KOILA_CPU, 512, 128, 4, 1, 0, 30, 0.25}};
  events.last_region = {0, 512, 64, 8, 2, 3, 31, 0.125};
  events.region_totals = {20, 80, 20, 1, 5.5};
  events.full_batch = {{"aten::cumsum", {1, 3 * kMi}}, {"aten::sort", {40, 2 * kMi}}};
  events.notes = {"KOILA_RULES is empty", "another"};
  data.steps = {{0.6, 1, KOILA_CPU, 3, 150 * kMi, 512, 256, 0}, {1.3, 2, 0, 4, 199 * kMi, 512, 128, 2}, {2.5, 20, KOILA_CPU, 5, 20 * kMi, 0, 0, 1}};
  data.leaks = {{KOILA_CPU, KOILA_ACTIVATIONS, "aten::addmm", "train.py:12 in step", "a list named `outputs` in train.py", 120 * kMi, kMi, 3, 0},
                {0, KOILA_OTHER, "", "", "a number named `total` in train.py", 7, 8, 9, 100}};
  data.facts = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  return data;
}

// As long as a report gets: lists, timelines and names at their bounds.
inline ReportData longest_report() {
  ReportData data = full_report();
  EventList& events = data.events;
  events.steps = 10000;
  data.devices = {full_device(KOILA_CPU), full_device(0), full_device(1), full_device(2), full_device(3)};
  const std::string where = "some/quite/long/path/to/a/model.py:1031 in forward\nsome/quite/long/path/to/a/train.py:60 in <module>";
  for (DeviceFigures& device : data.devices) {
    device.timeline.clear();
    for (std::size_t i = 0; i < kMaxSamples; ++i) {
      const std::int64_t bytes = 70'000'000'000 + static_cast<std::int64_t>(i) * 1'234'567;
      device.timeline.push_back({1.234567 * static_cast<double>(i), bytes, {bytes / 7, bytes / 7, bytes / 7, bytes / 7, bytes / 7, bytes / 7, bytes / 7}});
    }
    device.holders.assign(kMaxHolders, {KOILA_OPTIMIZER_STATE, "aten::scaled_dot_product_attention", where, 1'000'000'000, 1000, 10000});
  }
  data.steps.clear();
  for (std::size_t i = 0; i < kMaxSamples; ++i)
    data.steps.push_back({1.234567 * static_cast<double>(i), static_cast<std::int64_t>(i + 1) * 4, 3, 70'000'000'000, 79'000'000'000, 4096, 1024, 1});
  const std::string reason(300, 'x');
  for (std::size_t i = 3; i < kMaxOomEvents; ++i)
    events.oom_events.push_back({0, KOILA_BACKWARD, "aten::scaled_dot_product_attention", static_cast<std::int64_t>(i), 1, 2,
                                 i % 2 == 0 ? KOILA_REFUSED : KOILA_RESCUED, reason, 1, 2, KOILA_RUNG_SPLIT, 1.234567, 1, 1.234567, 5});
  while (events.regions.size() < kMaxRegions) events.regions.push_back({0, 4096, 1024, 400, 100, 10, 100000, 1.234567});
  for (std::size_t i = 0; i < kMaxFullBatchOps; ++i) events.full_batch["some_library::an_operator_of_its_own." + std::to_string(i)] = {1, static_cast<std::int64_t>(i)};
  for (std::size_t i = 0; i < kMaxNotes; ++i) events.notes.push_back(reason + std::to_string(i));
  data.leaks.assign(20, data.leaks[0]);
  return data;
}

// A trace that begins in the middle: block 0 was made before it and is alive, 1 was made before it and goes in it; 2 comes, goes, and its
// address is another's then; 3 comes twice, for its free was missed; 4 is far from the others, 5 of a device.
inline ReportData traced_report() {
  ReportData data = full_report();
  constexpr std::uint64_t kBase = 0x7f0000000000;
  const auto block = [](int device, std::uint64_t at, std::int64_t bytes, int category, const char* op, const char* where) {
    return LiveBlock{device, kBase + at, bytes, category, op, where, 1};
  };
  const auto event = [](bool alloc, int device, std::uint64_t at, std::int64_t bytes, std::int64_t us, int category, const char* op, const char* where) {
    return TraceEvent{alloc, device, kBase + at, bytes, us, category, op, where};
  };
  const char* where = "train.py:31 in forward\nlib/a b.py:60 in <module>";
  data.blocks = {block(KOILA_CPU, 0, 4096, KOILA_PARAMETERS, "aten::empty", ""), block(KOILA_CPU, 8192, 300, KOILA_GRADIENTS, "aten::mm", where),
                 block(KOILA_CPU, 64 * kMi, 32 * kMi, KOILA_ACTIVATIONS, "aten::\xff", "no place"),
                 block(KOILA_CPU, 16384, 512, KOILA_OTHER, "aten::add", ""), block(0, 0, 2 * kMi, KOILA_WORKSPACE, "", "")};
  data.trace = {event(false, KOILA_CPU, 4096, 1024, 700'000, KOILA_INPUTS, "aten::rand", ""),
                event(true, KOILA_CPU, 8192, 1000, 710'000, KOILA_ACTIVATIONS, "aten::relu", where),
                event(false, KOILA_CPU, 8192, 1000, 760'000, KOILA_ACTIVATIONS, "", ""),
                event(true, KOILA_CPU, 8192, 300, 770'000, KOILA_GRADIENTS, "aten::mm", where),
                event(true, KOILA_CPU, 16384, 256, 780'000, KOILA_OTHER, "aten::add", ""),
                event(true, KOILA_CPU, 16384, 512, 790'000, KOILA_OTHER, "aten::add", ""),
                event(true, KOILA_CPU, 64 * kMi, 32 * kMi, 800'000, KOILA_ACTIVATIONS, "aten::\xff", "no place"),
                event(true, 0, 0, 2 * kMi, 900'000, KOILA_WORKSPACE, "", "")};
  return data;
}

// As much as a snapshot holds.
inline ReportData longest_trace() {
  ReportData data = full_report();
  for (std::size_t i = 0; i < kMaxTrace; ++i) {
    const std::uint64_t address = 0x550000000000 + 4096 * (i / 2 % 1000);
    data.trace.push_back({i % 2 == 0, KOILA_CPU, address, 4000, static_cast<std::int64_t>(i), static_cast<int>(i / 2 % KOILA_CATEGORIES), "aten::op" + std::to_string(i / 2 % 50),
                          "train.py:" + std::to_string(i / 2 % 100) + " in forward\ntrain.py:200 in <module>"});
  }
  return data;
}

}  // namespace koila

#endif  // KOILA_TESTS_RUNTIME_REPORT_SAMPLES_H_
