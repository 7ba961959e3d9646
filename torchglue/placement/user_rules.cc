#include "torchglue/placement/user_rules.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "runtime/fork_lock.h"
#include "runtime/rule_text.h"
#include "torchglue/placement/operands.h"
#include "torchglue/placement/schema_types.h"

namespace koila {

namespace {

struct Line {
  RuleText text;
  std::atomic<bool> off{false};
};

// A line as one operator's schema has it: arguments by number. Those that the line does not name are Replicate.
struct Alternative {
  Line* line;
  std::vector<PlacementText> placements;                // by argument
  std::vector<std::pair<int, std::optional<int>>> rows;  // argument, element
};

struct DoesNotSuit {
  std::string why;
};

int index_of(const c10::FunctionSchema& schema, const std::string& name) {
  std::string known;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == name) return static_cast<int>(i);
    known += (i == 0 ? "" : ", ") + schema.arguments()[i].name();
  }
  throw DoesNotSuit{"has no argument '" + name + "'; expected one of: " + known};
}

// Throws DoesNotSuit.
Alternative suit(Line& line, const c10::FunctionSchema& schema) {
  Alternative suited{&line, std::vector<PlacementText>(schema.arguments().size()), {}};
  for (const ArgumentText& argument : line.text.arguments) {
    const int index = index_of(schema, argument.name);
    if (!is_tensor_type(*schema.arguments()[index].type())) throw DoesNotSuit{"takes no tensor as '" + argument.name + "'; expected a tensor, or a list of them"};
    suited.placements[index] = argument.placement;
  }
  for (const RowsText& rows : line.text.rows) {
    const int index = index_of(schema, rows.argument);
    const c10::Type& type = *schema.arguments()[index].type();
    if (rows.element && !is_integer_list_type(type)) throw DoesNotSuit{"takes no list of integers as '" + rows.argument + "'"};
    if (!rows.element && !is_integer_type(type)) throw DoesNotSuit{"takes no integer as '" + rows.argument + "'" + (is_integer_list_type(type) ? "; expected an element of the list, such as " + rows.argument + "[0]: rows" : "")};
    suited.rows.emplace_back(index, rows.element);
  }
  const size_t results = schema.returns().size();
  if (results != line.text.outputs.size()) throw DoesNotSuit{"gives " + std::to_string(results) + " results, and the rule says what becomes of " + std::to_string(line.text.outputs.size())};
  for (const c10::Argument& result : schema.returns()) {
    const c10::AliasInfo* alias = result.alias_info();
    if (alias != nullptr && !alias->isWrite()) throw DoesNotSuit{"gives a view of an argument; expected results of their own"};
    if (!is_tensor_type(*result.type())) throw DoesNotSuit{"gives a result that is no tensor, which micro-batches cannot put together"};
  }
  // See Note [In-place operators and out=]: the first argument is written and handed back, and nothing else.
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    const c10::AliasInfo* back = schema.returns().empty() ? nullptr : schema.returns()[0].alias_info();
    if (i != 0 || back == nullptr || !back->isWrite()) throw DoesNotSuit{"writes to its argument '" + schema.arguments()[i].name() + "'; expected one that writes to none, or to its first and hands it back"};
  }
  return suited;
}

// What a call's split arguments have in common.
struct Split {
  std::optional<Placement> rows;  // of the first Shard argument; its dimension is not to be used
  std::optional<int64_t> any;
};

}  // namespace

// The lines for one operator, in the order in which they were written.
class UserOperator {
 public:
  std::string name;
  std::vector<Alternative> alternatives;

  Verdict answer(OpCall& call) const { return choose(call) != nullptr ? Verdict::kLocal : Verdict::kNo; }

  // The first that fits, which has filled in the answer; null when there is none.
  const Alternative* choose(OpCall& call) const {
    for (const Alternative& one : alternatives) {
      if (one.line->off.load(std::memory_order_relaxed)) continue;
      if (fits(one, call)) return &one;
      call.clear_answer();
    }
    return nullptr;
  }

 private:
  static bool excepts(const PlacementText& text, int64_t dim, int64_t ndim) {
    return std::any_of(text.except.begin(), text.except.end(), [&](int e) { return (e < 0 ? e + ndim : e) == dim; });
  }

