#include "torchglue/proof/conversion.h"

#include <ATen/ATen.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/oom/error_text.h"
#include "torchglue/oom/oom.h"
#include "torchglue/op_traits.h"
#include "torchglue/placement/creation.h"
#include "torchglue/proof/invariants.h"
#include "torchglue/proof/key.h"
#include "torchglue/region/deferred.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

constexpr int64_t kEntriesAtMost = int64_t{1} << 26;  // that witnesses look at in one conversion

// Values that a random draw went into which is made anew.
std::vector<char> drawn(const Tape& tape, const Plan& plan) {
  std::vector<char> found(tape.values().size(), 0);
  for (const TapeOp& op : tape.ops()) {
    const bool is_drawn = drew(op) || std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return found[ref.value] && !is_seed(plan, ref.value); });
    for (TapeValueId out : op.outputs) {
      if (is_drawn && out != kNoTapeValue) found[out] = 1;
    }
  }
  return found;
}

// Note [What is left is rounding]
// Rows that are all alike, less their mean, are zero; computed, they are roundings of what was subtracted, and a norm makes large numbers of them. Made again by other
// micro-batches they are other roundings, and no rule is to blame. So before a value is said to be wrong the operators that it comes of are looked at: whether one of them, as far as its tensors
// are there still, gave no more than roundings of its operands.
bool has_entries(const at::Tensor& t) {
  return t.defined() && storage_of(t) != nullptr && memory_of(t) != nullptr && t.numel() > 0 && at::isFloatingType(t.scalar_type());
}

double largest(const at::Tensor& t) { return t.abs().max().item<double>(); }

constexpr double kRoundings = 8;

// Operators that give a difference of what they read, and what is made of it.
struct Difference {
  enum class Of : uint8_t { kTwo, kMany, kSquared, kRoot };  // two entries; as many as there are for each of the result; its square; the root of a difference of squares
  std::string_view name;
  Of of;
};
constexpr Difference kDifferences[] = {
    {"aten::add", Difference::Of::kTwo},
    {"aten::add_", Difference::Of::kTwo},
    {"aten::cdist", Difference::Of::kRoot},
    {"aten::huber_loss", Difference::Of::kSquared},
    {"aten::l1_loss", Difference::Of::kTwo},
    {"aten::mean", Difference::Of::kTwo},
    {"aten::mse_loss", Difference::Of::kSquared},
    {"aten::nansum", Difference::Of::kMany},
    {"aten::rsub", Difference::Of::kTwo},
    {"aten::smooth_l1_loss", Difference::Of::kSquared},
    {"aten::std_mean", Difference::Of::kTwo},
    {"aten::sub", Difference::Of::kTwo},
    {"aten::sub_", Difference::Of::kTwo},
    {"aten::sum", Difference::Of::kMany},
    {"aten::var_mean", Difference::Of::kTwo},
};

// The difference, in units of the largest entry that it is one of.
double share_of(Difference::Of of, double left, double largest, double entries) {
  switch (of) {
    case Difference::Of::kTwo: return left / largest;
    case Difference::Of::kMany: return left / (largest * std::max(1.0, entries));
    case Difference::Of::kSquared: return std::sqrt(left) / largest;
    case Difference::Of::kRoot: return (left / largest) * (left / largest);
  }
  return 1;
}

// A difference that is no more than roundings of what it is a difference of. So is the mean of what a norm has made.
// `result`: where it is gone, what has come of it. `left`: its largest entry.
bool cancels(const Tape& tape, const TapeOp& op, const at::Tensor& result, double left) {
  const auto known = std::find_if(std::begin(kDifferences), std::end(kDifferences), [&](const Difference& d) { return d.name == op.op.schema().name(); });
  if (known == std::end(kDifferences)) return false;
  return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) {
    const at::Tensor t = tape.values()[ref.value].lock();
    const double rounded = rounding(result.scalar_type(), result.device().type());
    if (!has_entries(t)) return left <= kRoundings * rounded;  // of numbers about 1, for all that is known
    const double unit = std::max(rounding(t.scalar_type(), t.device().type()), rounded);
    const double from = largest(t), entries = static_cast<double>(t.numel()) / static_cast<double>(result.numel());
    return from > 0 && share_of(known->of, left, from, entries) <= kRoundings * unit;
  });
}

// A norm of what is the same everywhere along the dimensions that it goes over.
bool is_norm_of_alike(const Tape& tape, const TapeOp& op) {
  const std::string& name = op.op.schema().name();
  const bool by_row = name == "aten::instance_norm";
  if (!by_row && name != "aten::batch_norm" && name != "aten::native_batch_norm") return false;
  const auto ref = std::find_if(op.refs.begin(), op.refs.end(), [](const TapeRef& r) { return r.arg == 0; });
  const at::Tensor x = ref != op.refs.end() ? tape.values()[ref->value].lock() : at::Tensor();
  if (!has_entries(x) || x.dim() < (by_row ? 3 : 2)) return false;
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (dim != 1 && (dim != 0 || !by_row)) dims.push_back(dim);
  }
  return largest(x.amax(dims) - x.amin(dims)) <= kRoundings * rounding(x.scalar_type(), x.device().type()) * largest(x);
}

