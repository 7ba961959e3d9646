#include "torchglue/plan/seeds.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/gradient.h"
#include "torchglue/placement/masks.h"
#include "torchglue/placement/packed_rows.h"
#include "torchglue/plan/constants.h"
#include "torchglue/plan/on_tape.h"
#include "torchglue/statistics/running_arguments.h"

namespace koila {

namespace {

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

// What the model reads without a gradient to be: numbers of tokens that stand beside a parameter under no_grad, those that a program has generated so far. What is no whole number may be what a
// checkpoint computes under no_grad on its way.
ska::flat_hash_set<TapeValueId> read_under_no_grad(const Tape& tape) {
  const auto& values = tape.values();
  ska::flat_hash_set<TapeValueId> data;
  for (const TapeOp& op : tape.ops()) {
    const auto is_parameter = [&](const TapeRef& ref) { return values[ref.value].is_capture() && values[ref.value].requires_grad; };
    if (tape.state(op.state).grad_mode || op.in_place || std::none_of(op.refs.begin(), op.refs.end(), is_parameter)) continue;
    for (const TapeRef& ref : op.refs) {
      if (!is_parameter(ref) && c10::isIntegralType(values[ref.value].dtype, /*includeBool=*/false)) data.insert(ref.value);
    }
  }
  return data;
}

// Whether the call in flight may do with less by this plan: split, or taken apart. One that runs whole needs what it needs.
bool helps_the_call(const Tape& tape, const Plan& plan) {
  if (plan.pending == Plan::Pending::kWhole) return op_traits(tape.pending()->op).composite;
  return plan.pending != Plan::Pending::kNotReached;
}

// Whether an index picks in an order of its own from what the plan has been widened by, and what has several entries for each row: a table, then, from which a minibatch is picked.
bool is_table(const Tape& tape, const Plan& wider) {
  const Seed& added = wider.seeds.back();
  return added.placement.inner > 1 && std::any_of(tape.ops().begin(), tape.ops().end(), [&](const TapeOp& op) {
           const bool picks = op.op.schema().name() == "aten::index" || op.op.schema().name() == "aten::index_select";
           if (!picks || op.refs.empty() || op.refs[0].value != added.value || op.outputs[0] == kNoTapeValue) return false;
           const auto& ragged = wider.placements[op.outputs[0]].ragged;
           return ragged && !ragged->order.empty();
         });
}

// Whether the step reads parts of the seed's rows alone, and a part is there: a data set, of which the part is the batch.
bool is_read_in_parts(const Tape& tape, const Plan& plan) {
  bool part_is_there = false;
  for (const TapeOp& op : tape.ops()) {
    if (std::none_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return ref.value == plan.seeds[0].value; })) continue;
    for (TapeValueId out : op.outputs) {
      if (out == kNoTapeValue || !plan.placements[out].ragged) return false;
      part_is_there |= tape.values()[out].lock().defined();
    }
  }
  return part_is_there;
}

// Everything that goes along with the plan: captures, and batches that the program put together, see choose_seeds().
Plan widen(const Tape& tape, Plan plan, const std::vector<TapeValueId>& values, const std::function<Score(const Plan&)>& score, Graphs graphs) {
  const at::Device device = tape.values()[plan.seeds[0].value].device;
  for (TapeValueId v : values) {
    const TapeValue& value = tape.values()[v];
    if (!plan.placements[v].is_replicate() || value.device != device || is_made_constant(tape, v)) continue;
    for (size_t dim = 0; dim < value.sizes.size(); ++dim) {
      const int64_t size = value.sizes[dim];
      if (size < plan.batch || size % plan.batch != 0) continue;
      std::vector<Seed> seeds = plan.seeds;
      seeds.push_back({v, Placement::shard(static_cast<int64_t>(dim), 1, size / plan.batch)});
      Plan wider = infer_placements(tape, plan.batch, std::move(seeds), graphs);
      // One that is split only to be put together again is better made again as a whole: an index that has a multiple of the batch's rows by chance.
      const bool is_put_together = size > plan.batch && wider.gathers > plan.gathers;
      if (!is_table(tape, wider) && !is_put_together && wider.whole_ops <= plan.whole_ops && score(wider) > score(plan) && wider.bytes - wider.bytes_whole > plan.bytes - plan.bytes_whole) {
        plan = std::move(wider);
        break;
      }
    }
  }
  return with_constants(tape, std::move(plan), score, graphs);
}

