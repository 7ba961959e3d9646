// The text of placement rules for users' own operators: what KOILA_RULES holds a line each, and KOILA_RULE one at a time.
//
//     operator(argument: placement, ...) -> placement, ...  flags
//     mylib::scale_rows(x: Shard(0), weight: Replicate) -> Shard(0)
//     mylib.functions.Fused(x: Shard(0), weight: Replicate) -> Shard(0)
//
// docs/rules.md says what it means. A pure function reads it; whether such an operator exists, and has these arguments, is for the adapter
// to find out, for operators are registered when their libraries are loaded.
//
// Read on both sides: by libkoila.so, which says what is wrong before there is a torch, and by the adapter, which applies what is right.
#ifndef KOILA_RUNTIME_RULE_TEXT_H_
#define KOILA_RUNTIME_RULE_TEXT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace koila {

// A placement as it is written. `any` is a dimension that the call decides: the same one wherever it stands in the rule.
struct PlacementText {
  enum class Kind { kReplicate, kShard, kShardAny, kPartial };
  Kind kind = Kind::kReplicate;
  int dim = 0;              // kShard: negative counts from the end (never an output's)
  std::vector<int> except;  // kShardAny, "any but -1": not these; negative counts from the end

  bool is_shard() const { return kind == Kind::kShard || kind == Kind::kShardAny; }
};

// A tensor argument, or a list of them.
struct ArgumentText {
  std::string name;
  PlacementText placement;
};

// "rows: rows", "size[0]: rows": a number of rows among the literals.
struct RowsText {
  std::string argument;
  std::optional<int> element;  // of a list; negative counts from the end
};

struct RuleText {
  std::string name;      // "mylib::scale_rows"; of an autograd.Function what operator_of_function() gives
  std::string overload;  // "" for every overload
  std::vector<ArgumentText> arguments;
  std::vector<RowsText> rows;
  std::vector<PlacementText> outputs;
  bool random = false;  // draws random numbers
  bool mean = false;    // its outputs are means over the rows
  std::string where;    // "my.rules:12"

  const ArgumentText* find(std::string_view argument) const;
};

struct ParsedRule {
  std::optional<RuleText> rule;
  std::string error;  // what was wrong and what was expected, without the place; empty when there is a rule, or a line without one
};

// "koila_function::mylib__Fused" of "mylib.Fused": the operator that an autograd.Function with a rule is, whose name Python has.
std::string operator_of_function(std::string_view function);

// One rule, comments allowed behind it. A text without any rule is neither a rule nor an error.
ParsedRule parse_rule(std::string_view text);

// A file's worth of them.
struct RuleLine {
  std::string text, where;
};
struct ParsedRules {
  std::vector<RuleLine> rules;      // lines that hold a good rule
  std::vector<std::string> errors;  // "FILE:LINE: what", the first kRuleErrorsSaid of them, and a line that counts the others
};
constexpr std::size_t kRuleErrorsSaid = 5;
constexpr std::size_t kRulesAtMost = 10'000;
ParsedRules parse_rules(std::string_view text, const std::string& file);

// Reads and parses a file; one that cannot be read is an error like any other. Opens regular files only, and so never waits.
ParsedRules read_rules(const std::string& path);

}  // namespace koila

#endif  // KOILA_RUNTIME_RULE_TEXT_H_
