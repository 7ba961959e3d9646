// What a call of an operator that works element by element does, entry by entry.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

namespace koila {

// Note [Entries]
// A `_foreach_` operator does the same to each tensor of its lists, and an operator like `sqrt` or `addcdiv_` the same to each element of its tensors. Either
// can be taken apart: into its entries (an operator without lists has one), and an entry into stretches of elements. That holds where the tensors of an entry
// are laid out alike, without gaps and without overlaps: element i of the one then belongs to element i of the other, whatever their dimensions are. A number
// that arrives as a tensor without dimensions belongs to all.
//
// Nothing here is a state: any thread.
struct Entry {
  struct Operand {
    int argument;
    bool in_list;
    at::Tensor tensor;
  };
  std::vector<c10::IValue> arguments;  // of the operator, for this entry alone; what stands for an operand is to be put in
  std::vector<Operand> operands;       // tensors of the entry's shape
  std::vector<Operand> numbers;        // tensors without dimensions that a program could write to
  at::ScalarType result = at::ScalarType::Undefined;  // of an operator that makes a tensor

  const at::Tensor& like() const { return operands.front().tensor; }
};

struct Entries {
  std::vector<Entry> entries;
  int written = -1;         // argument that is written to; -1: none, and there is a result
  bool list_result = false;
};

// Whether the operator is one that can be taken apart, by its name and its schema.
bool works_by_element(const c10::OperatorHandle& op);

// The call taken apart; nothing where it cannot be.
std::optional<Entries> take_apart(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

// The arguments of an entry with other tensors in place of its operands.
torch::jit::Stack with_operands(const std::vector<c10::IValue>& arguments, at::ArrayRef<Entry::Operand> operands);

}  // namespace koila
