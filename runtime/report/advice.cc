#include "runtime/report/advice.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "runtime/bytes.h"
#include "runtime/report/phrases.h"
#include "runtime/report/remedy.h"
#include "runtime/report/report.h"

namespace koila {
namespace {

constexpr std::size_t kShownLeaks = 3;
constexpr std::size_t kShownOps = 3;
constexpr std::int64_t kShareWorth = 20;  // of the peak: what saves less than one part of so many is not worth a change

std::string times(std::int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

std::int64_t tensors_at_peak(const DeviceFigures& device) {
  return std::accumulate(device.peak_by_category.begin(), device.peak_by_category.end(), std::int64_t{0});
}

// What a run says about one device, in the words of the rules below.
struct Peak {
  const DeviceFigures& device;
  const ProgramFacts& facts;
  bool saw_operators;  // not in KOILA_MODE=track, where whether there was autocast or a checkpoint is not known
  bool cut;            // by the memory that there was: activations would be more, nobody knows how many

  std::int64_t of(int category) const { return device.peak_by_category[category]; }
  std::int64_t tensors() const { return tensors_at_peak(device); }
  // Whether most of the parameters are in 16 bits.
  bool half() const { return facts.half_parameters_bytes * 2 > of(KOILA_PARAMETERS); }
  std::int64_t parameters() const { return of(KOILA_PARAMETERS) / (half() ? 2 : 4); }  // how many, about
};

using Rule = std::optional<Advice> (*)(const Peak&);

// Under autocast the activations of matrix products and what follows them are half as large; norms, softmax and losses stay in float32, so
// half of all is the most. Against that stands a 16-bit copy of the weights, which autocast keeps for the pass.
std::optional<Advice> mixed_precision(const Peak& peak) {
  if (!peak.saw_operators || peak.facts.autocast > 0 || peak.half()) return std::nullopt;
  const std::int64_t saves = peak.of(KOILA_ACTIVATIONS) / 2 - peak.of(KOILA_PARAMETERS) / 2;
  if (peak.cut) return Advice{"mixed precision: the forward pass under torch.autocast makes most activations half as large", saves};
  return Advice{"mixed precision: the forward pass under torch.autocast makes most of the " + format_bytes(peak.of(KOILA_ACTIVATIONS)) +
                    " of activations half as large, up to " + format_bytes(saves) + " less at the peak",
                saves};
}

// n tensors alike in a chain, cut into k parts: what remains is k inputs, and the n/k tensors of the part that is being computed again. The best
// k is the square root of n, and leaves 2/sqrt(n) of them. What one tensor takes cannot be saved, and no more than three quarters
// are promised, for the tensors of a real model are not alike.
std::optional<Advice> checkpointing(const Peak& peak) {
  const std::int64_t activations = peak.of(KOILA_ACTIVATIONS);
  if (!peak.saw_operators || peak.facts.checkpoints > 0 || activations * 2 < peak.tensors()) return std::nullopt;
  std::int64_t count = 0, largest = 0;
  for (const Holder& holder : peak.device.holders) {
    if (holder.category != KOILA_ACTIVATIONS || holder.count <= 0) continue;
    count += holder.count;
    largest = std::max(largest, holder.bytes / holder.count);
  }
  if (count == 0) return std::nullopt;
  const double share = std::max(0.25, 2 / std::sqrt(static_cast<double>(count)));
  const std::int64_t remains = std::max(static_cast<std::int64_t>(share * static_cast<double>(activations)), largest);
  if (peak.cut) return Advice{"activation checkpointing (torch.utils.checkpoint), which keeps a part of the activations and computes the forward pass twice", activations - remains};
  const auto parts = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(count))));
  return Advice{"activation checkpointing (torch.utils.checkpoint, which computes the forward pass twice): of " + times(count, "activation") + " with " +
                    format_bytes(activations) + ", cut into " + std::to_string(parts) + " parts, about " + format_bytes(remains) + " would remain",
                activations - remains};
}

