// Invented runs, for the tests of the page and for looking at it.
#ifndef KOILA_TESTS_RUNTIME_REPORT_SAMPLE_RUNS_H_
#define KOILA_TESTS_RUNTIME_REPORT_SAMPLE_RUNS_H_

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/report/data.h"

namespace koila::samples {

constexpr std::int64_t kMi = 1 << 20;

// The memory of a training loop: parameters, gradients and state that stay, activations that rise and fall with each step.
struct Loop {
  int device = KOILA_CPU;
  std::int64_t parameters = 40 * kMi;
  std::int64_t activations = 150 * kMi;  // at the most
  std::int64_t leak_per_step = 0;
  std::int64_t steps = 40;
  double seconds_per_step = 0.35;
  double beside = 1;  // of the tensors: what the device gives is more, where an allocator caches
};

inline std::int64_t sum(const CategoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

inline CategoryBytes at(const Loop& loop, double seconds) {
  const double position = seconds / loop.seconds_per_step;
  const auto step = static_cast<std::int64_t>(position);
  const double phase = position - static_cast<double>(step);
  CategoryBytes bytes = {};
  bytes[KOILA_PARAMETERS] = loop.parameters;
  bytes[KOILA_OPTIMIZER_STATE] = step > 0 ? 2 * loop.parameters : 0;
  bytes[KOILA_INPUTS] = loop.activations / 12;
  bytes[KOILA_OTHER] = 3 * kMi + step * loop.leak_per_step;
  const double wave = phase < 0.45 ? phase / 0.45 : phase < 0.85 ? (0.85 - phase) / 0.4 : 0;
  bytes[KOILA_ACTIVATIONS] = static_cast<std::int64_t>(wave * static_cast<double>(loop.activations));
  bytes[KOILA_GRADIENTS] = phase >= 0.45 ? static_cast<std::int64_t>(std::min(1.0, (phase - 0.45) / 0.4) * static_cast<double>(loop.parameters)) : 0;
  bytes[KOILA_WORKSPACE] = phase >= 0.5 && phase < 0.9 ? loop.activations / 9 : 0;
  return bytes;
}

inline DeviceFigures figures(const Loop& loop, std::int64_t budget, std::size_t samples = kMaxSamples) {
  DeviceFigures device;
  device.device = loop.device;
  device.budget_bytes = budget;
  device.allocations = 412 * loop.steps;
  device.frees = 411 * loop.steps;
  const double length = loop.seconds_per_step * static_cast<double>(loop.steps);
  for (std::size_t i = 0; i < samples; ++i) {
    // As timelines are: the highest of what is merged into one sample.
    double seconds = 0;
    CategoryBytes bytes = {};
    for (int part = 0; part < 16; ++part) {
      const double moment = length * (static_cast<double>(i) + part / 16.0) / static_cast<double>(samples);
      const CategoryBytes then = at(loop, moment);
      if (part > 0 && sum(then) <= sum(bytes)) continue;
      seconds = moment;
      bytes = then;
    }
    const auto live = static_cast<std::int64_t>(loop.beside * static_cast<double>(sum(bytes)));
    device.timeline.push_back({seconds, live, bytes});
    if (sum(bytes) <= sum(device.peak_by_category)) continue;
    device.peak_bytes = live;
    device.peak_by_category = bytes;
    device.peak_seconds = seconds;
    device.peak_step = static_cast<std::int64_t>(seconds / loop.seconds_per_step);
  }
  device.live_bytes = device.timeline.back().live_bytes;
  device.live_by_category = device.timeline.back().by_category;
  const CategoryBytes& peak = device.peak_by_category;
  device.holders = {
      {KOILA_OPTIMIZER_STATE, "aten::zeros_like", "", peak[KOILA_OPTIMIZER_STATE], 96, 0},
      {KOILA_ACTIVATIONS, "aten::linear", "train.py:31 in forward\ntrain.py:58 in step\ntrain.py:80 in <module>", peak[KOILA_ACTIVATIONS] * 6 / 10, 24, device.peak_step},
      {KOILA_PARAMETERS, "aten::empty", "torch/nn/modules/linear.py:106 in __init__\ntrain.py:12 in __init__\ntrain.py:70 in <module>", peak[KOILA_PARAMETERS], 48, 0},
      {KOILA_ACTIVATIONS, "aten::gelu", "train.py:32 in forward\ntrain.py:58 in step", peak[KOILA_ACTIVATIONS] * 3 / 10, 12, device.peak_step},
      {KOILA_WORKSPACE, "aten::mm", "", peak[KOILA_WORKSPACE], 2, device.peak_step},
      {KOILA_INPUTS, "aten::copy_", "train.py:55 in step", peak[KOILA_INPUTS], 2, device.peak_step},
      {KOILA_OTHER, "", "", 3 * kMi, 7, 0},
  };
  device.holders.erase(std::remove_if(device.holders.begin(), device.holders.end(), [](const Holder& h) { return h.bytes == 0; }), device.holders.end());
  std::stable_sort(device.holders.begin(), device.holders.end(), [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  return device;
}

inline ReportData base(const char* command) {
  ReportData data;
  data.pid = 4711;
  data.host = "node7";
  data.command = command;
  data.torch_version = "2.13.0+cpu";
  data.started = 1'790'000'000;
  data.end = RunEnd::kExited;
  return data;
}

inline void add_steps(ReportData& data, const Loop& loop, std::int64_t peak, std::int64_t batch) {
  const std::int64_t merged = std::max<std::int64_t>(1, (loop.steps + static_cast<std::int64_t>(kMaxSamples) - 1) / static_cast<std::int64_t>(kMaxSamples));
  for (std::int64_t step = merged; step <= loop.steps; step += merged) {
    StepSample sample;
    sample.seconds = static_cast<double>(step) * loop.seconds_per_step;
    sample.step = step;
    sample.device = loop.device;
    sample.live_bytes = loop.parameters * 4;
    sample.peak_bytes = peak - (step * 7919 % 13) * kMi / 4;
    sample.batch = batch;
    sample.micro_batch = batch == 0 ? 0 : step < loop.steps / 3 ? batch / 2 : step < loop.steps * 2 / 3 ? batch / 4 : batch * 3 / 8;
    sample.rescues = batch > 0 && (step == merged || step == loop.steps / 3 / merged * merged) ? 1 : 0;
    data.steps.push_back(sample);
  }
  data.events.steps += loop.steps;
  data.seconds = std::max(data.seconds, static_cast<double>(loop.steps) * loop.seconds_per_step + 0.4);
}

// Ten thousand steps, rescued in the first and some later ones.
inline ReportData rescued() {
  ReportData data = base("python train.py --batch 512 --epochs 20 --lr 3e-4");
  const Loop loop{.steps = 10'000, .seconds_per_step = 0.35};
  data.devices = {figures(loop, 340 * kMi)};
  data.devices[0].outside_peak_bytes = 24 * kMi;
  data.devices[0].outside_written_bytes = 96 * kMi;
  add_steps(data, loop, data.devices[0].peak_bytes, 512);
  data.events.rescues = 29;
  data.events.rungs = {{KOILA_RUNG_SPLIT, {27, 9.5}}, {KOILA_RUNG_OFFLOAD, {2, 1.25}}};
  data.events.oom_events = {
      {KOILA_CPU, KOILA_FORWARD, "aten::linear", 32 * kMi, 330 * kMi, 340 * kMi, KOILA_RESCUED, "", 256, 512, KOILA_RUNG_SPLIT, 0.75, 3, 0.2, 0},
      {KOILA_CPU, KOILA_BACKWARD, "aten::mm", 16 * kMi, 334 * kMi, 340 * kMi, KOILA_RESCUED, "", 128, 512, KOILA_RUNG_SPLIT, 8.75, 24, 1166.5, 3332},
      {KOILA_CPU, KOILA_NO_GRAD, "aten::zeros_like", 8 * kMi, 339 * kMi, 340 * kMi, KOILA_RESCUED, "the update of an optimizer, which is never split", 0, 0,
       KOILA_RUNG_OFFLOAD, 1.25, 2, 2400, 6857},
  };
  data.events.last_region = {.device = KOILA_CPU, .batch = 512, .micro_batch = 192, .runs = 3, .forward_only = 0, .halvings = 0, .operators = 30, .seconds = 0.25};
  data.events.region_totals = {10'000, 31'000, 40, 2, 3400.0};
  data.events.full_batch = {{"aten::sort", {40, 2 * kMi}}, {"aten::cumsum", {10'000, 3 * kMi}}};
  data.events.notes = {"the autograd.Function MyGelu has no rule"};
  return data;
}

// Nothing ran out, and no categories are known: KOILA_MODE=track.
inline ReportData plain() {
  ReportData data = base("python examples/digits_mlp.py");
  data.mode = KOILA_MODE_TRACK;
  const Loop loop{.parameters = 2 * kMi, .activations = 7 * kMi, .steps = 60, .seconds_per_step = 0.02};
  data.devices = {figures(loop, 512 * kMi, 700)};
  for (Sample& sample : data.devices[0].timeline) sample.by_category = {};
  data.devices[0].peak_by_category = data.devices[0].live_by_category = {};
  data.devices[0].holders.clear();
  add_steps(data, loop, data.devices[0].peak_bytes, 0);
  return data;
}

inline ReportData nothing() {
  ReportData data = base("ls");
  data.torch_version.clear();
  data.started = 0;
  return data;
}

// One row did not fit, and the process was killed soon after.
inline ReportData refused() {
  ReportData data = base("python train.py --batch 64 --context 16384");
  const Loop loop{.activations = 190 * kMi, .steps = 6, .seconds_per_step = 2.5};
  data.devices = {figures(loop, 330 * kMi, 300)};
  add_steps(data, loop, 329 * kMi, 64);
  data.end = RunEnd::kCutOff;
  data.events.rescues = 1;
  data.events.refusals = 2;
  data.events.rungs = {{0, {2, 0.5}}, {KOILA_RUNG_SPLIT, {1, 1.5}}};
  data.events.oom_events = {
      {KOILA_CPU, KOILA_FORWARD, "aten::scaled_dot_product_attention", 64 * kMi, 290 * kMi, 330 * kMi, KOILA_RESCUED, "", 8, 64, KOILA_RUNG_SPLIT, 1.5, 1, 1.1, 0},
      {KOILA_CPU, KOILA_FORWARD, "aten::linear", 48 * kMi, 301 * kMi, 330 * kMi, KOILA_REFUSED, "one row does not fit", 0, 64, 0, 0.25, 1, 11.2, 4},
      {KOILA_CPU, KOILA_BACKWARD, "aten::mm", 8 * kMi, 329 * kMi, 330 * kMi, KOILA_REFUSED,
       "a hook was registered on a tensor inside the step, which would see it in micro-batches", 0, 64, 0, 0.25, 1, 14.1, 5},
  };
  data.events.full_batch = {{"my_ops::rotary", {24, 41 * kMi}}};
  return data;
}

// Two devices, one with a leak, and all that CUDA's side has to tell.
inline ReportData cuda() {
  ReportData data = base("torchrun --nproc-per-node 1 finetune.py --model gpt2-medium --batch 64");
  data.torch_version = "2.13.0+cu130";
  const Loop first{.device = 0, .parameters = 320 * kMi, .activations = 3600 * kMi, .leak_per_step = 12 * kMi, .steps = 60, .seconds_per_step = 1.4, .beside = 1.06};
  const Loop second{.device = 1, .parameters = 90 * kMi, .activations = 700 * kMi, .steps = 60, .seconds_per_step = 1.4, .beside = 1.12};
  data.devices = {figures(first, 8192 * kMi), figures(second, 0)};
  for (DeviceFigures& device : data.devices) {
    device.tensor_bytes = sum(device.live_by_category);
    device.tensor_peak_bytes = sum(device.peak_by_category);
    device.used_bytes = device.live_bytes + 450 * kMi;
    device.untracked_bytes = 450 * kMi;
    device.failed_allocations = device.device == 0 ? 3 : 0;
  }
  add_steps(data, first, data.devices[0].peak_bytes, 64);
  data.sources = {{0, MemoryKind::kDevice, "libc10_cuda.so", data.devices[0].live_bytes, data.devices[0].peak_bytes, 300, 120},
                  {0, MemoryKind::kDevice, "libcublasLt.so.13", 32 * kMi, 64 * kMi, 4, 2},
                  {1, MemoryKind::kDevice, "libc10_cuda.so", data.devices[1].live_bytes, data.devices[1].peak_bytes, 120, 40}};
  data.events.rescues = 2;
  data.events.rungs = {{KOILA_RUNG_SPLIT, {2, 3.2}}};
  data.events.oom_events = {
      {0, KOILA_FORWARD, "aten::linear", 512 * kMi, 5100 * kMi, 8192 * kMi, KOILA_RESCUED, "", 32, 64, KOILA_RUNG_SPLIT, 2.2, 1, 0.6, 0},
      {0, KOILA_BACKWARD, "aten::bmm", 256 * kMi, 5300 * kMi, 8192 * kMi, KOILA_RESCUED, "", 16, 64, KOILA_RUNG_SPLIT, 1.0, 1, 28.4, 20},
  };
  data.events.last_region = {.device = 0, .batch = 64, .micro_batch = 24, .runs = 3, .forward_only = 0, .halvings = 0, .operators = 900, .seconds = 1.3};
  data.events.region_totals = {60, 180, 2, 1, 82.0};
  data.leaks = {{0, KOILA_OTHER, "aten::add", "finetune.py:88 in train\nfinetune.py:120 in <module>", "a list named `losses` in finetune.py", 708 * kMi, 12 * kMi, 1}};
  return data;
}

// Strings that would be markup, end an element, or are no UTF-8, wherever a program may put them.
inline const std::vector<std::string>& hostile_strings() {
  static const std::vector<std::string> strings = {
      "</script><script>window.pwned = 1</script>",
      "<img src=x onerror=\"window.pwned = 1\">",
      "<!--<script>",
      "\"quotes' and \\ and `ticks` ${window.pwned = 1} &lt;b&gt;",
      "line\xE2\x80\xA8separator\xE2\x80\xA9paragraph",
      "no UTF-8: \xff\xfe\x80 and a cut one \xE2\x80",
      std::string("nul \0 bell \a escape \x1b[31m", 26),
      "right to left \xE2\x80\xAE gnp.exe",
      "@DATA@ @SCRIPTS@ </SCRIPT >",
  };
  return strings;
}

inline ReportData hostile() {
  ReportData data = cuda();
  const std::vector<std::string>& strings = hostile_strings();
  std::string all;
  for (const std::string& string : strings) all += string + " ";
  data.command = data.host = data.torch_version = all;
  data.events.notes = strings;
  data.events.full_batch.clear();
  data.devices[0].holders.clear();
  data.events.oom_events.clear();
  data.leaks.clear();
  for (const std::string& string : strings) {
    data.events.full_batch[string] = {1, 1};
    data.devices[0].holders.push_back({KOILA_ACTIVATIONS, string, string + "\n" + string, kMi, 1, 1});
    data.events.oom_events.push_back({0, KOILA_FORWARD, string, 1, 1, 1, KOILA_REFUSED, string, 0, 0, 0, 0, 1, 0, 0});
    data.leaks.push_back({0, KOILA_OTHER, string, string, string, kMi, kMi, 1});
    data.sources.push_back({0, MemoryKind::kDevice, string, 1, 1, 1, 1});
  }
  return data;
}

// Every list as long as data.h and events.h allow, every number long.
inline ReportData full() {
  ReportData data = base("python train.py");
  const Loop loop{.parameters = 3'333'333'333, .activations = 9'876'543'210, .steps = 10'000, .seconds_per_step = 0.35123457, .beside = 1.01};
  const std::string stack = [] {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "/home/someone/projects/a/long/path/module.py:" + std::to_string(i) + " in forward\n";
    return text;
  }();
  for (int device = 0; device < 8; ++device) {
    Loop of = loop;
    of.device = device;
    data.devices.push_back(figures(of, std::int64_t{80} << 30));
    data.devices.back().holders.assign(kMaxHolders, {KOILA_ACTIVATIONS, "aten::scaled_dot_product_attention", stack, 1'234'567'890, 24, 9'999});
  }
  add_steps(data, loop, data.devices[0].peak_bytes, 512);
  const OomEvent event{0, KOILA_BACKWARD, "aten::scaled_dot_product_attention", 1'234'567'890, 78'901'234'567, 80 * kMi * 1024, KOILA_RESCUED,
                       "a reason that takes a line or so to tell what happened and why it went on", 128, 512, KOILA_RUNG_SPLIT, 0.123457, 12, 1234.567891, 3456};
  data.events.rescues = 12'000;
  data.events.oom_events.assign(kMaxOomEvents, event);
  for (std::size_t i = 0; i < data.events.oom_events.size(); ++i) data.events.oom_events[i].at = 3.5 * static_cast<double>(i);
  for (std::size_t i = 0; i < kMaxFullBatchOps; ++i) data.events.full_batch["my_library::operator_number_" + std::to_string(i)] = {1234, 1'234'567};
  data.events.notes.assign(kMaxNotes, std::string(300, 'n'));
  return data;
}

}  // namespace koila::samples

#endif  // KOILA_TESTS_RUNTIME_REPORT_SAMPLE_RUNS_H_
