#include "torchglue/plan/decide.h"

#include <algorithm>

#include "torchglue/placement/creation.h"
#include "torchglue/placement/user_rules.h"

namespace koila {

namespace {

bool leaves_it_split(const OpCall& call, const Context& context) {
  return context.traits.in_place && context.written && !call.outputs().empty() && call.outputs()[0] == *context.written;
}

bool takes_part_of_sum(const OpCall& call, const Context& context) {
  if (!context.traits.takes_part || !call.tensor(0).placement.is_partial()) return false;
  return context.takes_gradient && context.takes_gradient(0);
}

}  // namespace

Decision decide(OpCall& call, const Context& context) {
  const OpTraits& traits = context.traits;
  if (context.creates_sum) return {!context.held_whole && create_sum(call) ? Way::kJoin : Way::kWhole};
  if (context.creates) return {!context.held_whole && traits.creates >= 0 && create_split(call, *context.creates) ? Way::kJoin : Way::kWhole};
  const Verdict verdict = ask(traits.rule, call);  // in any case: what it asks about masks is noted
  if (verdict == Verdict::kNo || context.held_whole) return {Way::kWhole};
  if (verdict == Verdict::kReal) return {Way::kReal};
  if (traits.rule->fn.user() != nullptr && context.came_as_said && !context.came_as_said(call)) {
    user_rule_broken(*traits.rule, call);
    return {Way::kWhole};
  }
  if (context.draws_whole && draws(traits.rule, call)) return {Way::kWhole, /*drawn=*/true};
  const auto& real = call.real_arguments();
  if (context.takes_gradient && std::any_of(real.begin(), real.end(), [&](int argument) { return context.takes_gradient(argument); })) return {Way::kWhole};
  if (takes_part_of_sum(call, context)) return {Way::kWhole};
  if (verdict == Verdict::kStaged) return {Way::kStage};
  if (traits.writes && !context.free_to_write && !leaves_it_split(call, context)) {
    return {Way::kWhole, /*drawn=*/false, traits.in_place && !context.written && call.tensor(0).placement.is_replicate() && !call.outputs().empty() && call.outputs()[0].is_partial()};
  }
  return {Way::kJoin};
}

}  // namespace koila
