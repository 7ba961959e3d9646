#include "torchglue/rescue/learn.h"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "torchglue/op_traits.h"
#include "torchglue/sizing/sizing.h"
#include "torchglue/step/session.h"

namespace koila {

std::vector<LearnedSeed> learn(const Tape& tape, const Plan& plan, bool begins_whole) {
  std::map<uint64_t, int> times;
  std::vector<std::tuple<const TapeOp*, uint64_t, LearnedSeed>> found;
  std::shared_ptr<SizePolicy> policy;
  for (const Seed& seed : plan.seeds) {
    const TapeOp* reader = nullptr;
    if (seed.created) reader = &tape.ops()[tape.values()[seed.value].producer];
    for (const TapeOp& op : tape.ops()) {
      if (reader == nullptr && std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& r) { return r.value == seed.value; })) {
        reader = &op;
        break;
      }
    }
    if (reader == nullptr) reader = tape.pending();
    if (reader == nullptr) continue;
    uint64_t key = Signatures::start_key(reader->op, tape.state(reader->state).grad_mode);
    const TapeRef* at = nullptr;
    for (const TapeRef& ref : reader->refs) {
      const TapeValue& v = tape.values()[ref.value];
      key = Signatures::add_to_key(key, {v.sizes, v.dtype, v.requires_grad});
      if (ref.value == seed.value && at == nullptr) at = &ref;
    }
    if (const int sizes = op_traits(reader->op).creates; sizes >= 0 && reader->args[sizes].isList()) key = Signatures::add_to_key(key, reader->args[sizes]);
    if (at == nullptr && !seed.created) continue;
    LearnedSeed learned;
    learned.argument = seed.created ? -1 : at->arg;
    learned.element = seed.created ? -1 : at->element;
    learned.placement = seed.placement;
    learned.device = tape.values()[seed.value].device.type();
    if (policy == nullptr) policy = session().signatures.find_policy(key, plan.batch);
    ++times[key];
    found.emplace_back(reader, key, std::move(learned));
  }
  // How many entries are whose is another matter in the next step.
  const bool lasts = std::none_of(plan.seeds.begin(), plan.seeds.end(), [](const Seed& seed) { return seed.placement.ragged != nullptr; });
  std::vector<LearnedSeed> seeds;
  if (policy == nullptr) policy = make_policy(plan.batch, tape.values()[plan.seeds[0].value].device);
  for (auto& [reader, key, seed] : found) {
    seed.key = key;
    seed.op = c10::toString(reader->op.operator_name());
    seed.policy = policy;
    seed.times = times[key];
    if (!begins_whole && lasts) session().signatures.learn(seed);
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

int64_t begin_step(const std::vector<LearnedSeed>& seeds, int64_t batch, at::Device device) {
  return seeds.empty() ? first_micro_batch(batch) : session().sizes.split(seeds.front().policy, device);
}

}  // namespace koila
