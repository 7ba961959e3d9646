#include "torchglue/plan/seeds.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "torchglue/op_traits.h"
#include "torchglue/placement/creation.h"
#include "torchglue/placement/rule.h"
#include "torchglue/placement/user_rules.h"
#include "torchglue/statistics/running_arguments.h"

namespace koila {

namespace {

// An operator without a rule keeps the split of an input in an output of the same extent, often enough to be worth the try.
Placement guess(const TapeValue& out, const OpCall& call, int64_t batch) {
  for (const OpCall::Arg& arg : call.args()) {
    for (const TensorSpec& t : arg.tensors) {
      const Placement& p = t.placement;
      if (p.is_shard() && p.dim < static_cast<int64_t>(out.sizes.size()) && out.sizes[p.dim] == p.extent(batch)) return p;
    }
  }
  return Placement::replicate();
}

// What has to be made whole that is split by rows.
int64_t gathered_bytes(const Tape& tape, const Plan& plan, const TapeOp& op, const OpCall& call) {
  int64_t bytes = 0;
  for (const TapeRef& ref : op.refs) {
    if (plan.placements[ref.value].is_shard() && call.is_whole({ref.arg, ref.element})) bytes += tape.values()[ref.value].bytes();
  }
  return bytes;
}

// Whether the results that the operator gave are of the sizes that its rule says. Those of the tables are tested; a user may be wrong.
bool came_as_said(const Tape& tape, const TapeOp& op, const OpCall& call) {
  const bool list = op.op.schema().returns().size() == 1 && op.outputs.size() > 1;
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    if (op.outputs[i] == kNoTapeValue) continue;
    const TapeValue& value = tape.values()[op.outputs[i]];
    const Placement& p = call.outputs()[list ? 0 : i];
    if (p.is_shard() && (p.dim >= static_cast<int64_t>(value.sizes.size()) || value.sizes[p.dim] != p.extent(call.batch()))) return false;
    if (call.outputs_scaled_by_rows() && !can_be_scaled(value.dtype)) return false;
  }
  return true;
}

}  // namespace

bool is_seed(const Plan& plan, TapeValueId value) {
  return std::any_of(plan.seeds.begin(), plan.seeds.end(), [&](const Seed& s) { return s.value == value && !s.created; });
}

bool is_created(const Plan& plan, TapeValueId value) {
  return std::any_of(plan.seeds.begin(), plan.seeds.end(), [&](const Seed& s) { return s.value == value && s.created; });
}

bool reads_split(const Plan& plan, const TapeOp& op) {
  return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& r) { return !plan.placements[r.value].is_replicate(); });
}

bool writes_per_row(const Plan& plan, const TapeOp& op, const OpCall& call, Verdict verdict) {
  return verdict == Verdict::kLocal && !call.outputs().empty() && !op.refs.empty() && op.refs[0].arg == 0 &&
         call.outputs()[0] == plan.placements[op.refs[0].value];
}

OpCall call_on_tape(const Tape& tape, const TapeOp& op, int64_t batch, const std::function<Placement(TapeValueId)>& placement) {
  const OpTraits& traits = op_traits(op.op);
  OpCall call(op.op.schema(), batch);
  call.args().resize(op.args.size());
  for (size_t i = 0; i < op.args.size(); ++i) {
    OpCall::Arg& arg = call.args()[i];
    arg.is_tensor = traits.kinds[i] == ArgumentKind::kTensor;
    arg.is_tensor_list = traits.kinds[i] == ArgumentKind::kTensorList;
    if (arg.is_tensor) {
      arg.tensors.resize(1);
    } else if (arg.is_tensor_list) {
      arg.tensors.resize(op.args[i].isInt() ? std::max<int64_t>(0, op.args[i].toInt()) : 0);
    } else {
      arg.value = op.args[i];
    }
  }
  for (const TapeRef& ref : op.refs) {
    const TapeValue& value = tape.values()[ref.value];
    TensorSpec& spec = call.args()[ref.arg].tensors[ref.element < 0 ? 0 : ref.element];
    spec.defined = true;
    spec.placement = placement(ref.value);
    spec.sizes = value.sizes;
    spec.dtype = value.dtype;
    spec.device = value.device;
  }
  return call;
}

