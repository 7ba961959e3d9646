#include "torchglue/plan/on_tape.h"

#include <algorithm>

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/own_hook.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/gradient.h"
#include "torchglue/statistics/running_arguments.h"

namespace koila {

Placement placement_of_result(const OpCall& answer, const TapeOp& op, size_t output) {
  const bool list = op.op.schema().returns().size() == 1 && op.outputs.size() > 1;
  return list ? answer.output_at(0, static_cast<int>(output)) : answer.output_at(output, -1);
}

// Whether the results that the operator gave are of the sizes that its rule says. Those of the tables are tested; a user may be wrong.
bool came_as_said(const Tape& tape, const TapeOp& op, const OpCall& call) {
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    if (op.outputs[i] == kNoTapeValue) continue;
    const TapeValue& value = tape.values()[op.outputs[i]];
    const Placement p = placement_of_result(call, op, i);
    if (p.is_shard() && (p.dim >= static_cast<int64_t>(value.sizes.size()) || value.sizes[p.dim] != p.extent(call.batch()))) return false;
    if (call.outputs_scaled_by_rows() && !can_be_scaled(value.dtype)) return false;
  }
  return true;
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

bool is_dropped(const TapeOp& op, const TapeRef& ref) {
  return op_traits(op.op).silent_effect && is_running_statistic(op.op.schema().arguments()[ref.arg].name()) && uses_batch_statistics(op.op.schema(), op.args);
}

bool is_read_as_it_is(const Tape& tape, const Plan& plan, const TapeOp& op, const TapeRef& ref) {
  return !is_dropped(op, ref) && (!plan.descends[ref.value] || tape.values()[ref.value].is_capture() || is_seed(plan, ref.value));
}

namespace {

// A view has the content that its memory has when it is read.
bool is_view_of(const Tape& tape, const TapeOp& op, const TapeRef& ref) {
  const TapeValueId first = op.outputs.empty() ? kNoTapeValue : op.outputs[0];
  return !op.in_place && first != kNoTapeValue && tape.values()[first].is_view && tape.values()[first].group == tape.values()[ref.value].group;
}

}  // namespace

bool is_in_seed(const Tape& tape, const Plan& plan, const TapeOp& op) {
  return op.in_place && !op.outputs.empty() && op.outputs[0] != kNoTapeValue && plan.versions.count(tape.values()[op.outputs[0]].group) > 0;
}

bool is_earlier(const Tape& tape, const Plan& plan, const TapeOp& op, const TapeRef& ref) {
  const auto taken = plan.versions.find(tape.values()[ref.value].group);
  return taken != plan.versions.end() && ref.version < taken->second && !is_view_of(tape, op, ref);
}

uint32_t version_to_read(const Tape& tape, const Plan& plan, const TapeOp& op, const TapeRef& ref) {
  const auto taken = plan.versions.find(tape.values()[ref.value].group);
  return taken != plan.versions.end() && is_view_of(tape, op, ref) ? taken->second : ref.version;
}

std::vector<TapeRef> read_as_they_are(const Tape& tape, const Plan& plan, const std::vector<char>& needed_ops) {
  std::vector<TapeRef> refs;
  for (size_t i = 0; i < needed_ops.size(); ++i) {
    if (!needed_ops[i]) continue;
    const TapeOp& op = tape.ops()[i];
    for (TapeRef ref : op.refs) {
      if (!is_read_as_it_is(tape, plan, op, ref)) continue;
      ref.version = version_to_read(tape, plan, op, ref);
      refs.push_back(ref);
    }
  }
  return refs;
}

bool Gone::operator()(TapeValueId v, uint32_t version, int depth) {
  const auto key = std::make_pair(v, version);
  if (const auto it = known_.find(key); it != known_.end()) return it->second;
  const bool gone = find_out(v, version, depth);
  if (!gone || depth == 0) known_.emplace(key, gone);  // of one that is too many operators away from here another reader may be nearer
  return gone;
}

bool Gone::find_out(TapeValueId v, uint32_t version, int depth) {
  const TapeValue& value = tape_.values()[v];
  if (const at::Tensor t = value.lock(); t.defined() && version_of(t) == version) return is_filled_anew(value);
  if (tape_.pinned(value.group) || value.is_capture()) return true;
  const TapeOp& op = tape_.ops()[value.producer];
  if (op.in_place || version != value.version || depth > kRunAgainAtMost || is_gradient(op.op)) return true;  // a graph of what is made again is not one of what is there
  if (drew(op) && (graphs_ != Graphs::kUsedUp || tape_.draws_of(op) == nullptr)) return true;
  return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return !is_dropped(op, ref) && (*this)(ref.value, ref.version, depth + 1); });
}

