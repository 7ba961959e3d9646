#include "torchglue/placement/rule.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "torchglue/placement/operands.h"
#include "torchglue/placement/placement.h"
#include "torchglue/placement/user_rules.h"

namespace koila {

std::vector<int64_t> Ragged::places(int64_t begin, int64_t end) const {
  std::vector<int64_t> found(static_cast<size_t>(first[end] - first[begin]));
  if (order.empty()) {
    std::iota(found.begin(), found.end(), first[begin]);
  } else {
    std::copy(order.begin() + first[begin], order.begin() + first[end], found.begin());
    std::sort(found.begin(), found.end());
  }
  return found;
}

std::string to_string(const Placement& p) {
  switch (p.kind) {
    case Placement::Kind::kReplicate:
      return "Replicate";
    case Placement::Kind::kPartial:
      return "Partial";
    case Placement::Kind::kShard:
      break;
  }
  std::string text = "Shard(" + std::to_string(p.dim);
  if (p.ragged) return text + ", ragged)";
  if (p.outer != 1 || p.inner != 1) text += ", outer=" + std::to_string(p.outer) + ", inner=" + std::to_string(p.inner);
  return text + ")";
}

namespace {

const TensorSpec kUndefined;
const std::vector<TensorSpec> kNoTensors;

std::unordered_map<std::string, Rule>& table() {
  static auto* rules = new std::unordered_map<std::string, Rule>;
  return *rules;
}

const Rule* look_up(const std::string& name, const std::string& overload) {
  const auto& rules = table();
  if (!overload.empty()) {
    if (auto it = rules.find(name + "." + overload); it != rules.end()) return &it->second;
  }
  auto it = rules.find(name);
  return it == rules.end() ? nullptr : &it->second;
}

// Where the tables have it under another name: view_copy() is view() in memory of its own.
std::string_view table_twin(std::string_view name) {
  constexpr std::string_view kCopy = "_copy";
  return name.ends_with(kCopy) ? name.substr(0, name.size() - kCopy.size()) : functional_twin(name);
}

const Rule* find_built_in_rule(const std::string& name, const std::string& overload) {
  if (const Rule* rule = look_up(name, overload)) return rule;
  const std::string_view twin = table_twin(name);
  return twin.empty() ? nullptr : look_up(std::string(twin), overload);
}

bool has_overloads(std::string_view name) {
  const auto is_overload = [prefix = std::string(name) + "."](const auto& entry) { return entry.first.starts_with(prefix); };
  return !name.empty() && std::any_of(table().begin(), table().end(), is_overload);
}

std::set<RuleFn::Function>& ragged_functions() {
  static auto* functions = new std::set<RuleFn::Function>;
  return *functions;
}

struct SplitArguments {
  bool on_one_device = true;  // and what comes of them too
  bool ragged = false;
};

SplitArguments look_at_split(const OpCall& call) {
  SplitArguments found;
  const TensorSpec* split = call.first_split();
  if (split == nullptr) return found;
  const c10::Device device = split->device;
  const bool moves = call.schema().name() == "aten::to" || call.schema().name() == "aten::type_as";
  for (const OpCall::Arg& arg : call.args()) {
    for (const TensorSpec& t : arg.tensors) {
      found.ragged |= t.placement.ragged != nullptr;
      if (t.defined && t.device != device && (moves || !t.placement.is_replicate())) found.on_one_device = false;
    }
    if (!arg.value.isDevice()) continue;
    const c10::Device asked = arg.value.toDevice();
    if (asked.type() != device.type() || (asked.has_index() && asked != device)) found.on_one_device = false;
  }
  return found;
}

// Asks again with these arguments as Replicate. Leaves the question as it was when the answer is no.
bool local_with(const Rule& rule, OpCall& call, const std::vector<ArgRef>& whole) {
  std::vector<Placement> before;
  for (ArgRef ref : whole) before.push_back(std::exchange(call.find_tensor(ref)->placement, Placement::replicate()));
  call.clear_answer();
  if (rule.fn(call) == Verdict::kLocal) {
    call.set_whole(whole);
    return true;
  }
  for (size_t i = 0; i < whole.size(); ++i) call.find_tensor(whole[i])->placement = before[i];
  return false;
}

// Entries that each row has in a number of its own meet those of other rows, or others by the row: some are put together first, and cut as the others are.
Verdict ask_without_ragged(const Rule& rule, OpCall& call, bool takes_ragged) {
  std::vector<ArgRef> ragged;
  bool others = false;
  for (ArgRef ref : defined_operands(call)) {
    const Placement& p = spec(call, ref).placement;
    if (p.ragged) ragged.push_back(ref);
    others |= p.is_shard() && !p.ragged;
  }
  if (others) return local_with(rule, call, ragged) ? Verdict::kStaged : Verdict::kNo;
  if (!takes_ragged || ragged.size() != 2) return Verdict::kNo;
  return local_with(rule, call, {ragged[1]}) || local_with(rule, call, {ragged[0]}) ? Verdict::kStaged : Verdict::kNo;
}

int64_t entries(const TensorSpec& t) { return std::accumulate(t.sizes.begin(), t.sizes.end(), int64_t{1}, std::multiplies<>()); }

}  // namespace

int OpCall::find(std::string_view name) const {
  const auto& arguments = schema_->arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return static_cast<int>(i);
  }
  return -1;
}