// The argument that an operator with weights takes for its input.
bool is_input(const TapeOp& op, const TapeRef& ref) {
  constexpr std::string_view kNames[] = {"input", "self", "mat1", "query"};
  const std::string& name = op.op.schema().arguments()[ref.arg].name();
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// Whether a model takes the value in: an operator that is no entry's own (linear, conv2d) puts what descends from it together with something else, its weights.
bool is_taken_in(const Tape& tape, TapeValueId value) {
  ska::flat_hash_set<TapeValueId> descends{value};
  const auto takes_in = [&](const TapeOp& op) {
    const auto of_value = [&](const TapeRef& ref) { return descends.count(ref.value) > 0; };
    if (std::none_of(op.refs.begin(), op.refs.end(), of_value)) return false;
    for (TapeValueId out : op.outputs) descends.insert(out);
    if (op_traits(op.op).pointwise || op.in_place) return false;
    const bool as_input = std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return of_value(ref) && is_input(op, ref); });
    return as_input && std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return !of_value(ref) && tape.values()[ref.value].is_capture(); });
  };
  return std::any_of(tape.ops().begin(), tape.ops().end(), takes_in) || (tape.pending() != nullptr && takes_in(*tape.pending()));
}

// Whether the call in flight may be an update of parameters, of an optimizer or by hand (averages of weights, which need no no_grad where what they read are detached): what it computes with is no batch.
bool may_update_parameters(const Tape& tape) {
  if (tape.pending() == nullptr) return false;
  const auto in_graph = [&](const TapeRef& ref) { return tape.values()[ref.value].differentiable(); };
  return !tape.state(tape.pending()->state).grad_mode || std::none_of(tape.pending()->refs.begin(), tape.pending()->refs.end(), in_graph);
}

// By value: whether it has the size of a parameter, or has been computed of nothing else but such and numbers.
std::vector<bool> made_of_parameters(const Tape& tape) {
  const auto& values = tape.values();
  std::vector<bool> made(values.size());
  for (TapeValueId v = 0; v < values.size(); ++v) {
    made[v] = tape.sized_like_a_parameter(values[v]);
    if (made[v] || values[v].is_capture()) continue;
    const auto& refs = tape.ops()[values[v].producer].refs;
    const auto is_made = [&](const TapeRef& ref) { return made[ref.value]; };
    const auto is_number = [&](const TapeRef& ref) { return values[ref.value].sizes.empty(); };
    made[v] = std::any_of(refs.begin(), refs.end(), is_made) && std::all_of(refs.begin(), refs.end(), [&](const TapeRef& ref) { return is_made(ref) || is_number(ref); });
  }
  return made;
}

// What hangs on an earlier part of the graph is no leaf, and so no parameter: what a generator made, when the step goes on with it. Nor is a leaf that the step has computed: what an embedding that is
// frozen gives, and a hook makes a leaf of for the adapters that come after it.
bool may_be_parameter(const TapeValue& value) { return value.differentiable() && !(value.is_capture() && (value.grad_fn != nullptr || value.was_computed)); }

// What the step, or the pass in flight, asks for the gradient of.
ska::flat_hash_set<TapeValueId> asked_for(const Tape& tape, const Wanted& wanted) {
  ska::flat_hash_set<TapeValueId> asked;
  for (const TapeOp& op : tape.ops()) {
    if (!is_gradient(op.op)) continue;
    for (const TapeRef& ref : op.refs) {
      if (ref.arg == 2) asked.insert(ref.value);
    }
  }
  for (const c10::TensorImpl* impl : wanted.asked_for) asked.insert(tape.find(impl));
  return asked;
}

// Captures that require grad: parameters, and inputs whose gradient the program wants.
std::vector<TapeValueId> requiring_grad(const Tape& tape) {
  std::vector<TapeValueId> found;
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const TapeValue& value = tape.values()[v];
    if (value.is_capture() && value.differentiable() && !value.sizes.empty() && value.lock().defined()) found.push_back(v);
  }
  return found;
}

// Which rows are packed in which order, and in which they come back: no batch, but an order of one.
bool is_order_of_rows(const Tape& tape, TapeValueId v) {
  const TapeValue& value = tape.values()[v];
  return !value.is_capture() && (sorts_numbers(tape, v) || orders_back(tape, tape.ops()[value.producer]));
}

// The order that rows have been sorted in, before they were packed for the operator of that number: the last such. pack_padded_sequence() finds its inverse by scatter_().
std::optional<std::vector<int64_t>> places_before(const Tape& tape, size_t number, int64_t rows) {
  for (size_t i = number; i-- > 0;) {
    const TapeOp& op = tape.ops()[i];
    if (op.outputs.empty() || op.outputs[0] == kNoTapeValue || !orders_back(tape, op)) continue;
    const TapeValue& inverse = tape.values()[op.outputs[0]];
    if (inverse.sizes != at::IntArrayRef(rows) || !tape.is_current(op.outputs[0])) continue;
    return numbers_in(inverse.lock());
  }
  return std::nullopt;
}

