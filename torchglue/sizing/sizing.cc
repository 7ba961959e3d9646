#include "torchglue/sizing/sizing.h"

#include <ATen/Context.h>

#include <algorithm>
#include <bit>

#include "torchglue/base/process.h"
#include "torchglue/memory/cuda_allocator.h"
#include "torchglue/oom/events.h"
#include "torchglue/sizing/boundary_bytes.h"
#include "torchglue/sizing/pressure.h"

namespace koila {

int64_t first_micro_batch(int64_t batch) {
  if (const int64_t forced = process().forced_micro_batch(); forced > 0) return std::min(forced, batch);
  if (batch <= 1) return 1;
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(batch - 1)));
}

std::shared_ptr<SizePolicy> make_policy(int64_t batch, c10::Device device) {
  SizePolicy::Options options;
  const koila_settings& settings = *process().runtime->settings;
  if (settings.microbatch > 0) {
    options.way = SizePolicy::Way::kFixed;
  } else if (settings.policy == KOILA_POLICY_POW2) {
    options.way = SizePolicy::Way::kPow2;
  }
  // A GPU is the faster the more it gets at once, and who asks for determinism asks for sizes that do not depend on the clock.
  options.timed = settings.policy == KOILA_POLICY_FASTEST && device.is_cpu() && !at::globalContext().deterministicAlgorithms();
  // Blocks of a caching allocator cannot all be used to the last byte.
  if (!device.is_cpu()) options.margin = 0.1;
  return std::make_shared<SizePolicy>(batch, first_micro_batch(batch), options);
}

std::shared_ptr<SizePolicy> make_probing_policy(int64_t batch, c10::Device device) {
  auto policy = make_policy(batch, device);
  if (process().forced_micro_batch() == 0) policy->probe(std::min(kLazyRows, policy->rows()));
  return policy;
}

std::optional<int64_t> available_bytes(c10::Device device) {
  const koila_runtime& runtime = *process().runtime;
  const int number = device_number(device);
  const int64_t budget = runtime.budget_bytes(number);
  if (device.is_cpu()) return budget > 0 ? std::make_optional(std::max<int64_t>(0, budget - runtime.live_bytes(number))) : std::nullopt;
  const auto room = cuda_room(device);
  if (!room) return std::nullopt;
  const int64_t may_come = budget > 0 ? std::min(room->free, std::max<int64_t>(0, budget - runtime.live_bytes(number))) : room->free;
  return may_come + room->cached;
}

StepSizes::UnderWay* StepSizes::find(const SizePolicy& policy) {
  const auto it = std::find_if(steps_.begin(), steps_.end(), [&](const UnderWay& step) { return step.policy.get() == &policy; });
  return it == steps_.end() ? nullptr : &*it;
}

// The one that began last.
StepSizes::UnderWay* StepSizes::find(int64_t batch) {
  const auto it = std::find_if(steps_.rbegin(), steps_.rend(), [&](const UnderWay& step) { return step.policy->batch() == batch && !step.whole; });
  return it == steps_.rend() ? nullptr : &*it;
}

void StepSizes::mark(int device_number) {
  const koila_runtime& runtime = *process().runtime;
  const int64_t peak = runtime.marked_peak(device_number);
  const BoundaryBytes boundaries = boundary_bytes(device_number);
  for (UnderWay& step : steps_) {
    if (step.device_number != device_number) continue;
    const int64_t own = peak - std::min(step.in_memory, boundaries.in_memory);
    step.peak = std::max(step.peak, own);
    step.pass_peak = std::max(step.pass_peak, own);
    step.in_memory = boundaries.in_memory;
    step.boundaries = std::max(step.boundaries, boundaries.all);
  }
  runtime.mark_peak(device_number);
}

int64_t StepSizes::begin(const std::shared_ptr<SizePolicy>& policy, c10::Device device) {
  const int number = device_number(device);
  mark(number);
  if (UnderWay* before = find(*policy)) {
    finish(*before);
    steps_.erase(steps_.begin() + (before - steps_.data()));
  }
  const auto available = available_bytes(device);
  const int64_t rows_before = policy->rows();
  const int64_t rows = policy->begin(available);
  if (rows != rows_before) {
    process().log(KOILA_LOG_DEBUG, "micro-batches of " + std::to_string(rows) + " of " + std::to_string(policy->batch()) + " rows, " + std::to_string(rows_before) +
                                       " before; " + std::to_string(available.value_or(-1)) + " bytes are available, and " + std::to_string(policy->need(rows).value_or(-1)) +
                                       " needed");
  }
  const int64_t base = process().runtime->tensor_bytes(number);
  steps_.push_back({policy, device, number, rows >= policy->batch(), base, available, base, std::chrono::steady_clock::now(), {}, 0, false, refusals_told()});
  return rows;
}

int64_t StepSizes::split(const std::shared_ptr<SizePolicy>& policy, c10::Device device) {
  const int64_t batch = policy->batch();
  if (const UnderWay* step = find(*policy)) {
    if (!step->whole && !is_refused(*step)) return policy->rows();
    if (step->whole) policy->failed(batch);
  }
  // That all of it would fit now is no news.
  if (begin(policy, device) >= batch) policy->failed(batch);
  steps_.back().whole = false;
  return policy->rows();
}