bool sorts_numbers(const Tape& tape, TapeValueId v) {
  while (v != kNoTapeValue && !tape.values()[v].is_capture()) {
    const TapeOp& op = tape.ops()[tape.values()[v].producer];
    if (op.refs.empty()) return false;
    const TapeValueId from = op.refs[0].value;
    const std::string& name = op.op.schema().name();
    if (name == "aten::sort" || name == "aten::argsort") return tape.values()[from].sizes.size() == 1 && c10::isIntegralType(tape.values()[from].dtype, /*includeBool=*/false);
    if (name != "aten::to" && name != "aten::_to_copy") return false;
    v = from;
  }
  return false;
}

bool orders_back(const Tape& tape, const TapeOp& op) {
  return op.op.schema().name() == "aten::scatter_" && std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return ref.arg == 2 && sorts_numbers(tape, ref.value); });
}

Decision decide_on_tape(const Tape& tape, const Plan& plan, const TapeOp& op, OpCall& call) {
  const bool frozen = plan.frozen[static_cast<size_t>(&op - tape.ops().data())] != 0;
  const bool first_on_tape = !op.refs.empty() && op.refs[0].arg == 0;
  const auto as_said = [&](const OpCall& answered) { return came_as_said(tape, op, answered); };
  const auto takes_gradient = [&](int argument) {
    return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& r) {
      return r.arg == argument && !plan.placements[r.value].is_replicate() && tape.values()[r.value].differentiable();
    });
  };
  Context context{op_traits(op.op)};
  context.draws_whole = tape.draws_whole(op);
  if (first_on_tape && !frozen) context.written = plan.placements[op.refs[0].value];
  context.free_to_write = op.in_place && view_instead(op.op).has_value();
  context.came_as_said = as_said;
  context.takes_gradient = takes_gradient;
  return decide(call, context);
}

Decision decide_on_tape(const Tape& tape, const Plan& plan, const TapeOp& op) {
  OpCall call = call_on_tape(tape, op, plan.batch, [&](TapeValueId v) { return plan.placements[v]; });
  return decide_on_tape(tape, plan, op, call);
}

std::vector<torch::autograd::Node*> nodes_behind(const Tape& tape) {
  std::vector<torch::autograd::Node*> nodes;
  for (const TapeValue& value : tape.values()) {
    if (const at::Tensor t = value.lock(); t.defined()) add_nodes_behind(t, nodes);
  }
  return nodes;
}

void add_bridges(const Tape& tape, std::vector<torch::autograd::Node*>& nodes) {
  for (const Bridge& bridge : tape.bridges()) {
    if (!bridge.alive.expired()) nodes.push_back(bridge.node);
  }
}

HookedNodes::HookedNodes(const Tape& tape) {
  std::vector<torch::autograd::Node*> nodes = nodes_behind(tape);
  add_bridges(tape, nodes);
  walk_graph(std::move(nodes), [&](torch::autograd::Node* node) {
    if (has_hooks_or_retains(*node)) numbers_.emplace(node, node->sequence_nr());
    return true;
  });
}

bool HookedNodes::made(const TapeValue& value) const {
  const auto node = numbers_.find(value.grad_fn);
  return node != numbers_.end() && node->second == value.node_number;
}

}  // namespace koila