namespace {

// Stands in for how many entries of each row a mask picked: which are whose is of no matter to a plan, only that it is the same mask.
class PlannedMasks final : public OpCall::RowCounter {
 public:
  PlannedMasks(const Tape& tape, int64_t batch) : tape_(tape), batch_(batch) {}

  // Whose arguments are spoken of from here on.
  void now_of(const TapeOp& op) { op_ = &op; }

  std::shared_ptr<const Ragged> rows_under(OpCall::ArgRef ref, int64_t dim) override {
    const auto mask = std::find_if(op_->refs.begin(), op_->refs.end(), [&](const TapeRef& r) { return r.arg == ref.arg && (ref.element < 0 || r.element == ref.element); });
    if (mask == op_->refs.end() || op_->outputs.empty() || op_->outputs[0] == kNoTapeValue) return nullptr;
    const auto& sizes = tape_.values()[op_->outputs[0]].sizes;
    if (dim >= static_cast<int64_t>(sizes.size())) return nullptr;
    auto& rows = rows_[mask->value];
    if (!rows) {
      Ragged even;
      for (int64_t r = 0; r <= batch_; ++r) even.first.push_back(sizes[dim] * r / batch_);
      rows = std::make_shared<const Ragged>(std::move(even));
    }
    return rows;
  }

 private:
  const Tape& tape_;
  int64_t batch_;
  const TapeOp* op_ = nullptr;
  std::map<TapeValueId, std::shared_ptr<const Ragged>> rows_;  // by mask
};

}  // namespace