// What is left of a batch that was packed, once its rows as they were are gone: the data, with a row's entries wherever it has its steps. See Note [Packed rows].
std::optional<Seed> packed_seed(const Tape& tape, TapeValueId v) {
  const auto reads = [&](const TapeOp& op) {
    const auto& arguments = op.op.schema().arguments();
    return arguments.size() > 1 && arguments[1].name() == "batch_sizes" && op.refs.size() > 1 && op.refs[0].arg == 0 && op.refs[0].value == v && op.refs[1].arg == 1;
  };
  const auto found = std::find_if(tape.ops().begin(), tape.ops().end(), reads);
  const TapeOp* reader = found != tape.ops().end() ? &*found : tape.pending() != nullptr && reads(*tape.pending()) ? tape.pending() : nullptr;
  const auto steps = reader == nullptr ? std::nullopt : numbers_in(tape.values()[reader->refs[1].value].lock());
  if (!steps || steps->empty() || (*steps)[0] < 2) return std::nullopt;
  const auto before = places_before(tape, static_cast<size_t>(found - tape.ops().begin()), (*steps)[0]);
  auto rows = packed_rows(*steps, before ? *before : places_in_order((*steps)[0]));
  const auto& sizes = tape.values()[v].sizes;
  if (!rows || sizes.empty() || rows->first.back() != sizes[0]) return std::nullopt;
  return Seed{v, Placement::shard(0, std::make_shared<const Ragged>(std::move(*rows)))};
}

// What the results of operators in the step's graph take.
int64_t graph_bytes(const Tape& tape) {
  int64_t bytes = 0;
  for (const TapeOp& op : tape.ops()) {
    for (TapeValueId out : op.outputs) {
      if (out == kNoTapeValue || op.in_place) continue;
      const TapeValue& value = tape.values()[out];
      if (!value.is_view && !value.is_capture() && value.differentiable()) bytes += value.bytes();
    }
  }
  return bytes;
}

int64_t bytes_saved(const Plan& plan) { return plan.bytes - plan.bytes_whole - plan.bytes_again; }

// Whether what the plan splits would hang on a part of the graph that it leaves as it is, which could not be split any more then.
bool hangs_on_the_rest(const Tape& tape, const Plan& plan) {
  const auto hangs = [&](const TapeOp& op) {
    const auto is_split = [&](TapeValueId v) { return v != kNoTapeValue && plan.descends[v] != 0; };
    const auto is_left = [&](const TapeRef& ref) { return tape.values()[ref.value].differentiable() && !tape.values()[ref.value].is_capture() && !is_split(ref.value); };
    const bool reads_split = std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return is_split(ref.value); });
    return reads_split && tape.state(op.state).grad_mode && std::any_of(op.refs.begin(), op.refs.end(), is_left);
  };
  return std::any_of(tape.ops().begin(), tape.ops().end(), hangs) || (tape.pending() != nullptr && hangs(*tape.pending()));
}

// How well a plan serves a call in flight. One that saves much makes room for the call whether or not it reaches it, and goes before one that reaches it, saves little and leaves the rest so that it
// cannot be split after it: the features of a loss.
int serves_call(const Tape& tape, const Plan& plan, int64_t much) {
  constexpr int kServesWell = static_cast<int>(Plan::Pending::kSplit) + 1;
  const bool saves_much = much > 0 && bytes_saved(plan) >= much;
  const bool leaves_the_rest = plan.pending != Plan::Pending::kNotReached && !hangs_on_the_rest(tape, plan);
  return (saves_much || leaves_the_rest ? kServesWell : 0) + static_cast<int>(plan.pending);
}

// Nearly as good counts as equal. Then fewer operators without a rule for it decide: what comes after one of them is a guess. Then a batch that the
// inputs have as it is goes before one that they have a multiple of, by chance perhaps, and after that the better first seed decides.
void rank(std::vector<std::pair<Score, Plan>>& plans) {
  int64_t best = 0;
  for (const auto& [its_score, plan] : plans) best = std::max(best, std::get<2>(its_score));
  for (auto& [its_score, plan] : plans) std::get<2>(its_score) = std::min(std::get<2>(its_score), best / 5 * 4);
  const auto multiples = [](const Plan& plan) { return std::count_if(plan.seeds.begin(), plan.seeds.end(), [](const Seed& s) { return s.placement.inner > 1; }); };
  std::stable_sort(plans.begin(), plans.end(), [&](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first > b.first;
    return a.second.whole_ops != b.second.whole_ops ? a.second.whole_ops < b.second.whole_ops : multiples(a.second) < multiples(b.second);
  });
}

}  // namespace

bool covers_most(const Tape& tape, const Plan& plan) { return plan.bytes >= graph_bytes(tape) / 2; }