const TensorSpec& OpCall::tensor(int arg) const {
  if (arg < 0 || arg >= static_cast<int>(args_.size())) return kUndefined;
  const Arg& a = args_[arg];
  return a.is_tensor && !a.tensors.empty() ? a.tensors[0] : kUndefined;
}

const std::vector<TensorSpec>& OpCall::list(int arg) const {
  if (arg < 0 || arg >= static_cast<int>(args_.size()) || !args_[arg].is_tensor_list) return kNoTensors;
  return args_[arg].tensors;
}

bool OpCall::none(int arg) const {
  if (arg < 0 || arg >= static_cast<int>(args_.size())) return true;
  const Arg& a = args_[arg];
  if (a.is_tensor) return !tensor(arg).defined;
  if (a.is_tensor_list) return false;
  return a.value.isNone();
}

int64_t OpCall::integer(int arg, int64_t otherwise) const {
  if (none(arg)) return otherwise;
  const c10::IValue& v = args_[arg].value;
  if (v.isInt()) return v.toInt();
  if (v.isBool()) return v.toBool() ? 1 : 0;
  if (v.isSymInt()) return v.toSymInt().maybe_as_int().value_or(otherwise);
  return otherwise;
}

double OpCall::number(int arg, double otherwise) const {
  if (none(arg)) return otherwise;
  const c10::IValue& v = args_[arg].value;
  if (v.isDouble()) return v.toDouble();
  if (v.isInt()) return static_cast<double>(v.toInt());
  return otherwise;
}

bool OpCall::boolean(int arg, bool otherwise) const {
  if (none(arg)) return otherwise;
  const c10::IValue& v = args_[arg].value;
  return v.isBool() ? v.toBool() : otherwise;
}

std::optional<std::vector<int64_t>> OpCall::integers(int arg) const {
  if (none(arg)) return std::nullopt;
  const c10::IValue& v = args_[arg].value;
  if (v.isIntList()) return v.toIntVector();
  if (v.isInt()) return std::vector<int64_t>{v.toInt()};
  if (v.isList()) {
    std::vector<int64_t> out;
    for (const c10::IValue& element : v.toListRef()) {
      if (element.isInt()) {
        out.push_back(element.toInt());
      } else if (element.isSymInt() && element.toSymInt().maybe_as_int()) {
        out.push_back(*element.toSymInt().maybe_as_int());
      } else {
        return std::nullopt;
      }
    }
    return out;
  }
  return std::nullopt;
}

const TensorSpec* OpCall::first_split() const {
  for (const Arg& a : args_) {
    for (const TensorSpec& t : a.tensors) {
      if (t.defined && !t.placement.is_replicate()) return &t;
    }
  }
  return nullptr;
}

TensorSpec* OpCall::find_tensor(ArgRef ref) {
  if (ref.arg < 0 || ref.arg >= static_cast<int>(args_.size())) return nullptr;
  Arg& a = args_[ref.arg];
  const size_t element = ref.element < 0 ? 0 : static_cast<size_t>(ref.element);
  return element < a.tensors.size() ? &a.tensors[element] : nullptr;
}

bool OpCall::require(ArgRef ref, const Placement& wanted) {
  TensorSpec* t = find_tensor(ref);
  if (t == nullptr || !t->defined) return true;
  if (t->placement == wanted) return true;
  if (!t->placement.is_replicate() || !wanted.is_shard()) return false;
  if (wanted.dim >= t->dim() || t->sizes[wanted.dim] != wanted.extent(batch_)) return false;
  slices_.push_back({ref, wanted});
  return true;
}

void OpCall::scale_literal(int arg, int element, int64_t factor) { literals_.push_back({arg, element, factor}); }

void OpCall::set_argument(int arg, c10::IValue value) { replaced_.emplace_back(arg, std::move(value)); }