  // What is split already agrees with the line, and says what the rest of it means.
  static bool read(const Alternative& one, const OpCall& call, Split& split) {
    for (size_t i = 0; i < call.args().size(); ++i) {
      const OpCall::Arg& arg = call.args()[i];
      // A generator of the program's own would be drawn from once a micro-batch, and again when one is computed again.
      if (arg.value.isGenerator()) return false;
      if (!arg.is_tensor && !arg.is_tensor_list) continue;
      const PlacementText& text = one.placements[i];
      for (const TensorSpec& t : arg.tensors) {
        if (!t.defined) continue;
        if (text.kind == PlacementText::Kind::kPartial && !t.placement.is_partial()) return false;
        if (text.kind == PlacementText::Kind::kReplicate && !t.placement.is_replicate()) return false;
        if (!text.is_shard() || t.placement.is_replicate()) continue;
        if (!t.placement.is_shard()) return false;
        if (split.rows && !split.rows->splits_like(t.placement)) return false;
        split.rows = t.placement;
        if (text.kind != PlacementText::Kind::kShardAny) continue;
        if (split.any && *split.any != t.placement.dim) return false;
        split.any = t.placement.dim;
      }
    }
    return true;
  }

  static bool fits(const Alternative& one, OpCall& call) {
    Split split;
    if (!read(one, call, split)) return false;
    const bool shards = std::any_of(one.placements.begin(), one.placements.end(), [](const PlacementText& p) { return p.is_shard(); });
    if (shards && !split.rows) return false;
    for (size_t i = 0; i < call.args().size(); ++i) {
      const PlacementText& text = one.placements[i];
      if (!text.is_shard()) continue;
      const OpCall::Arg& arg = call.args()[i];
      for (size_t j = 0; j < arg.tensors.size(); ++j) {
        const TensorSpec& t = arg.tensors[j];
        if (!t.defined) continue;
        const auto dim = text.kind == PlacementText::Kind::kShard ? wrap_dim(text.dim, t.dim()) : split.any;
        if (!dim || *dim >= t.dim() || excepts(text, *dim, t.dim())) return false;
        if (!call.require({static_cast<int>(i), arg.is_tensor_list ? static_cast<int>(j) : -1}, split.rows->at(*dim))) return false;
      }
    }
    for (const auto& [arg, element] : one.rows) {
      if (!rewrite_rows(call, arg, element, *split.rows)) return false;
    }
    for (size_t i = 0; i < one.line->text.outputs.size(); ++i) {
      const PlacementText& text = one.line->text.outputs[i];
      if (text.kind == PlacementText::Kind::kShardAny && !split.any) return false;
      call.output(static_cast<int>(i), !text.is_shard() ? Placement::partial() : split.rows->at(text.kind == PlacementText::Kind::kShard ? text.dim : *split.any));
    }
    if (one.line->text.mean) call.scale_outputs_by_rows();
    return true;
  }

  // The literal counts the rows of this very call.
  static bool rewrite_rows(OpCall& call, int arg, std::optional<int> element, const Placement& rows) {
    const auto values = call.integers(arg);
    if (!values) return false;
    int64_t index = element.value_or(0);
    if (index < 0) index += static_cast<int64_t>(values->size());
    if (index < 0 || index >= static_cast<int64_t>(values->size()) || (*values)[index] != rows.extent(call.batch())) return false;
    call.scale_literal(arg, element ? static_cast<int>(index) : -1, rows.outer * rows.inner);
    return true;
  }
};

namespace {

// Everything that was written, by operator, and what has been made of it. Only grows.
struct Book {
  ForkLock mutex;
  std::map<std::string, std::deque<Line>, std::less<>> lines;  // by the operator's name
  struct Made {
    size_t lines = 0;  // that it was made of, and for which arguments: an operator may be defined anew
    std::string schema;
    const Rule* rule = nullptr;
  };
  std::map<std::string, Made> made;  // by the operator's full name
  std::set<std::string> said;
  std::atomic<void (*)(const std::string&)> say{nullptr};

  // Bounded: a file may hold thousands of lines for operators that koila has rules for.
  void warn(const std::string& message) {
    constexpr size_t kSaidAtMost = 20;
    if (said.size() > kSaidAtMost || !said.insert(message).second) return;
    auto* function = say.load();
    if (function != nullptr) function(said.size() <= kSaidAtMost ? message : "more is wrong with placement rules, and not said");
  }