// `was`: what the value's largest entry was before, or more.
bool comes_of_rounding(const Tape& tape, TapeValueId value, double was) {
  std::vector<char> seen(tape.values().size(), 0);
  std::vector<TapeValueId> next{value};
  // What has come of a difference that is gone says how small that was: the same, or less, by what follows in all but odd cases. Before and after: zeros alone may be what was lost.
  const at::Tensor now = tape.values()[value].lock();
  const double left = has_entries(now) ? std::max(was, largest(now)) : was;
  while (!next.empty()) {
    const TapeValueId v = next.back();
    next.pop_back();
    if (std::exchange(seen[v], 1) != 0 || tape.values()[v].is_capture()) continue;
    const TapeOp& op = tape.ops()[static_cast<size_t>(tape.values()[v].producer)];
    const at::Tensor t = tape.values()[v].lock();
    if (has_entries(t) ? cancels(tape, op, t, largest(t)) || is_norm_of_alike(tape, op) : has_entries(now) && cancels(tape, op, now, left)) return true;
    for (const TapeRef& ref : op.refs) next.push_back(ref.value);
  }
  return false;
}

std::vector<at::Tensor> leaves_behind(const Tape& tape, const Plan& plan) {
  std::vector<torch::autograd::Node*> nodes;
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const TapeValue& value = tape.values()[v];
    if (value.is_capture() || !plan.descends[v]) continue;
    const at::Tensor t = value.lock();
    if (t.defined()) add_nodes_behind(t, nodes);
  }
  std::vector<at::Tensor> leaves;
  walk_graph(std::move(nodes), [&](torch::autograd::Node* node) {
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) leaves.push_back(leaf->variable);
    return true;
  });
  return leaves;
}

// Groups that the call in flight writes to. It ran out, and may have done a part of that.
std::set<uint32_t> groups_half_written(const Tape& tape) {
  std::set<uint32_t> groups;
  if (tape.pending() == nullptr) return groups;
  for (const TapeRef& ref : tape.pending()->refs) {
    const c10::AliasInfo* alias = tape.pending()->op.schema().arguments()[ref.arg].alias_info();
    if (alias != nullptr && alias->isWrite()) groups.insert(tape.values()[ref.value].group);
  }
  return groups;
}

// Groups whose memory lay there as it was (torch.empty): what the program has not written yet is nobody's, and is other numbers in a micro-batch.
std::set<uint32_t> groups_of_fresh_memory(const Tape& tape) {
  std::set<uint32_t> groups;
  for (const TapeOp& op : tape.ops()) {
    if (!makes_fresh_memory(op.op.schema())) continue;
    for (TapeValueId out : op.outputs) {
      if (out != kNoTapeValue) groups.insert(tape.values()[out].group);
    }
  }
  return groups;
}

// Groups that the operators from `first` on make, or write to.
std::set<uint32_t> groups_made_from(const Tape& tape, size_t first) {
  std::set<uint32_t> groups;
  for (size_t i = first; i < tape.ops().size(); ++i) {
    for (TapeValueId out : tape.ops()[i].outputs) {
      if (out != kNoTapeValue) groups.insert(tape.values()[out].group);
    }
  }
  return groups;
}

}  // namespace

BeforeConversion::BeforeConversion(const Tape& tape, const Plan& plan, const std::vector<char>& needed) : plan_(plan) {
  const NoInterceptGuard no_intercept;
  leaves_ = leaves_behind(tape, plan);
  take_statistics(tape);
  take_witnesses(tape, needed);
}

void BeforeConversion::take_statistics(const Tape& tape) {
  for (const TapeOp& op : tape.ops()) {
    if (!op_traits(op.op).silent_effect) continue;
    for (const TapeRef& ref : op.refs) {
      if (!op.op.schema().arguments()[ref.arg].name().starts_with("running_")) continue;  // in words of its own: what is checked may be wrong
      const at::Tensor t = tape.values()[ref.value].lock();
      if (!t.defined() || !t.is_cpu() || !t.is_contiguous() || memory_of(t) == nullptr) continue;
      const auto* data = static_cast<const char*>(memory_of(t)) + t.storage_offset() * static_cast<int64_t>(t.element_size());
      statistics_.push_back({t, {data, data + t.nbytes()}});
    }
  }
}