Plan infer_placements(const Tape& tape, int64_t batch, std::vector<Seed> seeds) {
  Plan plan;
  PlannedMasks masks(tape, batch);
  // Groups that are written to in place in a way that cannot be split (labels that are masked): no gradient goes through them, so
  // they stay what they are, whole, and are sliced where they are read.
  ska::flat_hash_set<uint32_t> whole;
  std::vector<const TapeOp*> whole_ops;  // operators that read something split and have no rule for it
  std::vector<std::pair<const TapeOp*, int64_t>> staged;  // those that end a stage, and what they gather
  const auto placement = [&](TapeValueId v) { return plan.placements[v]; };
  const at::Device device = tape.values()[seeds[0].value].device;
  // A call that cannot be made again: something that it read is gone. What it gave is taken as it is.
  const auto broken = [&](const TapeOp& op) {
    return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& r) {
      const TapeValue& v = tape.values()[r.value];
      return v.is_capture() && v.weak.expired();
    });
  };
  const auto descends = [&](const TapeOp& op) {
    return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& r) { return plan.descends[r.value] != 0; });
  };
  // Note [Graphs that stay]
  // What is taken as it is (the result of a call that cannot be made again, a dropout that was drawn) keeps the graph that it has, and backward goes through
  // it. What joins a region keeps its storage, whoever looks at it; a call that runs again has its result elsewhere, and the old graph may have saved the
  // first one. So such a call below is taken as it is, too. True: one was not so far.
  const auto runs_again = [&](const TapeOp& op) {
    const bool split = std::any_of(op.outputs.begin(), op.outputs.end(), [&](TapeValueId out) { return out != kNoTapeValue && !plan.placements[out].is_replicate() && !is_seed(plan, out); });
    if (!split || !reads_split(plan, op)) return false;
    OpCall call = call_on_tape(tape, op, batch, placement);
    masks.now_of(op);
    call.set_counter(masks);
    return ask(op_traits(op.op).rule, call) != Verdict::kLocal || !call.real_arguments().empty();
  };
  const auto keep_graph = [&](const TapeOp& op) {
    const auto& values = tape.values();
    const auto differentiable = [&](TapeValueId v) { return v != kNoTapeValue && values[v].differentiable(); };
    if (std::none_of(op.outputs.begin(), op.outputs.end(), differentiable)) return false;
    std::vector<char> below(values.size(), 0);
    const auto read_by = [&](const TapeOp& reader) {
      for (const TapeRef& ref : reader.refs) {
        if (differentiable(ref.value)) below[ref.value] = 1;
      }
    };
    read_by(op);
    bool more = false;
    for (size_t i = &op - tape.ops().data(); i-- > 0;) {
      const TapeOp& before = tape.ops()[i];
      if (std::none_of(before.outputs.begin(), before.outputs.end(), [&](TapeValueId out) { return out != kNoTapeValue && below[out]; })) continue;
      if (runs_again(before)) {
        for (TapeValueId out : before.outputs) {
          if (out != kNoTapeValue) more |= whole.insert(values[out].group).second;
        }
      }
      read_by(before);
    }
    return more;
  };
  // What somebody may write to behind PyTorch's back (through NumPy) is what it is.
  // In the differentiable part it is only looked at: PyTorch gives no writable array of a tensor that requires grad.
  for (const TapeValue& value : tape.values()) {
    if (!value.is_capture() && tape.pinned(value.group)) whole.insert(value.group);
  }
  for (const TapeValue& value : tape.values()) {
    if (value.differentiable()) whole.erase(value.group);
  }
  for (bool again = true; again;) {
    again = false;
    whole_ops.clear();
    staged.clear();
    plan = Plan{};
    plan.batch = batch;
    plan.seeds = seeds;
    plan.placements.resize(tape.values().size());
    plan.descends.resize(tape.values().size());
    plan.frozen.resize(tape.ops().size());
    ska::flat_hash_set<uint32_t> read_whole;
    for (const Seed& seed : seeds) {
      if (seed.created && whole.count(tape.values()[seed.value].group)) continue;
      plan.placements[seed.value] = seed.placement;
      plan.descends[seed.value] = 1;
    }
    for (const TapeOp& op : tape.ops()) {
      const TapeValueId first = op.outputs.empty() ? kNoTapeValue : op.outputs[0];
      if (first != kNoTapeValue && whole.count(tape.values()[first].group)) continue;
      if (broken(op)) {
        if (descends(op) && keep_graph(op)) {
          again = true;
          break;
        }
        if (!op.in_place || first == kNoTapeValue || !plan.descends[op.refs[0].value]) continue;
        whole.insert(tape.values()[first].group);
        again = true;
        break;
      }
      if (!descends(op) || (first != kNoTapeValue && is_created(plan, first))) continue;
      for (TapeValueId out : op.outputs) {
        if (out != kNoTapeValue) plan.descends[out] = 1;
      }
      if (op.in_place && first != kNoTapeValue) {  // every other name of what it wrote to shows it too
        for (TapeValueId v = 0; v < first; ++v) {
          if (tape.values()[v].group == tape.values()[first].group) plan.descends[v] = 1;
        }
      }
      if (first != kNoTapeValue && is_seed(plan, first)) continue;  // made from another seed, and taken as it is
      // What runs at the full batch would draw again, and get other numbers: what it drew is drawn.
      const auto leave_drawn = [&] {
        if (keep_graph(op)) return true;
        for (TapeValueId out : op.outputs) {
          if (out != kNoTapeValue) plan.descends[out] = 0;
        }
        return false;
      };
      if (!reads_split(plan, op)) {
        again = !op.in_place && drew(op) && leave_drawn();
        if (again) break;
        continue;
      }
      const OpTraits& traits = op_traits(op.op);
      OpCall call = call_on_tape(tape, op, batch, placement);
      masks.now_of(op);
      call.set_counter(masks);
      Verdict verdict = ask(traits.rule, call);
      if (splits(verdict) && traits.rule->fn.user() != nullptr && !came_as_said(tape, op, call)) {
        user_rule_broken(*traits.rule, call);
        verdict = Verdict::kNo;
      }
      const bool drawn = splits(verdict) && draws(traits.rule, call) && tape.draws_whole(op);
      if (drawn) verdict = Verdict::kNo;
      const bool drawn_whole = verdict == Verdict::kNo && !op.in_place && drew(op);
      if (op.in_place && first != kNoTapeValue) {
        const bool frozen = read_whole.count(tape.values()[first].group) > 0;
        plan.frozen[&op - tape.ops().data()] = frozen;
        const bool kept = view_instead(op.op) ? splits(verdict) : !frozen && writes_per_row(plan, op, call, verdict);
        if (!kept && !tape.values()[first].differentiable()) {
          whole.insert(tape.values()[first].group);
          again = true;
          break;
        }
        if (!kept) verdict = Verdict::kNo;
      }
      if (drawn || drawn_whole || verdict == Verdict::kReal) {
        if (!drawn_whole && (traits.rule->flags & kRandom) == 0) continue;
        again = leave_drawn();
        if (again) break;
        continue;
      }
      if (verdict == Verdict::kNo) {
        whole_ops.push_back(&op);
        for (const TapeRef& ref : op.refs) {
          if (!plan.placements[ref.value].is_replicate()) read_whole.insert(tape.values()[ref.value].group);
        }
      }
      if (verdict == Verdict::kStaged) staged.emplace_back(&op, gathered_bytes(tape, plan, op, call));
      const bool list = op.op.schema().returns().size() == 1 && op.outputs.size() > 1;
      for (size_t i = 0; i < op.outputs.size(); ++i) {
        const TapeValueId out = op.outputs[i];
        if (out == kNoTapeValue) continue;
        const TapeValue& value = tape.values()[out];
        if (splits(verdict)) {
          const size_t number = list ? 0 : i;
          plan.placements[out] = number < call.outputs().size() ? call.outputs()[number] : Placement::replicate();
        } else if (!value.is_view && value.device == device) {
          plan.placements[out] = guess(value, call, batch);
        }
      }
    }
  }
  if (tape.pending() != nullptr && reads_split(plan, *tape.pending())) {
    OpCall call = call_on_tape(tape, *tape.pending(), batch, placement);
    const Rule* rule = op_traits(tape.pending()->op).rule;
    plan.pending = Plan::Pending::kWhole;
    const Verdict verdict = ask(rule, call);
    if (splits(verdict) && !(draws(rule, call) && tape.draws_whole(*tape.pending()))) {
      const bool split = std::any_of(call.outputs().begin(), call.outputs().end(), [](const Placement& p) { return p.is_shard(); });
      plan.pending = split ? Plan::Pending::kSplit : Plan::Pending::kSummed;
    }
  }
  const auto needed = needed_ops(tape, plan);
  for (const TapeOp* op : whole_ops) {
    if (!needed[op - tape.ops().data()]) continue;
    ++plan.whole_ops;
    for (const TapeRef& ref : op->refs) {
      if (!plan.placements[ref.value].is_replicate()) plan.bytes_whole += tape.values()[ref.value].bytes();
    }
  }
  for (const auto& [op, bytes] : staged) {
    if (needed[op - tape.ops().data()]) plan.bytes_whole += bytes;
  }
  for (size_t i = 0; i < tape.ops().size(); ++i) {
    if (!needed[i] || tape.ops()[i].in_place) continue;
    for (TapeValueId out : tape.ops()[i].outputs) {
      if (out == kNoTapeValue || plan.placements[out].is_replicate() || is_seed(plan, out)) continue;
      const TapeValue& value = tape.values()[out];
      // What a graph holds counts, and what the program holds on the way to the call in flight: elsewhere it is there to stay.
      const bool held = value.differentiable() || (plan.pending != Plan::Pending::kNotReached && value.held_elsewhere());
      if (!value.is_view && !value.is_capture() && held) plan.bytes += value.bytes();
    }
  }
  return plan;
}

