// Parts of the batch's dimension that take some rows and leave others, and such parts one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "torchglue/placement/rule.h"

namespace koila {

// Note [Parts of the batch]
// x[:n], chunk() and split() along the batch take some rows whole and leave others out, and cat() of such parts has the rows in another order. An entry that is taken belongs to the row that it belonged to: a
// ragged split, as of a mask. A micro-batch takes of its own entries those that lie within the part; the bounds in the call count entries of the full batch, and become numbers of its own that lie before
// them (OpCall::count_before(), OpCall::count_parts()).

// The entries of each row under a Shard.
Ragged entries_of_rows(const Placement&, int64_t batch);
// Those at places [begin, end), counted from `begin`.
Ragged entries_within(const Ragged&, int64_t begin, int64_t end);
// The entries of several tensors, one after the other.
Ragged entries_joined(const std::vector<Ragged>& parts);
// How many entries of rows [begin, end) lie before `place`.
int64_t entries_before(const Ragged&, int64_t begin, int64_t end, int64_t place);
// How many entries of rows [begin, end) each part has, the parts being so many entries one after the other.
std::vector<int64_t> entries_of_parts(const Ragged&, int64_t begin, int64_t end, const std::vector<int64_t>& parts);
// How many entries each row has, where all have as many and they lie in their order; else 0.
int64_t entries_of_each_row(const Ragged&);
// The split of a dimension with these entries: an even one where all rows have as many, in their order.
Placement split_by_entries(const OpCall& call, Ragged entries, int64_t dim);

}  // namespace koila
