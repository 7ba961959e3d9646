// What a report is made of: a snapshot of one run, whole or up to where it was cut off. Plain data; each writer is a pure function of it.
//
// Bytes and rows are integers; times are seconds since the process met PyTorch (`started`), on a monotonic clock.
#ifndef KOILA_RUNTIME_REPORT_DATA_H_
#define KOILA_RUNTIME_REPORT_DATA_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "runtime/abi.h"
#include "runtime/device_memory.h"
#include "runtime/events.h"

namespace koila {

// Bytes by enum koila_category.
using CategoryBytes = std::array<std::int64_t, KOILA_CATEGORIES>;

constexpr std::size_t kMaxHolders = 40;     // per device
constexpr std::size_t kMaxSamples = 2048;   // of a timeline; beyond that neighbours are merged into one, with the higher bytes of the two
constexpr std::size_t kMaxTrace = 100'000;  // events, the latest

// Blocks of one kind that were alive at a device's peak: of one category, made by one operator, at one place.
struct Holder {
  int category = KOILA_OTHER;
  std::string op;     // "aten::addmm"; "" when unknown (KOILA_MODE=track follows no operators)
  std::string where;  // "train.py:31 in forward", innermost first, frames separated by '\n'; "" without KOILA_STACKS=1
  std::int64_t bytes = 0;
  std::int64_t count = 0;
  std::int64_t step = 0;  // in which the first of them was made: steps that had ended by then
};

// A moment on a device.
struct Sample {
  double seconds = 0;
  std::int64_t live_bytes = 0;  // on a CUDA device with tensors, these; else what CUDA gave
  CategoryBytes by_category = {};
};

struct DeviceFigures {
  int device = KOILA_CPU;
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t budget_bytes = 0;
  std::int64_t allocations = 0;
  std::int64_t frees = 0;
  std::int64_t outside_bytes = 0;       // tensors of the device that koila keeps outside its memory
  std::int64_t outside_peak_bytes = 0;
  std::int64_t outside_written_bytes = 0;  // all that was ever put there
  // Tensors, where the adapter is attached; on a CUDA device, of those inside the blocks of the caching allocator, as asked for.
  CategoryBytes live_by_category = {};
  CategoryBytes peak_by_category = {};  // when the tensors of the device were most
  double peak_seconds = 0;              // when that was
  std::int64_t peak_step = 0;           // steps that had ended by then
  std::vector<Holder> holders;          // at the peak, the same moment; the largest first, kMaxHolders
  std::vector<Sample> timeline;         // kMaxSamples
  // What follows is of memory that CUDA gives.
  std::int64_t failed_allocations = 0;  // over the budget, or refused by CUDA; a caching allocator asks again
  std::int64_t tensor_bytes = 0;        // alive inside the blocks of PyTorch's caching allocator, as asked for
  std::int64_t tensor_peak_bytes = 0;
  std::int64_t used_bytes = 0;          // on the device, by everybody, when CUDA was last asked; 0: never
  std::int64_t untracked_bytes = 0;     // of these, what koila had not seen given: CUDA's own, of static runtimes, of other processes
  std::vector<std::int64_t> sizes;      // allocations by size class, see DeviceMemory
};

// A timeline notes moves of some size, and so may end a little below the peak: on the CPU, where the peak is one of tensors, its moment is put in.
inline void show_peak(DeviceFigures& figures) {
  std::vector<Sample>& line = figures.timeline;
  const CategoryBytes& parts = figures.peak_by_category;
  const std::int64_t peak = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  if (figures.device != KOILA_CPU || line.empty() || peak != figures.peak_bytes) return;
  if (std::any_of(line.begin(), line.end(), [&](const Sample& s) { return s.live_bytes >= peak; })) return;
  auto at = std::upper_bound(line.begin(), line.end(), figures.peak_seconds, [](double seconds, const Sample& s) { return seconds < s.seconds; });
  const bool is_full = line.size() >= kMaxSamples;
  if (at != line.begin() && (is_full || std::prev(at)->seconds == figures.peak_seconds)) --at;
  else if (!is_full) at = line.insert(at, Sample());
  *at = {figures.peak_seconds, peak, parts};
}

// A step, or several neighbours of a long run merged into one: then `step` is the last of them.
struct StepSample {
  double seconds = 0;          // at its end
  std::int64_t step = 0;       // from 1
  int device = KOILA_CPU;      // whose memory it used most
  std::int64_t live_bytes = 0; // tensors on that device at the end of its backward pass
  std::int64_t peak_bytes = 0; // and the most within it; of merged steps the highest
  std::int64_t batch = 0;       // rows; 0: nothing of it was split
  std::int64_t micro_batch = 0;
  std::int64_t rescues = 0;     // of all steps merged here
};

// Tensors that add up from step to step.
struct Leak {
  int device = KOILA_CPU;
  int category = KOILA_OTHER;
  std::string op;      // that made them
  std::string where;   // as in Holder
  std::string holder;  // what in the program keeps them, such as "a list named `outputs` in train.py"; "" when unknown
  std::int64_t bytes = 0;           // alive by now
  std::int64_t bytes_per_step = 0;
  std::int64_t first_step = 0;
  std::int64_t graph_nodes = 0;  // not 0: nodes of autograd graphs are what adds up, and bytes are of the process's memory at large
};

// What was seen of how the program trains. Each is a count of steps (or of allocations) in which it was so; 0: never.
struct ProgramFacts {
  std::int64_t autocast = 0;             // steps with torch.autocast
  std::int64_t half_parameters_bytes = 0;  // parameters in a 16-bit type
  std::int64_t checkpoints = 0;          // steps with torch.utils.checkpoint
  std::int64_t kept_gradients = 0;       // steps, of those looked at, whose forward pass began with the .grad of an earlier update alive
  std::int64_t kept_gradients_bytes = 0; // the most of them
  std::int64_t graph_in_evaluation = 0;  // forward passes with gradients that no backward pass followed
  std::int64_t graph_in_evaluation_bytes = 0;  // the most that such a one kept
  std::int64_t foreach_bytes = 0;        // the most that one multi-tensor operator of an optimizer made at once, and gave back
  std::int64_t fused_optimizer = 0;      // steps with a fused one
  std::int64_t expandable_segments = 0;  // 1: in use
  std::int64_t fragmented_bytes = 0;     // at an out-of-memory on CUDA: cached by the allocator, and of no use to the request
  std::int64_t size_cache = 0;           // 1: KOILA_CACHE is set
};

// An event of one tensor's memory, for PyTorch's viewer. Kept only where a snapshot is asked for.
struct TraceEvent {
  bool alloc = true;
  int device = KOILA_CPU;
  std::uint64_t address = 0;
  std::int64_t bytes = 0;
  std::int64_t microseconds = 0;  // since `started`
  int category = KOILA_OTHER;     // by what was known when it happened
  std::string op;
  std::string where;
};

// A tensor's memory that is alive.
struct LiveBlock {
  int device = KOILA_CPU;
  std::uint64_t address = 0;
  std::int64_t bytes = 0;
  int category = KOILA_OTHER;
  std::string op;
  std::string where;
  std::int64_t step = 0;
};

struct Advice {
  std::string text;             // one sentence: what to do
  std::int64_t saves_bytes = 0; // 0: cannot be told
};

enum class RunEnd { kExited, kRunning, kCutOff };  // kCutOff: the process is gone, and its exit was not recorded

struct ReportData {
  int mode = KOILA_MODE_RESCUE;
  std::int64_t microbatch = 0;  // forced rows; 0: none
  std::int64_t pid = 0;
  std::string host;
  std::string command;  // of the process, as far as it is known
  std::string torch_version;
  double started = 0;   // seconds since 1970
  double seconds = 0;   // until this snapshot
  RunEnd end = RunEnd::kRunning;
  std::vector<DeviceFigures> devices;  // those with allocations, or a budget
  std::vector<SourceFigures> sources;  // who asked for memory that CUDA gives
  EventList events;
  std::vector<StepSample> steps;       // kMaxSamples
  std::vector<Leak> leaks;
  ProgramFacts facts;
  std::vector<LiveBlock> blocks;       // where a snapshot is asked for
  std::vector<TraceEvent> trace;

  // Whether there is more to tell than that the process ran: a step, an out-of-memory, or a budget.
  bool is_worth_a_line() const;
  // From the end of the first step to that of the last; nothing where there was but one. Every form of the report tells this one figure.
  std::optional<double> seconds_per_step() const;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_DATA_H_
