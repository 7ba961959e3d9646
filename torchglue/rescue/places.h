// The program's tensors, as a conversion finds them and fills them again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "torchglue/tape/tape.h"

namespace koila {

// Note [Tensors that changed their look]
// After h.unsqueeze_(0) the program's tensor stands for the view that this made, and the value that an operator had given before is nobody's: it gets a tensor of the region's own, with
// the sizes that it had then. A conversion makes the view (view_instead()) and gives it to the program's tensor.
at::Tensor alive_as(const TapeValue& value);

// Whether the value, made again, is a view of what the tape has copied because it was written to since: the program's own tensor looks at what is there now.
bool looks_at_copy(const Tape& tape, TapeValueId value);

// `made` is what a live tensor is now: the program's tensor takes over its value, its split and its gradient.
at::Tensor take_place(const at::Tensor& made, const at::Tensor& alive);

// What a region has made gets its full value, and is an ordinary tensor from now on.
void give_value(const at::Tensor& made);

// The storage of a dead value that an alias keeps alive, or none.
at::Storage storage_of_group(const Tape& tape, uint32_t group);

}  // namespace koila
