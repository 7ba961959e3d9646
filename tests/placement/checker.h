// Checker: asks an operator's rule, does what it answers micro-batch by micro-batch, and compares with the full batch, values and
// gradients. It is a small second implementation of what a region does, so that a rule can be tested alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "torchglue/placement/rule.h"

namespace koila::conformance {

// A tensor argument at the full batch, and how the micro-batches share it. A Partial is cut into random parts that sum to `full`.
struct Operand {
  at::Tensor full;  // undefined: None
  Placement placement;
  bool differentiable = true;  // ask for its gradient when it is floating
};

// An argument: a tensor, a list of tensors, or anything else.
using Argument = std::variant<c10::IValue, Operand, std::vector<Operand>>;

struct Call {
  std::string op;                                          // "aten::add.Tensor"
  std::vector<Argument> args;                              // in schema order; missing ones take their defaults
  std::vector<std::pair<std::string, Argument>> keywords;  // by name
};

// "aten::add.Tensor([5, 3] Shard(0), [3] Replicate, alpha=2)"
std::string to_string(const Call& call);

struct Options {
  int64_t batch = 5;
  bool random = false;     // compare shapes and dtypes only
  bool gradients = true;
  bool index_sorts = false;  // an index is the order that a sort has found
  double tolerance = 1e-9;  // of doubles, relative to the largest entry; floats get 1e-5
};

struct Outcome {
  const Rule* rule = nullptr;      // null: none is registered
  Verdict verdict = Verdict::kNo;
  std::vector<Placement> outputs;
  std::vector<std::string> errors;  // empty when every division of the batch gave the full batch's values and gradients
};

// Tries divisions of the batch into single rows, even, uneven and ragged micro-batches, and the whole.
Outcome check(const Call& call, const Options& options = {});

// The twin of an operator: for "aten::add.Tensor" and "_", "aten::add_.Tensor". Empty when there is none with so many arguments.
std::string twin(const std::string& op, const std::string& suffix);

// The rows [begin, end) of a tensor that is Shard.
at::Tensor rows_of(const at::Tensor& full, const Placement& shard, int64_t batch, int64_t begin, int64_t end);

}  // namespace koila::conformance