std::vector<char> needed_ops(const Tape& tape, const Plan& plan) {
  const auto& ops = tape.ops();
  const auto& values = tape.values();
  std::vector<char> needed(ops.size(), 0);
  std::vector<char> value(values.size(), 0);
  std::map<uint32_t, bool> group;
  const auto need = [&](TapeValueId v) {
    value[v] = 1;
    group[values[v].group] = true;
  };
  for (TapeValueId v = 0; v < values.size(); ++v) {
    // What descends from split values without being split has its value already; only its graph must be made anew.
    const bool concerned = !plan.placements[v].is_replicate() || (plan.descends[v] && values[v].differentiable());
    if (!values[v].is_capture() && !is_seed(plan, v) && concerned && tape.is_current(v) && values[v].held_elsewhere()) need(v);
  }
  if (tape.pending() != nullptr) {
    for (const TapeRef& ref : tape.pending()->refs) {
      if (!plan.placements[ref.value].is_replicate()) need(ref.value);
    }
  }
  for (size_t i = ops.size(); i-- > 0;) {
    for (TapeValueId out : ops[i].outputs) {
      if (out != kNoTapeValue && is_seed(plan, out)) group.erase(values[out].group);  // it is as it is, whatever was written to it before
      if (out == kNoTapeValue || !plan.descends[out] || is_seed(plan, out)) continue;
      if (value[out] || (ops[i].in_place && group.count(values[out].group))) needed[i] = 1;
    }
    if (!needed[i]) continue;
    for (const TapeRef& ref : ops[i].refs) need(ref.value);
  }
  return needed;
}

