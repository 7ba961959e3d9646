// Constants that micro-batches can make their part of: zeros, ones, full, and a replicated tensor repeated for every row.
#pragma once

#include "torchglue/placement/rule.h"

namespace koila {

// Note [Created for the batch]
// `zeros(B, T)` has no input that is split, and a B among its sizes means nothing by itself. But whatever it means, each micro-batch may make
// the rows that are its own: they are all alike. So a dimension as long as the batch may be split where that serves, above all for what
// the program fills in piece by piece (`out[:, t] = ...`), which could not be written to per micro-batch otherwise.
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

// Answers the call, all of whose tensors are Replicate, with its first dimension of `call.batch()` entries split.
// False: it has none, or the rows are not alike along it.
bool create_split(OpCall& call);

}  // namespace koila