std::optional<Plan> choose_seeds(const Tape& tape, const Wanted& wanted) {
  constexpr size_t kTries = 16;
  const auto& values = tape.values();
  const int64_t much = wanted.serves ? 0 : graph_bytes(tape) / 4;
  const std::function<Score(const Plan&)> score = [&](const Plan& plan) {
    return Score{wanted.serves ? wanted.serves(plan) : serves_call(tape, plan, much), plan.batch == wanted.usual_batch, bytes_saved(plan)};
  };
  std::vector<TapeValueId> seen;
  std::vector<Candidate> candidates;
  const auto consider = [&](const Seed& seed, int64_t batch) {
    Plan plan = infer_placements(tape, batch, {seed}, wanted.graphs);
    if (is_read_in_parts(tape, plan)) return;
    Score its = score(plan);
    if (std::get<0>(its) == 0 && ends_in_constants(tape, plan)) {  // its rows go on from there
      plan = with_constants(tape, std::move(plan), score, wanted.graphs);
      its = score(plan);
    }
    if (plan.bytes > 0 || helps_the_call(tape, plan)) candidates.push_back({seed, batch, its});
  };
  ska::flat_hash_set<TapeValueId> entering = read_under_no_grad(tape);  // and what the call in flight reads
  if (tape.pending() != nullptr) {
    for (const TapeRef& ref : tape.pending()->refs) entering.insert(ref.value);
  }
  const std::vector<bool> of_parameters = may_update_parameters(tape) ? made_of_parameters(tape) : std::vector<bool>(values.size());
  const bool in_optimizer = origin_now(false).when == KOILA_IN_OPTIMIZER;
  const auto is_of_update = [&](TapeValueId v) { return of_parameters[v] && (in_optimizer || !is_taken_in(tape, v)); };
  const auto statistics = running_statistics_on(tape);
  const auto asked = asked_for(tape, wanted);
  size_t tries = 0;
  // Parameters last: a batch is rarely among them, though an input that requires grad looks no different. That is what a step within a
  // backward pass begins with, and one that asks for the gradient of an input. Before them constants, which mostly go along with a batch.
  enum Kind { kBatches, kConstants, kParameters };
  const auto kind_of = [&](TapeValueId v) { return may_be_parameter(values[v]) && asked.count(v) == 0 ? kParameters : is_made_constant(tape, v) ? kConstants : kBatches; };
  for (const Kind kind : tape.replay() ? std::vector<Kind>{kParameters} : std::vector<Kind>{kBatches, kConstants, kParameters}) {
    const bool parameters = kind == kParameters;
    for (TapeValueId v = 0; v < values.size(); ++v) {
      const TapeValue& value = values[v];
      // A batch that the program put together itself (stacked, cast, shifted) counts once it has entered the differentiable part.
      const bool candidate = value.is_capture() || (!value.differentiable() && (value.entered || entering.count(v) > 0));
      if (!candidate || (kind_of(v) != kind && !tape.replay()) || value.sizes.empty() || !value.lock().defined()) continue;
      if (!value.is_capture() && !tape.is_current(v)) continue;  // written to since
      if (statistics.count(v) > 0 || is_of_update(v) || is_order_of_rows(tape, v)) continue;
      seen.push_back(v);
      for (size_t dim = 0; dim < value.sizes.size(); ++dim) {
        if (value.sizes[dim] < 2) continue;
        consider({v, Placement::shard(static_cast<int64_t>(dim))}, value.sizes[dim]);
      }
      if (const auto seed = packed_seed(tape, v)) consider(*seed, static_cast<int64_t>(seed->placement.ragged->first.size()) - 1);
    }
    std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
    std::vector<std::pair<Score, Plan>> plans;  // what one seed frees says little of what it frees with those that go along with it
    for (Candidate& candidate : candidates) {
      if (candidate.tried || tries == kTries) continue;
      if (!parameters && std::get<0>(candidate.score) == 0) continue;  // an input that requires grad may serve better
      candidate.tried = true;
      ++tries;
      Plan wide = widen(tape, infer_placements(tape, candidate.batch, {candidate.seed}, wanted.graphs), seen, score, wanted.graphs);
      plans.emplace_back(score(wide), std::move(wide));
    }
    rank(plans);
    for (auto& [its_score, plan] : plans) {
      if (wanted.feasible(plan)) {
        if (parameters || wanted.graphs == Graphs::kWhole || covers_most(tape, plan)) return std::move(plan);
        // Backward has run out. An input that requires grad looks like a parameter, and may be the batch that the others only go along with.
        Plan wider = widen(tape, plan, requiring_grad(tape), score, wanted.graphs);
        return wider.seeds.size() > plan.seeds.size() && wanted.feasible(wider) ? std::move(wider) : std::move(plan);
      }
      if (plan.seeds.size() == 1) continue;
      Plan narrow = infer_placements(tape, plan.batch, {plan.seeds[0]}, wanted.graphs);
      if (wanted.feasible(narrow)) return narrow;
    }
  }
  return std::nullopt;
}

}  // namespace koila