void OpCall::weight_by_rows(int arg) { weighted_.push_back(arg); }

void OpCall::run_instead(const char* name, const char* overload, std::vector<c10::IValue> more) {
  instead_ = Instead{name, overload, std::move(more)};
}

void OpCall::divide_outputs_by(std::vector<int> real_arguments, Denominator f) {
  real_arguments_ = std::move(real_arguments);
  denominator_ = std::move(f);
}

void OpCall::output(int i, const Placement& placement) {
  if (outputs_.size() <= static_cast<size_t>(i)) outputs_.resize(i + 1);
  outputs_[i] = placement;
}

void OpCall::clear_answer() {
  slices_.clear();
  literals_.clear();
  replaced_.clear();
  weighted_.clear();
  outputs_.clear();
  by_element_ = false;
  real_arguments_.clear();
  denominator_ = nullptr;
  instead_.reset();
  whole_.clear();
  aside_.clear();
  scale_outputs_by_rows_ = false;
}

RegisterRagged::RegisterRagged(std::initializer_list<RuleFn::Function> functions) { ragged_functions().insert(functions); }

RegisterRules::RegisterRules(std::initializer_list<Rule> rules) {
  for (const Rule& rule : rules) table().emplace(rule.name, rule);
}

Verdict ask(const Rule* rule, OpCall& call) {
  if (rule == nullptr) return Verdict::kNo;
  const SplitArguments split = look_at_split(call);
  if (!split.on_one_device) return Verdict::kNo;
  if (split.ragged) {
    const bool answers = rule->fn.user() == nullptr && ragged_functions().count(rule->fn.function()) > 0;
    if (answers && rule->fn(call) == Verdict::kLocal) return Verdict::kLocal;
    // Features of both ends of an edge, side by side: putting one end together and cutting it by the other costs more than it saves.
    const bool side_by_side = call.schema().name() == "aten::cat" || call.schema().name() == "aten::concat";
    return ask_without_ragged(*rule, call, answers && !side_by_side);
  }
  if (const Verdict verdict = rule->fn(call); verdict != Verdict::kNo) return verdict;
  std::vector<ArgRef> partial, shard;
  for (ArgRef ref : defined_operands(call)) {
    if (spec(call, ref).placement.is_partial()) partial.push_back(ref);
    if (spec(call, ref).placement.is_shard()) shard.push_back(ref);
  }
  if (!partial.empty() && !shard.empty() && local_with(*rule, call, partial)) return Verdict::kStaged;
  if (!partial.empty() || shard.size() != 2) return Verdict::kNo;
  // The smaller one is gathered, or the second.
  if (entries(spec(call, shard[0])) >= entries(spec(call, shard[1]))) std::swap(shard[0], shard[1]);
  return local_with(*rule, call, {shard[0]}) || local_with(*rule, call, {shard[1]}) ? Verdict::kStaged : Verdict::kNo;
}

const Rule* find_rule(const c10::FunctionSchema& schema) {
  // Named dimensions ("names", "Dimname"): no rule of the tables can read them.
  const bool named = schema.overload_name().find("name") != std::string::npos;
  const Rule* rule = named ? nullptr : find_built_in_rule(schema.name(), schema.overload_name());
  return rule != nullptr ? rule : find_user_rule(schema);
}

bool has_built_in_rule(const std::string& name, const std::string& overload) {
  if (find_built_in_rule(name, overload) != nullptr) return true;
  return overload.empty() && (has_overloads(name) || has_overloads(table_twin(name)));
}

std::string_view functional_twin(std::string_view name) {
  return name.ends_with('_') && !name.ends_with("__") ? name.substr(0, name.size() - 1) : std::string_view();
}

bool draws(const Rule* rule, const OpCall& call) {
  if (rule == nullptr || (rule->flags & kRandom) == 0) return false;
  return (rule->flags & kDrawsAlways) != 0 || may_draw(call);
}

bool may_draw(const OpCall& call) {
  if (!call.schema().name().starts_with("aten::")) return true;
  for (const char* name : {"train", "training"}) {
    if (const int arg = call.find(name); arg >= 0) return call.boolean(arg, true) && call.number(call.find("p"), 1) != 0 && call.number(call.find("dropout"), 1) != 0;
  }
  return call.number(call.find("dropout_p"), 1) != 0;
}

std::vector<const Rule*> registered_rules() {
  std::vector<const Rule*> rules;
  for (const auto& [name, rule] : table()) rules.push_back(&rule);
  std::sort(rules.begin(), rules.end(), [](const Rule* a, const Rule* b) { return std::string_view(a->name) < b->name; });
  return rules;
}

}  // namespace koila