  std::deque<Line>* find(const std::string& name) {
    if (const auto it = lines.find(name); it != lines.end()) return &it->second;
    const auto it = lines.find(functional_twin(name));
    return it == lines.end() ? nullptr : &it->second;
  }
};

// Of published packages, whose operators nobody else has a rule for; another release of one may have others.
constexpr char kKoilasOwn[] = "koila's own rules";
constexpr const char* kShipped[] = {
    // 4-bit weights: a linear layer whose frozen weight is taken out of its blocks as a whole, whichever rows there are.
    "bitsandbytes::gemm_4bit(A: Shard(any but -1), B: Replicate, absmax: Replicate, bias: Replicate) -> Shard(any)",
    "bitsandbytes.autograd._functions.MatMul4Bit(A: Shard(any but -1), B: Replicate, bias: Replicate) -> Shard(any)",
};

std::atomic<uint32_t> version{0};  // outside the book: every operator call looks at it

Book& book() {
  static auto* the_book = new Book;  // never destroyed: tensors may outlive static destruction
  return *the_book;
}

// Results of the autograd.Function that rules promise; 0: there is none for it.
int64_t results_of_function(const std::string& function) {
  Book& b = book();
  const std::lock_guard lock(b.mutex);
  const std::deque<Line>* lines = b.find(operator_of_function(function));
  return lines == nullptr ? 0 : static_cast<int64_t>(lines->front().text.outputs.size());
}

TORCH_LIBRARY_FRAGMENT(koila, m) { m.def("results_of_function(str function) -> int", &results_of_function); }

bool draws_by_its_tag(const c10::FunctionSchema& schema) {
  const auto op = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  return op && op->hasTag(at::Tag::nondeterministic_seeded);
}

}  // namespace

Verdict RuleFn::ask_user(OpCall& call) const { return user_->answer(call); }

void add_user_rule(const char* text, const char* where) noexcept {
  try {
    ParsedRule parsed = parse_rule(text);
    if (!parsed.rule) return;  // the runtime has said what is wrong with it
    parsed.rule->where = where;
    Book& b = book();
    const std::lock_guard lock(b.mutex);
    const std::string full = c10::toString(c10::OperatorName(parsed.rule->name, parsed.rule->overload));
    if (has_built_in_rule(parsed.rule->name, parsed.rule->overload)) {
      b.warn(std::string(where) + ": koila has a rule for " + full + " already, which stays; expected an operator without one");
      return;
    }
    b.lines[parsed.rule->name].emplace_back().text = *std::move(parsed.rule);
    version.fetch_add(1, std::memory_order_release);
  } catch (...) {
    // Out of memory for a rule: the operator goes on at the full batch.
  }
}

void add_shipped_rules() noexcept {
  for (const char* text : kShipped) add_user_rule(text, kKoilasOwn);
}

uint32_t user_rules_version() { return version.load(std::memory_order_acquire); }

const Rule* find_user_rule(const c10::FunctionSchema& schema) {
  if (user_rules_version() == 0) return nullptr;
  Book& b = book();
  const std::lock_guard lock(b.mutex);
  std::deque<Line>* lines = b.find(schema.name());
  if (lines == nullptr) return nullptr;
  const std::string full = c10::toString(schema.operator_name());
  Book::Made& made = b.made[full];
  std::string text = c10::toString(schema);
  if (made.lines == lines->size() && made.schema == text) return made.rule;
  made = {lines->size(), std::move(text), nullptr};
  // What was made before stays where it is: somebody may be about to ask it.
  auto user = std::make_unique<UserOperator>();
  user->name = full;
  uint8_t flags = kPlain;
  for (Line& line : *lines) {
    if (!line.text.overload.empty() && line.text.overload != schema.overload_name()) continue;
    try {
      user->alternatives.push_back(suit(line, schema));
      if (line.text.random) flags = kRandom | kDrawsAlways;
    } catch (const DoesNotSuit& problem) {
      if (line.text.where != kKoilasOwn) b.warn(line.text.where + ": " + full + " " + problem.why + "; the rule does not hold for it");
    }
  }
  if (user->alternatives.empty()) return nullptr;
  if (draws_by_its_tag(schema)) flags = kRandom | kDrawsAlways;
  const UserOperator& kept = *user.release();
  return made.rule = new Rule{kept.name.c_str(), RuleFn(kept), flags};
}

void user_rule_broken(const Rule& rule, const OpCall& call) {
  const UserOperator* user = rule.fn.user();
  if (user == nullptr) return;
  OpCall again = call;
  again.clear_answer();
  const Alternative* promised = user->choose(again);
  if (promised == nullptr || promised->line->off.exchange(true)) return;
  const std::lock_guard lock(book().mutex);
  book().warn(promised->line->text.where + ": the rule does not hold for " + user->name + ": a result has another size than it says, or is a mean of whole numbers; it is not used from here on");
}

void set_user_rules_log(void (*say)(const std::string&)) { book().say.store(say); }

}  // namespace koila