// With set_to_none they go before the forward pass, and come back while backward frees activations.
std::optional<Advice> gradients_to_none(const Peak& peak) {
  if (peak.facts.kept_gradients < 2) return std::nullopt;
  const std::int64_t saves = std::min(peak.facts.kept_gradients_bytes, peak.of(KOILA_GRADIENTS));
  return Advice{"optimizer.zero_grad(set_to_none=True) right after optimizer.step(): gradients of " + format_bytes(saves) +
                    " that were used already stay through the next forward pass",
                saves};
}

// Of what is made and given back at once only that part counts which is in the peak.
std::optional<Advice> fused_optimizer(const Peak& peak) {
  if (peak.facts.fused_optimizer > 0 || peak.facts.foreach_bytes == 0) return std::nullopt;
  const std::int64_t saves = std::min(peak.facts.foreach_bytes, peak.of(KOILA_WORKSPACE));
  return Advice{"a fused optimizer (fused=True), or foreach=False: one step over all parameters at once makes " + format_bytes(peak.facts.foreach_bytes) +
                    " of intermediate results, at the peak of the run",
                saves};
}

// State in 8 bits takes a quarter of that in float32, and half of that in 16 bits. By the bytes per parameter: Adam in float32 has 8, momentum in
// float32 has 4, Adam in 16 bits 4; Adam in 8 bits, or momentum in 16, has 2, and is small already.
std::optional<Advice> smaller_state(const Peak& peak) {
  const std::int64_t state = peak.of(KOILA_OPTIMIZER_STATE);
  if (!peak.saw_operators || peak.parameters() == 0 || state * 2 < peak.parameters() * 5) return std::nullopt;
  const std::int64_t saves = peak.half() ? state / 2 : state / 4 * 3;
  return Advice{"an optimizer with less state: of " + format_bytes(state) + " an 8-bit one (bitsandbytes, torchao) keeps " + format_bytes(state - saves) +
                    ", torch.optim.Adafactor or plain SGD next to nothing",
                saves};
}

std::optional<Advice> no_grad(const Peak& peak) {
  if (peak.facts.graph_in_evaluation == 0) return std::nullopt;
  return Advice{"with torch.no_grad(), or torch.inference_mode(), where there is no backward pass: " + std::to_string(peak.facts.graph_in_evaluation) +
                    (peak.facts.graph_in_evaluation == 1 ? " forward pass" : " forward passes") + " kept up to " + format_bytes(peak.facts.graph_in_evaluation_bytes) +
                    " for one that never came",
                peak.facts.graph_in_evaluation_bytes};
}

constexpr Rule kRules[] = {mixed_precision, checkpointing, gradients_to_none, fused_optimizer, smaller_state, no_grad};

bool worth(const Advice& advice, std::int64_t peak) { return advice.saves_bytes > 0 && advice.saves_bytes >= peak / kShareWorth; }

// Of the device with the most tensors at its peak: the savings of two devices cannot be added.
const DeviceFigures* fullest(const ReportData& data) {
  const DeviceFigures* found = nullptr;
  for (const DeviceFigures& device : data.devices) {
    if (device.device < KOILA_CPU) continue;
    if (found == nullptr || tensors_at_peak(device) > tensors_at_peak(*found)) found = &device;
  }
  return found;
}

