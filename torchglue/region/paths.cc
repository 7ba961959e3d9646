// Which operators of a region a pass has to run, and where its gradients go.

#include <algorithm>

#include "torchglue/region/region.h"

namespace koila {

std::vector<ValueId> Region::in_use() const {
  std::vector<ValueId> ids;
  for (ValueId id = 0; id < values_.size(); ++id) {
    if (values_[id].impl != nullptr || values_[id].consumed || groups_[values_[id].group].let_go) ids.push_back(id);
  }
  const std::vector<ValueId> others = looked_at();
  ids.insert(ids.end(), others.begin(), others.end());
  return ids;
}

Schedule Region::schedule(const std::vector<ValueId>& keep) const {
  Schedule s;
  s.needed.assign(instructions_.size(), 0);
  s.last_value.assign(values_.size(), 0);
  std::vector<char> value(values_.size(), 0);
  std::vector<char> group(groups_.size(), 0);  // a write through one alias is seen through the others
  const auto need = [&](ValueId v) {
    value[v] = 1;
    group[values_[v].group] = 1;
  };
  for (ValueId v : keep) {
    need(v);
    s.last_value[v] = SIZE_MAX;
  }
  for (size_t i = instructions_.size(); i-- > 0;) {
    const Instruction& in = instructions_[i];
    for (ValueId out : in.outputs) {
      if (out != kNoValue && (value[out] || (in.in_place && group[values_[out].group]))) s.needed[i] = 1;
    }
    if (!s.needed[i]) continue;
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind != Operand::Kind::kValue) continue;
        need(o.id);
        s.last_value[o.id] = std::max(s.last_value[o.id], i);
      }
    }
  }
  return s;
}

std::vector<size_t> Region::differentiable_path(const std::vector<ValueId>& from) const {
  std::vector<char> value(values_.size(), 0);
  std::vector<char> group(groups_.size(), 0);  // a write through one view shows in the others
  const auto reach = [&](ValueId id) {
    if (values_[id].requires_grad) value[id] = group[values_[id].group] = 1;
  };
  for (ValueId v : from) reach(v);
  std::vector<size_t> path;
  for (size_t i = instructions_.size(); i-- > 0;) {
    const Instruction& in = instructions_[i];
    const auto on_path = [&](ValueId out) { return out != kNoValue && values_[out].requires_grad && (value[out] || (in.in_place && group[values_[out].group])); };
    if (std::none_of(in.outputs.begin(), in.outputs.end(), on_path)) continue;
    path.push_back(i);
    for_each_value_read(in, reach);
  }
  return path;
}

std::vector<size_t> Region::on_the_way(const std::vector<size_t>& path) const {
  std::vector<char> value(values_.size(), 0);
  std::vector<char> group(groups_.size(), 0);
  std::vector<size_t> found;
  const auto leads = [&](const Operand& o) {
    if (o.kind == Operand::Kind::kUse) return wanted_[uses_[o.id].capture] != 0;
    return o.kind == Operand::Kind::kValue && (value[o.id] || group[values_[o.id].group]);
  };
  for (auto i = path.rbegin(); i != path.rend(); ++i) {
    const Instruction& in = instructions_[*i];
    const bool is_on_it = std::any_of(in.arguments.begin(), in.arguments.end(), [&](const Argument& a) { return std::any_of(a.operands.begin(), a.operands.end(), leads); });
    if (!is_on_it) continue;
    found.push_back(*i);
    for (ValueId out : in.outputs) {
      if (out == kNoValue) continue;
      value[out] = 1;
      if (in.in_place) group[values_[out].group] = 1;
    }
  }
  return found;
}

bool Region::leads_to(ValueId from, ValueId to) const {
  const auto reads = [&](size_t i) {
    return std::any_of(instructions_[i].arguments.begin(), instructions_[i].arguments.end(), [&](const Argument& argument) {
      return std::any_of(argument.operands.begin(), argument.operands.end(), [&](const Operand& o) { return o.kind == Operand::Kind::kValue && values_[o.id].group == values_[to].group; });
    });
  };
  const auto path = differentiable_path({from});
  return values_[from].group == values_[to].group || std::any_of(path.begin(), path.end(), reads);
}

std::vector<size_t> Region::edges_behind(ValueId from) const {
  std::vector<char> value(values_.size(), 0);
  std::vector<char> group(groups_.size(), 0);  // a write through one view shows in the others
  std::vector<size_t> edges;
  const auto reach = [&](ValueId id) {
    if (values_[id].requires_grad) value[id] = group[values_[id].group] = 1;
  };
  reach(from);
  for (size_t i = instructions_.size(); i-- > 0;) {
    const Instruction& in = instructions_[i];
    const auto on_path = [&](ValueId out) { return out != kNoValue && (value[out] || (in.in_place && group[values_[out].group])); };
    if (std::none_of(in.outputs.begin(), in.outputs.end(), on_path)) continue;
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kValue) reach(o.id);
        if (o.kind == Operand::Kind::kUse && captures_[uses_[o.id].capture].edge >= 0) edges.push_back(static_cast<size_t>(captures_[uses_[o.id].capture].edge));
      }
    }
  }
  return edges;
}

}  // namespace koila
