// Operands: what most rules ask about a call's tensor arguments.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "torchglue/placement/rule.h"

namespace koila {

using ArgRef = OpCall::ArgRef;
using ArgRefs = c10::SmallVector<OpCall::ArgRef, 6>;

// A dimension counted from the end made one counted from the front; nullopt when it is out of range.
std::optional<int64_t> wrap_dim(int64_t dim, int64_t ndim);

// Every tensor argument and every element of a tensor list that is defined, in schema order.
ArgRefs defined_operands(const OpCall& call);
// The same, of these arguments only.
ArgRefs defined_operands(const OpCall& call, std::initializer_list<int> args);

const TensorSpec& spec(const OpCall& call, ArgRef ref);

// Every tensor argument but these is Replicate (or undefined).
bool others_replicate(const OpCall& call, std::initializer_list<int> args);

bool any_shard(const OpCall& call, const ArgRefs& refs);
bool any_partial(const OpCall& call, const ArgRefs& refs);

// The same placement for every output.
Verdict local(OpCall& call, const Placement& all_outputs);

// f(first argument) for an f that is linear: a Partial stays Partial as long as everything else is Replicate.
bool linear_in_first(const OpCall& call);

// A mean to which rows give unequal numbers of entries, of a call that was made a sum: divides it by all entries that the first argument has along the
// reduced dimensions.
Verdict mean_of_sum(OpCall& call);
// Whether it is better one: the quotient is made once, of the sum of all rows. In half precision the sum may overflow where the mean does not.
bool divides_once(c10::ScalarType of, c10::ScalarType to);

// The dtype argument, or nullopt when the operator has none or it was not given.
std::optional<c10::ScalarType> dtype_argument(const OpCall& call);
// Sums of values cast one by one equal the cast sum (to rounding): not when a fraction is cut off, nor when a count becomes a truth.
bool cast_is_linear(c10::ScalarType from, c10::ScalarType to);

// The dimensions that a reduction's `dim` argument (int, int?, int[]?) names, wrapped. No such argument, None and [] mean all.
// nullopt when one is out of range.
std::optional<std::vector<int64_t>> reduced_dims(const OpCall& call, int64_t ndim);

}  // namespace koila