void BeforeConversion::take_witnesses(const Tape& tape, const std::vector<char>& needed) {
  const Session& s = session();
  if (!s.verifies()) return;
  key_ = combined(static_cast<size_t>(plan_.batch), needed.size());
  for (size_t i = 0; i < tape.ops().size(); ++i) {
    if (needed[i]) key_ = combined(key_, std::hash<const void*>()(&tape.ops()[i].op.schema()));
  }
  if (!s.verifies_always() && s.proven.steps.count(key_) > 0) return;
  const auto random = drawn(tape, plan_);
  const std::set<uint32_t> half_written = groups_half_written(tape), fresh = groups_of_fresh_memory(tape);
  std::map<uint32_t, uint32_t> versions;  // by storage group: what the operators on the tape account for
  for (const TapeValue& value : tape.values()) versions[value.group] = std::max(versions[value.group], value.version);
  int64_t entries = 0;
  for (TapeValueId v = 0; v < tape.values().size() && entries < kEntriesAtMost; ++v) {
    const TapeValue& value = tape.values()[v];
    if (value.is_capture() || !plan_.descends[v] || is_seed(plan_, v) || random[v] || value.exchanged || half_written.count(value.group) > 0 || fresh.count(value.group) > 0) continue;
    if (!needed[static_cast<size_t>(value.producer)] || tape.on_capture(value.group) || tape.pinned(value.group) || !tape.is_current(v)) continue;
    const at::Tensor t = value.lock();
    if (!t.defined() || storage_of(t) == nullptr || value.storage != storage_of(t) || version_of(t) != versions[value.group]) continue;
    if (deferred_registry().awaits_value(storage_of(t))) continue;
    auto witness = bear_witness(t, plan_.placements[v], plan_.batch);
    if (!witness) continue;
    witness->conversion = key_;
    entries += witness->entries();
    values_.push_back({v, *std::move(witness)});
  }
}

void BeforeConversion::compare(const Tape& tape, Region* region, size_t done) noexcept {
  try {
    const NoInterceptGuard no_intercept;
    const at::NoGradGuard no_grad;
    compare_statistics(region);
    if (region != nullptr && done == tape.ops().size()) compare_leaves(tape, region);
    compare_values(tape, region, done);
  } catch (const std::exception& error) {
    take_allocator_ran_out();
    session().log(KOILA_LOG_DEBUG, std::string("a conversion is not proven: ") + error_text(error));
  }
}

void BeforeConversion::compare_statistics(Region* region) {
  for (const Statistic& statistic : statistics_) {
    auto* data = static_cast<char*>(const_cast<void*>(memory_of(statistic.tensor)));
    if (data == nullptr || statistic.tensor.nbytes() != statistic.bytes.size()) continue;
    data += statistic.tensor.storage_offset() * static_cast<int64_t>(statistic.tensor.element_size());
    if (std::memcmp(data, statistic.bytes.data(), statistic.bytes.size()) == 0) continue;
    std::memcpy(data, statistic.bytes.data(), statistic.bytes.size());
    if (region != nullptr) region->broken(invariant::kStatisticsStay, "a running statistic changed");
  }
}

void BeforeConversion::compare_leaves(const Tape& tape, Region* region) {
  ska::flat_hash_set<const c10::TensorImpl*> now;
  for (const at::Tensor& leaf : leaves_behind(tape, plan_)) now.insert(leaf.unsafeGetTensorImpl());
  for (const at::Tensor& leaf : leaves_) {
    if (!leaf.requires_grad()) continue;  // the program has frozen it since
    if (now.count(leaf.unsafeGetTensorImpl()) == 0) region->broken(invariant::kLeavesAreReached, "a parameter of " + std::to_string(leaf.numel()) + " entries gets no gradient any more");
  }
}

void BeforeConversion::compare_values(const Tape& tape, Region* region, size_t done) {
  const std::set<uint32_t> unfinished = groups_made_from(tape, done);
  for (Value& value : values_) {
    if (unfinished.count(tape.values()[value.id].group) > 0) continue;
    const at::Tensor t = tape.values()[value.id].lock();
    if (!t.defined() || storage_of(t) == nullptr) continue;
    if (const auto entry = deferred_registry().find(t.unsafeGetTensorImpl()); entry.region != nullptr && deferred_registry().awaits_value(storage_of(t))) {
      entry.region->expect(entry.value, std::move(value.witness));
      continue;
    }
    if (memory_of(t) == nullptr || t.scalar_type() != value.witness.dtype) continue;
    // What micro-batches have made of it differs by rounding, and that by as much as the step makes of it: so it takes a lot, and in more than one row.
    const double bound = std::min(0.5, 100 * std::max(1e-12, tolerance(rounding(value.witness.dtype, t.device().type()))));
    size_t apart = 0;
    double was = 0;
    if (at::isFloatingType(t.scalar_type()) || at::isComplexType(t.scalar_type())) {
      for (const auto& [row, expected] : value.witness.rows) {
        const auto has = fingerprint(t, value.witness.placement, plan_.batch, {0, plan_.batch}, {row, row + 1});
        apart += has && distance(expected, *has) > bound;
        was = std::max(was, expected.length());
      }
    }
    if (apart < 2 || comes_of_rounding(tape, value.id, was)) continue;
    deferred_registry().lose(t.storage());
    const TapeOp& op = tape.ops()[static_cast<size_t>(tape.values()[value.id].producer)];
    session().log(KOILA_LOG_DEBUG, "what " + op.op.schema().name() + " gave has been made again, and is something else");
    if (region != nullptr) region->broken(invariant::kMadeAgainIsTheSame, "what " + op.op.schema().name() + " had given is not");
  }
}

}  // namespace koila
