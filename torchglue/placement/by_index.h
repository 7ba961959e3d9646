// Rows that an index names: those that it picks from, and what they add to places that it names.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "torchglue/placement/operands.h"
#include "torchglue/placement/rule.h"

namespace koila {

// Note [Rows by index]
// An index into the batch's own dimension picks from some rows, and how many from each follows from its values, as with a mask. Where these are known (the index is an input, or was computed at
// the full batch: nonzero(), where(), sort()) an entry that it picks belongs to the row that it picks from: a ragged split, with an order of its own where the index does not ascend. A
// micro-batch has the part of the index that points into its rows, counted from the first of them, and so picks from them, and writes back to them, alone.
//
// The part of `index`, whose dimension `dim` runs along what is picked; nullopt: its values are not known, or nothing is known of them.
std::optional<Placement> rows_by_index(OpCall& call, ArgRef index, int64_t dim, const Placement& picked_from);

// One entry along `dim` for each row, row r's at places[r].
Placement one_for_each_row(OpCall& call, std::vector<int64_t> places, int64_t dim);

// An index that names each entry along `picked_from`'s dimension once, where one belongs to each row: the rows in another order, which is theirs again where it undoes one. The index is taken
// by the rows. Only for what is to go back into its order (Note [Packed rows]): where the rows stay in theirs, an index that sorts.
std::optional<Placement> rows_in_order(OpCall& call, ArgRef index, const Placement& picked_from);

// What every row adds to places of its own in one result that is not split comes to a sum over the rows. `self`, which it is added to, is such a sum, or is counted once.
// 16 bits: the sum of micro-batches is in single precision, and these operators take operands of one type.
bool adds_up(OpCall& call);

}  // namespace koila
