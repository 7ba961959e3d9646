// A pass of the autograd engine whose gradients have a graph (torch.autograd.grad(..., create_graph=True)): a part of the forward pass, as the tape sees it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/function.h>

#include <optional>

#include "torchglue/tape/tape.h"

namespace koila {

// The tensor, of those alive on the tape, that hangs on the edge. Undefined: none does.
at::Tensor tensor_on_edge(const Tape& tape, const torch::autograd::Edge& edge);

// One that runs at the full batch: a call of koila::gradient on the tape. Thread contract: the tape's.
class TapedPass {
 public:
  // Nothing where the tape does not know what the pass starts from, or what it asks for.
  static std::optional<TapedPass> of(Tape& tape, const torch::autograd::edge_list& roots, const torch::autograd::variable_list& gradients, const torch::autograd::edge_list& outputs);

  void begin();
  void commit(const torch::autograd::variable_list& results);

 private:
  TapedPass(Tape& tape, torch::jit::Stack arguments, size_t results);

  Tape* tape_;
  torch::jit::Stack arguments_;
  size_t results_;
};

}  // namespace koila