bool StepSizes::goes_on(const SizePolicy& policy, uint64_t key, int times, bool with_gradients) {
  UnderWay* step = find(policy);
  if (step == nullptr || is_refused(*step)) return false;
  int& seen = step->seeds[key];
  if (seen >= times && !(step->whole && with_gradients)) return false;
  ++seen;
  return true;
}

bool StepSizes::runs_whole(const SizePolicy& policy) {
  const UnderWay* step = find(policy);
  return step != nullptr && step->whole;
}

std::shared_ptr<SizePolicy> StepSizes::policy_of(int64_t batch) {
  const UnderWay* step = find(batch);
  return step == nullptr ? nullptr : step->policy;
}

StepSizes::Taken StepSizes::taken(int64_t batch) {
  const UnderWay* step = find(batch);
  if (step == nullptr) return {};
  mark(step->device_number);
  return {step->peak - step->base, process().runtime->tensor_bytes(step->device_number) - step->base};
}

std::optional<int64_t> StepSizes::available_to(int64_t batch) {
  const UnderWay* step = find(batch);
  return step == nullptr ? std::nullopt : step->available;
}

void StepSizes::add_region(int64_t batch) {
  if (UnderWay* step = find(batch)) ++step->regions;
}

void StepSizes::add_work(int64_t batch, int64_t operators, int64_t bytes) {
  if (UnderWay* step = find(batch)) {
    step->operators += operators;
    step->bytes += bytes;
  }
}

// Where boundaries can lie elsewhere they cost little, and so a third of the batch is none too much for them. Where they have to be made again, fewer rows are cheaper for a while: an
// operator takes some time to be called, in which memory of so many bytes could be gone through, and with fewer rows the calls are most of it.
int64_t StepSizes::enough_rows(const UnderWay& step) {
  constexpr int64_t kBytesOfCall = 80 << 10;
  const int64_t batch = step.policy->batch();
  if ((process().runtime->settings->ladder & KOILA_RUNG_OFFLOAD) != 0) return (batch + 2) / 3;
  return step.bytes > 0 ? std::clamp<int64_t>(kBytesOfCall * step.operators * batch / step.bytes, 1, std::max<int64_t>(1, batch / 4)) : 0;
}

int64_t StepSizes::enough_rows(int64_t batch) {
  const UnderWay* step = find(batch);
  return step == nullptr ? 0 : step->policy->enough();
}

std::optional<int64_t> StepSizes::room_for_boundaries(int device_number) {
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    if (step->whole || step->device_number != device_number) continue;
    const auto need = step->policy->need_of_pass(step->policy->rows());
    if (!need || !step->available) return std::nullopt;
    return std::max<int64_t>(0, *step->available - *need);
  }
  return std::nullopt;
}

void StepSizes::failed(int64_t batch, int64_t rows) {
  UnderWay* step = find(batch);
  if (step == nullptr) return;
  step->policy->failed(rows);
  step->ran_out = true;
  // What the failed pass had is not what fewer rows need.
  process().runtime->mark_peak(step->device_number);
  step->in_memory = boundary_bytes(step->device_number).in_memory;
  step->peak = process().runtime->marked_peak(step->device_number) - step->in_memory;
}

bool StepSizes::is_refused(const UnderWay& step) { return refusals_told() != step.told; }

void StepSizes::finish(UnderWay& step) {
  const int64_t rows = step.policy->rows();
  if (!step.whole) is_refused(step) ? step.policy->refused() : step.policy->came_through();
  if (step.regions > 0 && rows > 1 && process().forced_micro_batch() == 0 && pressure().persists(step.device_number, step.ran_out)) {
    step.policy->failed(rows);
    process().log(KOILA_LOG_INFO, "step after step the allocator has to empty its cache: micro-batches of " + std::to_string(step.policy->rows()) + " rows from now on");
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - step.began;
  step.policy->stages(step.boundaries, enough_rows(step));
  step.policy->end(step.peak - step.base, seconds.count(), step.regions > 1);
}

void StepSizes::end() {
  for (UnderWay& step : steps_) {
    mark(step.device_number);
    finish(step);
  }
  steps_.clear();
}

StepSizes::Aside::Aside(StepSizes& sizes, c10::Device device) : device_number_(device_number(device)) { sizes.mark(device_number_); }

StepSizes::Aside::~Aside() { process().runtime->mark_peak(device_number_); }

StepSizes::Pass::Pass(StepSizes& sizes, int64_t batch, int64_t rows, bool first) : sizes_(sizes), batch_(batch), rows_(rows), first_(first) {
  if (UnderWay* step = sizes_.find(batch_)) {
    sizes_.mark(step->device_number);
    before_ = step->pass_peak = process().runtime->tensor_bytes(step->device_number) - step->in_memory;
  }
}

void StepSizes::Pass::finish() {
  const UnderWay* step = sizes_.find(batch_);
  if (step == nullptr || first_) return;
  sizes_.mark(step->device_number);
  step->policy->passed(rows_, step->pass_peak - step->base, before_ - step->base);
}

}  // namespace koila
