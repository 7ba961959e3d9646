// Constants that micro-batches can make their part of: zeros, ones, full, and a replicated tensor repeated for every row.
#pragma once

#include <vector>

#include "torchglue/placement/placement.h"
#include "torchglue/placement/rule.h"

namespace koila {

// Note [Created for the batch]
// `zeros(B, T)` has no input that is split, and a B among its sizes means nothing by itself. But whatever it means, each micro-batch may make
// the rows that are its own: they are all alike. So a dimension as long as the batch may be split where that serves, above all for what
// the program fills in piece by piece (`out[:, t] = ...`), which could not be written to per micro-batch otherwise. The same of a dimension that is a multiple of the
// batch, with so many entries for each row: a code for each of its pixels, in `zeros(B * T, codes).scatter_(1, index, 1)`. Which one it is only shows by what is written into it.
//
// The schema's argument that holds the sizes; -1: no such operator. Its tensor arguments, if it has any, are replicated.
int created_sizes_argument(const c10::FunctionSchema& schema);

// The same of a sum that nothing has been added to yet, whatever its sizes: zeros that rows are to be added to (index_add_) are zeros in each micro-batch. Its arguments may be
// anything: they say of which type it is.
bool create_sum(OpCall& call);

// Whether all entries of what it makes are the same number.
bool makes_constant(const c10::FunctionSchema& schema);
// Whether it leaves in its result's memory what lay there: that is nobody's, and empty_like() gives other values each time.
bool makes_fresh_memory(const c10::FunctionSchema& schema);

// How a constant of these sizes may be made in parts: by dimensions of `batch` entries first, then by those of a multiple, each in order.
std::vector<Placement> parts_of_constant(c10::ArrayRef<int64_t> sizes, int64_t batch);
// The same of the result of the call, all of whose tensors are Replicate: but for dimensions along which its rows are not alike.
std::vector<Placement> creatable(const OpCall& call);

// Answers the call so. False: it is none of creatable().
bool create_split(OpCall& call, const Placement& placement);

}  // namespace koila
