#include "torchglue/plan/plan.h"

#include <algorithm>

namespace koila {

bool is_seed(const Plan& plan, TapeValueId value) {
  return std::any_of(plan.seeds.begin(), plan.seeds.end(), [&](const Seed& s) { return s.value == value && !s.created; });
}

bool is_as_it_is(const Plan& plan, TapeValueId value) { return !plan.descends[value] || is_seed(plan, value); }

bool is_created(const Plan& plan, TapeValueId value) {
  return std::any_of(plan.seeds.begin(), plan.seeds.end(), [&](const Seed& s) { return s.value == value && s.created; });
}

bool reads_split(const Plan& plan, const TapeOp& op) {
  return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& r) { return !plan.placements[r.value].is_replicate(); });
}

}  // namespace koila
