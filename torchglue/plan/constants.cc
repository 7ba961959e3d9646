#include "torchglue/plan/constants.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "torchglue/op_traits.h"
#include "torchglue/placement/creation.h"
#include "torchglue/plan/decide.h"
#include "torchglue/plan/infer.h"
#include "torchglue/plan/on_tape.h"

namespace koila {

namespace {

// Whether an operator that reads something split writes to the value, or to a view of it.
bool is_written_by_the_row(const Tape& tape, const Plan& plan, TapeValueId value) {
  return std::any_of(tape.ops().begin(), tape.ops().end(), [&](const TapeOp& op) {
    return op.in_place && !op.outputs.empty() && op.outputs[0] != kNoTapeValue && tape.values()[op.outputs[0]].group == tape.values()[value].group && reads_split(plan, op);
  });
}

// Whether the operator makes a constant that has no part in the plan.
bool is_unsplit_constant(const Plan& plan, const TapeOp& op) {
  return op_traits(op.op).creates >= 0 && !op.outputs.empty() && op.outputs[0] != kNoTapeValue && plan.placements[op.outputs[0]].is_replicate();
}

}  // namespace

bool ends_in_constants(const Tape& tape, const Plan& plan) {
  ska::flat_hash_set<uint32_t> constants;  // groups
  return std::any_of(tape.ops().begin(), tape.ops().end(), [&](const TapeOp& op) {
    if (is_unsplit_constant(plan, op)) constants.insert(tape.values()[op.outputs[0]].group);
    const auto is_constant = [&](const TapeRef& ref) { return constants.count(tape.values()[ref.value].group) > 0; };
    return std::any_of(op.refs.begin(), op.refs.end(), is_constant) && reads_split(plan, op);
  });
}

Plan with_constants(const Tape& tape, Plan plan, const std::function<Score(const Plan&)>& score, Graphs graphs) {
  const at::Device device = tape.values()[plan.seeds[0].value].device;
  Score best = score(plan);
  for (const TapeOp& op : tape.ops()) {
    if (!is_unsplit_constant(plan, op) || tape.values()[op.outputs[0]].device != device) continue;
    const OpCall asked = call_on_tape(tape, op, plan.batch, [](TapeValueId) { return Placement::replicate(); });
    std::vector<Placement> ways = creatable(asked);
    const auto is_multiple = [](const Placement& p) { return p.inner > 1; };  // as many a number is by chance
    if (std::any_of(ways.begin(), ways.end(), is_multiple) && !is_written_by_the_row(tape, plan, op.outputs[0])) std::erase_if(ways, is_multiple);
    ways.push_back(Placement::partial());
    for (const Placement& way : ways) {
      OpCall call = asked;
      const Context context{op_traits(op.op), way.is_shard() ? std::make_optional(way) : std::nullopt, way.is_partial()};
      if (decide(call, context).way != Way::kJoin) continue;
      std::vector<Seed> seeds = plan.seeds;
      seeds.push_back({op.outputs[0], call.outputs()[0], /*created=*/true});
      Plan wider = infer_placements(tape, plan.batch, std::move(seeds), graphs);
      const Score its = score(wider);
      // Fewer operators run whole as well where the split part ends sooner.
      const bool fewer = wider.whole_ops < plan.whole_ops && std::get<0>(its) >= std::get<0>(best) && wider.bytes >= plan.bytes;
      if (!fewer && (wider.whole_ops > plan.whole_ops || its <= best)) continue;
      plan = std::move(wider);
      best = its;
      break;
    }
  }
  return plan;
}

bool is_made_constant(const Tape& tape, TapeValueId v) {
  return !tape.values()[v].is_capture() && makes_constant(tape.ops()[tape.values()[v].producer].op.schema());
}

}  // namespace koila