namespace {

using Score = std::tuple<int, bool, int64_t>;  // serves, of the usual batch, bytes

struct Candidate {
  Seed seed;
  int64_t batch;
  Score score;
  bool tried = false;
};

// Captures that are read as running statistics and as nothing else. Their features are no rows, however many there are of them: the rule for a batch norm
// does not split them, and that something after it has as many rows is by chance.
ska::flat_hash_set<TapeValueId> running_statistics_on(const Tape& tape) {
  ska::flat_hash_set<TapeValueId> statistics, others;
  for (const TapeOp& op : tape.ops()) {
    const OpTraits& traits = op_traits(op.op);
    for (const TapeRef& ref : op.refs) {
      const bool statistic = traits.silent_effect && is_running_statistic(op.op.schema().arguments()[ref.arg].name());
      (statistic ? statistics : others).insert(ref.value);
    }
  }
  for (TapeValueId v : others) statistics.erase(v);
  return statistics;
}

// Whether the call in flight may do with less by this plan: split, or taken apart. One that runs whole needs what it needs.
bool helps_the_call(const Tape& tape, const Plan& plan) {
  if (plan.pending == Plan::Pending::kWhole) return op_traits(tape.pending()->op).composite;
  return plan.pending != Plan::Pending::kNotReached;
}

// Every capture that goes along with the plan.
Plan widen(const Tape& tape, Plan plan, const std::vector<TapeValueId>& values, const std::function<Score(const Plan&)>& score) {
  const at::Device device = tape.values()[plan.seeds[0].value].device;
  for (TapeValueId v : values) {
    const TapeValue& value = tape.values()[v];
    if (!plan.placements[v].is_replicate() || !value.is_capture() || value.device != device) continue;
    for (size_t dim = 0; dim < value.sizes.size(); ++dim) {
      const int64_t size = value.sizes[dim];
      if (size < plan.batch || size % plan.batch != 0) continue;
      std::vector<Seed> seeds = plan.seeds;
      seeds.push_back({v, Placement::shard(static_cast<int64_t>(dim), 1, size / plan.batch)});
      Plan wider = infer_placements(tape, plan.batch, std::move(seeds));
      if (wider.whole_ops <= plan.whole_ops && score(wider) > score(plan)) {
        plan = std::move(wider);
        break;
      }
    }
  }
  // Constants that the split part is written into, or that go along with it.
  for (const TapeOp& op : tape.ops()) {
    if (op_traits(op.op).creates < 0 || op.outputs.empty() || op.outputs[0] == kNoTapeValue || !plan.placements[op.outputs[0]].is_replicate()) continue;
    if (tape.values()[op.outputs[0]].device != device) continue;
    OpCall call = call_on_tape(tape, op, plan.batch, [](TapeValueId) { return Placement::replicate(); });
    if (!create_split(call)) continue;
    std::vector<Seed> seeds = plan.seeds;
    seeds.push_back({op.outputs[0], call.outputs()[0], /*created=*/true});
    Plan wider = infer_placements(tape, plan.batch, std::move(seeds));
    if (wider.whole_ops <= plan.whole_ops && (wider.whole_ops < plan.whole_ops || score(wider) > score(plan))) plan = std::move(wider);
  }
  return plan;
}

}  // namespace

