// Rules that users wrote for operators of their own (runtime/rule_text.h), applied. docs/rules.md says what they mean.
#pragma once

#include <cstdint>
#include <string>

#include "torchglue/placement/rule.h"

namespace koila {

// Takes up one rule, `text` as parse_rule() reads it. Any thread; throws nothing. What is wrong with it is said once: that a table answers for
// the operator already, and, when the operator is first met, that it has no such arguments or results. Then the rule does not hold.
void add_user_rule(const char* text, const char* where) noexcept;

// Those that koila has for operators of published packages, behind the user's.
void add_shipped_rules() noexcept;

// Goes up with every rule that is added: what find_rule() gave may have changed.
uint32_t user_rules_version();

// The rule that the lines for this operator make together, or null. The same pointer as long as no line for it is added.
const Rule* find_user_rule(const c10::FunctionSchema& schema);

// Results of this call, which the rule has answered, are not what it promised: of another size, or a mean of whole numbers. Says so once, and its line
// holds no longer. Does nothing for a rule of the tables.
void user_rule_broken(const Rule& rule, const OpCall& call);

// Where messages go: one line each. Null: nowhere.
void set_user_rules_log(void (*say)(const std::string& message));

}  // namespace koila
