// The program differentiates a region, and wants a graph of that: an operator of the region, see Note [Gradients that have a graph] in operators/gradient.h.
#include <ATen/EmptyTensor.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "torchglue/operators/gradient.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/layout.h"
#include "torchglue/region/node.h"
#include "torchglue/region/real_values.h"
#include "torchglue/region/recovery.h"
#include "torchglue/region/region.h"
#include "torchglue/statistics/operators.h"
#include "torchglue/step/session.h"

namespace koila {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

namespace {

constexpr const char* kStatistics = "create_graph=True: the statistics of a whole batch (batch norm; a std or var over the rows) cannot be differentiated twice in micro-batches.";

}  // namespace

// Note [A region that is differentiated from outside]
// The operator joins the region itself where it can. Where the region has ended, since a later one hangs on it, or where the gradients that come to it have a graph themselves, and may hang on it, that
// would close a circle: there a copy of the region is what is differentiated, whose node is a new one. It has nothing of the program's, and reads what the region reads.
//
// One pass that makes a graph of itself.
class Region::GraphPass {
 public:
  // `roots`: values, and their gradients.
  GraphPass(Region& region, std::vector<Root> roots) : region_(region), roots_(std::move(roots)) {}

  // The region that a pass with these gradients can join.
  static std::shared_ptr<Region> region_for(Region& region, const std::vector<Root>& roots) {
    const bool joins = region.open_ && std::all_of(roots.begin(), roots.end(), [&](const Root& root) { return is_deferred_like(region, root) || comes_from_outside(root.second); });
    return joins ? region.shared_from_this() : copy_of(region);
  }

  // What the pass goes through. Refuses what cannot be differentiated twice.
  void go_through(std::set<size_t> path) {
    path_ = std::move(path);
    for (size_t i : path_) {
      const auto& name = region_.instructions_[i].op.operator_name();
      if (name == statistics_operator().operator_name() || name == normalise_operator().operator_name()) region_.refuse(kStatistics);
    }
  }

  // The gradient of a value of the region, or of every use on the path of a capture that `wanted` says yes of, counts into that result.
  void ask_for_value(ValueId value, size_t result) {
    of_.push_back({Operand::Kind::kValue, value, false});
    results_.push_back(result);
  }
  void ask_for_captures(const std::function<bool(const Capture&)>& wanted, const std::function<size_t(const Capture&)>& result) {
    std::set<uint32_t> found;
    for (size_t i : path_) {
      for (const Argument& argument : region_.instructions_[i].arguments) {
        for (const Operand& o : argument.operands) {
          if (o.kind == Operand::Kind::kUse && wanted(capture_of(o.id))) found.insert(o.id);
        }
      }
    }
    for (uint32_t use : found) {
      of_.push_back({Operand::Kind::kUse, use, false});
      results_.push_back(result(capture_of(use)));
    }
  }

  // The gradients, deferred; undefined where the graph has none. Of what is read in several ways they are added up, as the engine does: these are operators of the program's, and join as well.
  variable_list run(size_t results) {
    variable_list sums(results);
    if (roots_.empty() || of_.empty()) return sums;
    const variable_list found = join();
    for (size_t i = 0; i < found.size(); ++i) {
      at::Tensor& sum = sums[results_[i]];
      if (found[i].defined()) sum = sum.defined() ? sum + found[i] : found[i];
    }
    return sums;
  }

 private:
  // Whether the gradient is a value of the region that is split as the root is.
  static bool is_deferred_like(const Region& region, const Root& root) {
    const Placement& p = region.values_[root.first].placement;
    const auto entry = deferred_registry().find(root.second.unsafeGetTensorImpl());
    return entry.region == &region && p.is_shard() && region.values_[entry.value].placement == p;
  }
  static bool comes_from_outside(const at::Tensor& gradient) { return !gradient.requires_grad() && deferred_registry().find(gradient.unsafeGetTensorImpl()).region == nullptr; }