std::optional<Plan> choose_seeds(const Tape& tape, const Wanted& wanted) {
  constexpr size_t kTries = 16;
  const auto& values = tape.values();
  const std::function<Score(const Plan&)> score = [&](const Plan& plan) {
    return Score{wanted.serves ? wanted.serves(plan) : static_cast<int>(plan.pending), plan.batch == wanted.usual_batch, plan.bytes - plan.bytes_whole};
  };
  std::vector<TapeValueId> seen;
  std::vector<Candidate> candidates;
  ska::flat_hash_set<TapeValueId> entering;  // what the call in flight reads
  if (tape.pending() != nullptr) {
    for (const TapeRef& ref : tape.pending()->refs) entering.insert(ref.value);
  }
  // Under no_grad it may be the optimizer that runs out, whose tensors are no batches.
  const bool updates = tape.pending() != nullptr && !tape.state(tape.pending()->state).grad_mode;
  const auto statistics = running_statistics_on(tape);
  size_t tries = 0;
  // Parameters last: a batch is rarely among them, though an input that requires grad looks no different. That is what a step within a
  // backward pass begins with.
  for (bool parameters : tape.replay() ? std::vector<bool>{true} : std::vector<bool>{false, true}) {
    for (TapeValueId v = 0; v < values.size(); ++v) {
      const TapeValue& value = values[v];
      // A batch that the program put together itself (stacked, cast, shifted) counts once it has entered the differentiable part.
      const bool candidate = value.is_capture() || (!value.differentiable() && (value.entered || entering.count(v) > 0));
      if (!candidate || (value.differentiable() != parameters && !tape.replay()) || value.sizes.empty() || !value.lock().defined()) continue;
      if (!value.is_capture() && !tape.is_current(v)) continue;  // written to since
      if (statistics.count(v) > 0 || (updates && tape.sized_like_a_parameter(value))) continue;
      seen.push_back(v);
      for (size_t dim = 0; dim < value.sizes.size(); ++dim) {
        if (value.sizes[dim] < 2) continue;
        const Seed seed{v, Placement::shard(static_cast<int64_t>(dim))};
        const Plan plan = infer_placements(tape, value.sizes[dim], {seed});
        if (plan.bytes > 0 || helps_the_call(tape, plan)) candidates.push_back({seed, value.sizes[dim], score(plan)});
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
    std::vector<std::pair<Score, Plan>> plans;  // what one seed frees says little of what it frees with those that go along with it
    for (Candidate& candidate : candidates) {
      if (candidate.tried || tries == kTries) continue;
      if (!parameters && std::get<0>(candidate.score) == 0) continue;  // an input that requires grad may serve better
      candidate.tried = true;
      ++tries;
      Plan wide = widen(tape, infer_placements(tape, candidate.batch, {candidate.seed}), seen, score);
      plans.emplace_back(score(wide), std::move(wide));
    }
    // Nearly as good counts as equal. Then fewer operators without a rule for it decide: what comes after one of them is a guess. Then a batch that the
    // inputs have as it is goes before one that they have a multiple of, by chance perhaps, and after that the better first seed decides.
    int64_t best = 0;
    for (const auto& [its_score, plan] : plans) best = std::max(best, std::get<2>(its_score));
    for (auto& [its_score, plan] : plans) std::get<2>(its_score) = std::min(std::get<2>(its_score), best / 5 * 4);
    const auto multiples = [](const Plan& plan) { return std::count_if(plan.seeds.begin(), plan.seeds.end(), [](const Seed& s) { return s.placement.inner > 1; }); };
    std::stable_sort(plans.begin(), plans.end(), [&](const auto& a, const auto& b) {
      if (a.first != b.first) return a.first > b.first;
      return a.second.whole_ops != b.second.whole_ops ? a.second.whole_ops < b.second.whole_ops : multiples(a.second) < multiples(b.second);
    });
    for (auto& [its_score, plan] : plans) {
      if (wanted.feasible(plan)) return std::move(plan);
      if (plan.seeds.size() == 1) continue;
      Plan narrow = infer_placements(tape, plan.batch, {plan.seeds[0]});
      if (wanted.feasible(narrow)) return narrow;
    }
  }
  return std::nullopt;
}

}  // namespace koila