// Leaks that have one holder, or none that is known, are one to the reader: a graph keeps tensors of many operators.
std::vector<Advice> for_leaks(const std::vector<Leak>& leaks) {
  struct Group {
    Leak sum;  // with the place of the largest
    std::vector<std::string> ops;
    bool activations = false;
  };
  std::vector<Group> groups;
  for (const Leak& leak : leaks) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.sum.holder == leak.holder; });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), Group{});
      group->sum.holder = leak.holder;
      group->sum.where = leak.where;
    }
    group->sum.graph_nodes += leak.graph_nodes;
    group->activations |= leak.category == KOILA_ACTIVATIONS;
    if (leak.graph_nodes > 0) continue;  // bytes of the process at large, and few beside those of tensors
    group->sum.bytes += leak.bytes;
    group->sum.bytes_per_step += leak.bytes_per_step;
    if (!leak.op.empty() && std::find(group->ops.begin(), group->ops.end(), leak.op) == group->ops.end()) group->ops.push_back(leak.op);
  }
  std::vector<Advice> list;
  for (const Group& group : groups) {
    if (list.size() == kShownLeaks) break;
    std::string text = group.sum.holder.empty() ? "something that the program keeps: " : group.sum.holder + ": ";
    if (group.sum.bytes == 0) {
      const auto nodes = std::find_if(leaks.begin(), leaks.end(), [&](const Leak& l) { return l.holder == group.sum.holder; });
      text += "keeps the autograd graph of every step, " + std::to_string(group.sum.graph_nodes) + " nodes by now";
      if (nodes->bytes > 0) text += " (" + format_bytes(nodes->bytes) + " of host memory)";
      list.push_back({text + "; add numbers up instead (loss.item(), or loss.detach())", nodes->bytes});
      continue;
    }
    text += format_bytes(group.sum.bytes) + " in tensors";
    for (std::size_t i = 0; i < std::min(group.ops.size(), kShownOps); ++i) text += (i == 0 ? " of " : ", ") + group.ops[i];
    if (group.ops.size() > kShownOps) text += " and others";
    text += " add up, " + format_bytes(group.sum.bytes_per_step) + " a step";
    const std::string innermost = group.sum.where.substr(0, group.sum.where.find('\n'));
    if (!innermost.empty()) text += ", made at " + innermost;
    text += group.activations || group.sum.graph_nodes > 0 ? "; keep numbers (.item()) or detached copies, and clear what holds them" : "; clear what holds them, or keep fewer";
    list.push_back({text, group.sum.bytes});
  }
  return list;
}

// The operator at full batch with the most bytes, and what it would give back in micro-batches: all but its share of the rows.
struct AtFullBatch {
  std::string op;
  std::int64_t saves = 0;
};