  // Draws belong to micro-batches of one size: neither of the two may have other ones from now on.
  static std::shared_ptr<Region> copy_of(Region& region) {
    region.observed_random_ |= std::any_of(region.values_.begin(), region.values_.end(), [](const Value& value) { return value.random; });
    auto copy = std::make_shared<Region>(region.batch_, region.micro_batch_, region.device_);
    copy->lead_ = region.lead_;
    copy->observed_random_ = region.observed_random_;
    copy->instructions_ = region.instructions_;
    copy->values_ = region.values_;
    copy->groups_ = region.groups_;
    copy->written_groups_ = region.written_groups_;
    copy->captures_ = region.captures_;
    copy->capture_index_ = region.capture_index_;
    copy->uses_ = region.uses_;
    for (Value& value : copy->values_) {
      value.impl = nullptr;
      value.consumed = false;
      value.node_output = -1;
    }
    for (Group& group : copy->groups_) {
      group.storage = {};
      group.materialised = false;
      group.filled = group.kept = nullptr;
    }
    for (Capture& capture : copy->captures_) capture.edge = -1;
    session().regions.push_back(copy);
    return copy;
  }

  const Capture& capture_of(uint32_t use) const { return region_.captures_[region_.uses_[use].capture]; }

  // How a root's gradient comes to a micro-batch: by the row as the root itself, and whole for a sum.
  Operand gradient_operand(const Root& root) {
    const auto& [value, gradient] = root;
    const Placement& p = region_.values_[value].placement;
    const auto entry = deferred_registry().find(gradient.unsafeGetTensorImpl());
    if (is_deferred_like(region_, root)) return {Operand::Kind::kValue, entry.value, false};
    if (entry.region != nullptr) entry.region->shared_from_this()->hand_over(entry.value, gradient);
    return {Operand::Kind::kUse, region_.use(region_.capture(gradient), p.is_shard() ? p : Placement::replicate()), false};
  }

  Instruction instruction() {
    Instruction in{gradient_operator(of_.size()), {}, {}, OpState::current()};
    in.gradient = true;
    in.state.grad_mode = true;
    in.arguments.resize(4);
    for (size_t i : {0, 1, 2}) in.arguments[i].is_list = true;
    in.arguments[1].is_optional_list = true;
    for (const Root& root : roots_) {
      in.arguments[0].operands.push_back({Operand::Kind::kValue, root.first, false});
      in.arguments[1].operands.push_back(gradient_operand(root));
    }
    in.arguments[2].operands = of_;
    in.arguments[3].constant = c10::List<bool>();
    return in;
  }

  // The operator joins: it runs for micro-batch 0.
  variable_list join() {
    Instruction in = instruction();
    const RegionWork work;
    const AtWork at_work(region_);
    const Offload::MayFail may_fail;
    const NoInterceptGuard no_intercept;
    for (const Root& root : roots_) region_.consume(root.first);  // so that micro-batch 0 keeps it
    for (const Operand& o : of_) {
      if (o.kind == Operand::Kind::kValue) region_.consume(o.id);
    }
    const torch::jit::Stack results = for_micro_batch_0(in);
    c10::List<bool> used;
    variable_list gradients;
    for (size_t i = 0; i < of_.size(); ++i) {
      const at::Tensor& local = results[i].toTensor();
      used.push_back(local.defined());
      gradients.push_back(local.defined() ? deferred_gradient(of_[i], local) : at::Tensor());
      in.outputs.push_back(local.defined() ? static_cast<ValueId>(region_.values_.size() - 1) : kNoValue);
    }
    in.arguments[3].constant = std::move(used);
    region_.instructions_.push_back(std::move(in));
    region_.first_.next = region_.instructions_.size();
    return gradients;
  }

  torch::jit::Stack for_micro_batch_0(const Instruction& in) {
    torch::jit::Stack results;
    const auto is_there = [&](const Operand& o) { return o.kind != Operand::Kind::kValue || (o.id < region_.first_.values.size() && region_.first_.values[o.id].defined()); };
    Recovery recovery(region_, Recovery::FirstFrame::kFails);
    MicroBatchLoop(recovery).once([this] { return region_.micro_batch_; }, [&] {
      results.clear();
      region_.bury_dead();
      const bool complete = std::all_of(in.arguments.begin(), in.arguments.end(), [&](const Argument& a) { return std::all_of(a.operands.begin(), a.operands.end(), is_there); });
      if (!complete) region_.drop_first_frame();
      if (region_.first_.next < region_.instructions_.size()) region_.run_first_frame();
      results = region_.call_instruction(region_.first_, in);
    });
    return results;
  }

