// What a step that is made again has read, and what has been written to since.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/flat_hash_map.h>

#include <vector>

#include "torchglue/tape/tape.h"

namespace koila {

// Note [Written to since]
// An operator that is made again reads a copy from before a write, if the tape has one. Its gradient is another matter: what a node has saved is the tensor itself, and plain
// PyTorch's backward pass reads what is there by then, or raises where a version counter tells. A region knows the tensor behind the copy (see Note [Captures that change]).
// An operator outside of regions is given the tensor itself, which holds what it held for as long as the kernel runs; where a version tells of the write it
// is given the copy, whose version counts up once the step has been made.
class WrittenSince {
 public:
  // While a step is made again from the tape.
  void begin(const Tape& tape);
  void end();
  // `made` has been made again as the tensor was at that version.
  void note(const at::Tensor& made, const TapeValue& value);
  // The result of an operator that is made again with its gradient, and that has been written to since: the operator's node may have saved it.
  void note_result(const at::Tensor& made) { saved_.push_back(made); }
  // Whether there is any such copy.
  bool any() const { return !originals_.empty(); }
  // What the tape has copied before a write, or the same view of it; undefined: nothing.
  at::Tensor original_of(const at::Tensor& copy) const;

  // Around the kernel of an operator outside of regions.
  class Call {
   public:
    Call(const c10::OperatorHandle& op, torch::jit::Stack& stack);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    struct Lent {
      at::Tensor memory, now;
    };
    std::vector<Lent> lent_;
  };

 private:
  ska::flat_hash_map<const c10::TensorImpl*, at::Tensor> originals_;
  std::vector<at::Tensor> saved_;  // what nodes have saved, and versions tell of writes to
};

WrittenSince& written_since();

}  // namespace koila