AtFullBatch largest_at_full_batch(const EventList& events) {
  const auto largest = std::max_element(events.full_batch.begin(), events.full_batch.end(), [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
  const std::int64_t batch = events.last_region.batch, rows = events.last_region.micro_batch;
  const double rest = batch > 0 ? 1 - static_cast<double>(rows) / static_cast<double>(batch) : 0;
  return {largest->first, static_cast<std::int64_t>(rest * static_cast<double>(largest->second.bytes))};
}

bool is_of_activations(const Advice& advice) { return advice.text.starts_with("mixed precision") || advice.text.starts_with("activation checkpointing"); }

// What would make the peak of the fullest device lower. Where that peak was cut by the memory that there was, no figure is taken from its activations.
std::vector<Advice> lower_peak(const ReportData& data, bool cut) {
  std::vector<Advice> savers;
  const DeviceFigures* device = fullest(data);
  if (device == nullptr) return savers;
  const Peak peak{*device, data.facts, data.mode != KOILA_MODE_TRACK, cut};
  for (const Rule rule : kRules) {
    const std::optional<Advice> found = rule(peak);
    if (found && worth(*found, peak.tensors())) savers.push_back(*found);
  }
  std::stable_sort(savers.begin(), savers.end(), [](const Advice& a, const Advice& b) { return a.saves_bytes > b.saves_bytes; });
  for (Advice& saver : savers)
    if (cut && is_of_activations(saver)) saver.saves_bytes = 0;
  return savers;
}

// What the first refusal's reason asks for.
std::string remedy_of_refusal(const EventList& events) {
  if (events.refusals == 0) return "";
  const auto first = std::find_if(events.oom_events.begin(), events.oom_events.end(), [](const OomEvent& e) { return e.outcome == KOILA_REFUSED; });
  return first == events.oom_events.end() ? "" : remedy(first->reason);
}

// A part of the run's time, below which what running out costs is not worth a change.
constexpr double kCostly = 0.05;
constexpr std::int64_t kManyParts = 16;  // micro-batches of a batch, from which on more memory would make the step faster

}  // namespace

std::vector<Advice> advice(const ReportData& data) {
  const EventList& events = data.events;
  const auto with_budget = [&](auto holds) {
    return std::any_of(data.devices.begin(), data.devices.end(), [&](const DeviceFigures& d) { return d.budget_bytes > 0 && holds(d); });
  };
  const auto rescues_by = [&](int rung) {
    const auto found = events.rungs.find(rung);
    return found == events.rungs.end() ? std::int64_t{0} : found->second.count;
  };
  // Where a budget was never reached, there is no need for a lower peak.
  const bool reached = events.rescues > 0 || events.refusals > 0 || events.region_totals.count > 0 ||
                       with_budget([](const DeviceFigures& d) { return d.failed_allocations > 0; });
  const bool limited = with_budget([](const DeviceFigures&) { return true; });
  const std::int64_t offloaded = rescues_by(KOILA_RUNG_OFFLOAD);
  const koila_region_event& last = events.last_region;

  std::vector<Advice> list = for_leaks(data.leaks);
  if (data.mode == KOILA_MODE_TRACK && events.refusals > 0) list.push_back({remedy("KOILA_MODE=track only counts"), 0});
  if (data.facts.fragmented_bytes > 0 && data.facts.expandable_segments == 0) {
    list.push_back({"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: when memory ran out, " + format_bytes(data.facts.fragmented_bytes) +
                        " were cached, enough for the request, but in pieces",
                    data.facts.fragmented_bytes});
  }
  if (const std::string todo = remedy_of_refusal(events); data.mode != KOILA_MODE_TRACK && !todo.empty()) list.push_back({todo, 0});
  if (events.refusals > 0 && !events.full_batch.empty()) {
    const AtFullBatch op = largest_at_full_batch(events);
    list.push_back({"a rule for " + op.op + " (KOILA_RULES), which kept its whole batch in memory, or a larger budget", op.saves});
  }
  const bool anew = data.mode == KOILA_MODE_RESCUE && data.microbatch == 0 && events.refusals == 0 && offloaded == 0 && events.steps >= 10 &&
                    rescues_by(KOILA_RUNG_SPLIT) * 2 > events.steps && last.micro_batch > 0;
  if (anew) list.push_back({"KOILA_MICROBATCH=" + std::to_string(last.micro_batch) + ", since most steps had to be rescued anew", 0});
  if (events.refusals == 0 && !events.full_batch.empty() && events.region_totals.count > 0) {
    const AtFullBatch op = largest_at_full_batch(events);
    list.push_back({"a rule for " + op.op + " (KOILA_RULES) would let it run in micro-batches too", op.saves});
  }

  const double cost = seconds_of_running_out(data);
  const bool few_parts = last.micro_batch > 0 && last.batch <= last.micro_batch * kManyParts;
  const bool all_well = data.mode != KOILA_MODE_TRACK && events.refusals == 0 && offloaded == 0 && events.region_totals.count > 0 && few_parts;
  if (!all_well && (reached || !limited)) {
    const std::vector<Advice> savers = lower_peak(data, reached);
    list.insert(list.end(), savers.begin(), savers.end());
  }
  if (events.refusals > 0 && events.full_batch.empty()) list.push_back({"a larger budget, or a change that the refusal's reason names", 0});
  if (offloaded > 0 && events.refusals == 0)
    list.push_back({"a larger budget or a smaller batch: in " + times(offloaded, "step") + " what nothing could split was kept outside, which is slower", 0});
  // A step that ran out before the size was known has to be made again in each new process.
  const bool costly = cost >= kCostly * data.seconds;
  if (costly && data.mode != KOILA_MODE_TRACK && data.microbatch == 0 && data.facts.size_cache == 0 && events.region_totals.count > 0 && rescues_by(KOILA_RUNG_SPLIT) > 0)
    list.push_back({"KOILA_CACHE=koila.sizes, from which the next run would know its micro-batch without running out first", 0});
  if (all_well && list.empty()) list.push_back({"nothing to do: every step came through" + (events.rescues > 0 ? ", and running out cost " + duration(cost) + " in all" : std::string()), 0});
  if (limited && !reached && data.leaks.empty() && with_budget([](const DeviceFigures& d) { return d.peak_bytes > 0; }))
    list.push_back({"nothing to do: the budget was never reached", 0});
  return list;
}

std::string next_thing_to_try(const ReportData& data) {
  const std::vector<Advice> all = advice(data);
  return all.empty() ? "" : all.front().text;
}

}  // namespace koila