  at::Tensor deferred_gradient(const Operand& o, const at::Tensor& local) {
    const bool inner = o.kind == Operand::Kind::kValue;
    const Placement placement = inner ? region_.values_[o.id].placement : region_.uses_[o.id].placement;
    const at::IntArrayRef whole = inner ? at::IntArrayRef(region_.values_[o.id].sizes) : capture_of(o.id).as_read().sizes();
    const std::vector<int64_t> sizes = whole.vec();
    const bool random = std::any_of(roots_.begin(), roots_.end(), [&](const Root& root) { return region_.values_[root.first].random; });
    const ValueId value = region_.new_value(placement.is_shard() ? placement : Placement::partial(), 0, has_node(local), random);
    region_.values_[value].group = region_.new_group(value);
    region_.set_local(region_.first_, value, local);
    const std::vector<int64_t> strides = dense_strides_like(local, sizes);
    const at::Device device = region_.device_;
    at::Tensor tensor = make_deferred(local.detach(), sizes, strides, 0,
                                      empty_storage(at::detail::computeStorageNbytes(sizes, strides, local.element_size()), device, c10::GetAllocator(device.type())));
    region_.install(value, tensor);
    return tensor;
  }

  Region& region_;
  const std::vector<Root> roots_;
  std::set<size_t> path_;        // operators
  std::vector<Operand> of_;      // whose gradients
  std::vector<size_t> results_;  // which one each of these counts into
};

variable_list Region::differentiate(const variable_list& gradients) {
  const auto* node = static_cast<RegionNode*>(node_);
  std::vector<Root> roots;
  std::vector<ValueId> from;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    roots.emplace_back(node->outputs()[i], gradients[i]);
    from.push_back(roots.back().first);
  }
  begin_pass(from);
  const auto path = std::exchange(pass_, {});
  const auto region = GraphPass::region_for(*this, roots);
  GraphPass pass(*region, std::move(roots));
  pass.go_through(path);
  const auto edge_of = [&](const Capture& c) { return captures_[static_cast<size_t>(&c - region->captures_.data())].edge; };
  pass.ask_for_captures([&](const Capture& c) { return edge_of(c) >= 0 && wanted_[static_cast<size_t>(&c - region->captures_.data())] != 0; }, [&](const Capture& c) { return static_cast<size_t>(edge_of(c)); });
  return pass.run(node->num_outputs());
}

std::optional<variable_list> Region::differentiate_inside(const edge_list& roots, const variable_list& gradients, const edge_list& inputs) {
  const auto* node = static_cast<RegionNode*>(node_);
  if (released_ || node == nullptr) return std::nullopt;
  bury_dead();
  check_sound();
  check_pass(gradients);
  std::vector<Root> from;
  std::vector<ValueId> values;
  for (size_t i = 0; i < roots.size(); ++i) {
    if (roots[i].function.get() != node_) return std::nullopt;
    from.emplace_back(node->outputs()[roots[i].input_nr], gradients[i]);
    values.push_back(from.back().first);
  }
  for (const Edge& input : inputs) {
    if (input.function.get() == node_ && !values_[node->outputs()[input.input_nr]].placement.is_shard()) return std::nullopt;
  }
  const auto region = GraphPass::region_for(*this, from);
  GraphPass pass(*region, std::move(from));
  const auto path = differentiable_path(values);
  pass.go_through({path.begin(), path.end()});
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].function.get() == node_) {
      pass.ask_for_value(node->outputs()[inputs[i].input_nr], i);
    } else {
      pass.ask_for_captures([&](const Capture& c) { return c.requires_grad && torch::autograd::impl::gradient_edge(c.tensor) == inputs[i]; }, [i](const Capture&) { return i; });
    }
  }
  return pass.run(inputs.size());
}

}  // namespace koila
