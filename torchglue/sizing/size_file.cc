#include "torchglue/sizing/size_file.h"

#include <c10/util/hash.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "runtime/size_cache.h"
#include "torchglue/sizing/signatures.h"
#include "torchglue/sizing/sizing.h"
#include "torchglue/base/process.h"

namespace koila {

void SizeFile::load(Signatures& signatures) {
  const std::string path = process().runtime->settings->cache;
  if (path.empty()) return;
  const SizeCacheFile file = read_size_cache(path, TORCH_VERSION);
  if (!file.problem.empty()) process().warn(file.problem);
  usable_ = file.ours;
  for (const CachedStep& step : file.steps) {
    const c10::Device device = step.device == "cpu" ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, 0);
    const auto policy = make_policy(step.batch, device);
    std::vector<SizePolicy::Observation> observations;
    for (const CachedObservation& o : step.observations) observations.push_back({o.rows, o.bytes, o.seconds});
    std::vector<SizePolicy::Failure> failures;
    for (const CachedFailure& f : step.failures) failures.push_back({f.rows, f.available, 0, 0});
    // A size that was settled by the clock (`fastest`) is not taken by a process whose sizes follow from memory alone.
    std::map<int64_t, int64_t> choices;
    for (const CachedChoice& c : step.choices) {
      if (c.timed == policy->timed()) choices[c.available] = c.rows;
    }
    policy->restore(observations, failures, std::move(choices));
    for (const CachedSeed& seed : step.seeds) {
      signatures.learn({seed.op, seed.key, seed.times, seed.argument, seed.element, Placement::shard(seed.dim, seed.outer, seed.inner), device.type(), policy});
    }
  }
  if (!file.steps.empty()) process().log(KOILA_LOG_INFO, "KOILA_CACHE " + path + ": " + std::to_string(file.steps.size()) + " kinds of step are known");
}

void SizeFile::step_over(const Signatures& signatures) {
  if (!usable_ || signatures.empty()) return;
  if (++steps_ < due_) return;
  constexpr int64_t kAtMostEvery = 4096;  // steps
  due_ = steps_ + std::min(kAtMostEvery, 3 * steps_);
  save(signatures);
}

void SizeFile::save(const Signatures& signatures) {
  struct Kind {
    const SizePolicy* policy;
    CachedStep step;
    bool whole = true;  // every seed can be written
  };
  std::vector<Kind> kinds;  // by their seeds, and not by where a policy lies in memory: the order is that of the file
  signatures.for_each([&](const LearnedSeed& seed) {
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) { return k.policy == seed.policy.get(); });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {seed.policy.get(), {}});
    CachedStep& step = kind->step;
    kind->whole &= seed.placement.is_shard() && seed.placement.ragged == nullptr;
    const Placement& p = seed.placement;
    step.device = seed.device == at::kCPU ? "cpu" : "cuda";
    step.seeds.push_back({seed.op, seed.key, seed.times, seed.argument, seed.element, p.dim, p.outer, p.inner});
  });
  std::vector<CachedStep> known;
  for (auto& [policy, step, whole] : kinds) {
    if (!policy->knows() || !whole) continue;
    std::sort(step.seeds.begin(), step.seeds.end(), [](const CachedSeed& a, const CachedSeed& b) { return a.key < b.key; });
    for (const CachedSeed& seed : step.seeds) step.id = c10::hash_combine(step.id, seed.key);
    step.batch = policy->batch();
    for (const auto& o : policy->observations()) step.observations.push_back({o.rows, o.bytes, o.seconds});
    for (const auto& f : policy->failures()) step.failures.push_back({f.rows, f.available});
    for (const auto& [available, rows] : policy->choices()) step.choices.push_back({available, rows, policy->timed()});
    step.used = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    known.push_back(std::move(step));
  }
  if (known.empty()) {
    due_ = steps_ + 1;
    return;
  }
  const SizeCacheWritten written = write_size_cache(process().runtime->settings->cache, TORCH_VERSION, known);
  if (written.busy) {
    due_ = steps_ + 1;
  } else if (!written.problem.empty()) {
    process().warn(written.problem);
    usable_ = false;
  }
}

}  // namespace koila
