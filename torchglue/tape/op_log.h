// The operator calls of a tape, in flat memory that is kept from step to step.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <span>
#include <vector>

#include "torchglue/tape/arena.h"

namespace koila {

using TapeValueId = uint32_t;
inline constexpr TapeValueId kNoTapeValue = UINT32_MAX;
inline constexpr int32_t kNoProducer = -1;
inline constexpr uint32_t kNoDraws = UINT32_MAX;

// One reference to a tensor from an operator's arguments.
struct TapeRef {
  uint16_t arg;
  int32_t element;  // of a tensor list, else -1
  TapeValueId value;
  uint32_t version;  // version counter at the call
};

// One call. What it refers to lies in the log, or for the pending call in the tape.
struct TapeOp {
  c10::OperatorHandle op;
  at::ArrayRef<c10::IValue> args;     // a tensor is replaced by None, a list of tensors by its length
  std::span<TapeRef> refs;
  std::span<TapeValueId> outputs;     // flat; kNoTapeValue for undefined tensors
  uint32_t state = 0;                 // index into Tape::states()
  bool in_place = false;              // returns an argument that it wrote to
  uint32_t place = 0;                 // source line, where these are asked for
  uint32_t draws = kNoDraws;          // where its generator stood, for Tape::draws_of()
};

// A log that grows at its end and is cut down to some of its calls now and then. Calls move when one is added, and what they refer to stays where it is
// until keep() or clear().
class OpLog {
 public:
  OpLog() = default;
  ~OpLog() { clear(); }
  OpLog(OpLog&& other) noexcept { swap(other); }
  OpLog& operator=(OpLog&& other) noexcept {
    swap(other);
    return *this;
  }

  const std::vector<TapeOp>& ops() const { return ops_; }

  // `args` is emptied.
  void add(const TapeOp& op, std::vector<c10::IValue>& args);

  // Forgets all but those; new_op: where each is then, kNoProducer for those that are gone.
  void keep(const std::vector<char>& needed, std::vector<int32_t>& new_op);

  // For every number of a value that the calls know: `number` is given the old one and returns the new one.
  template <class F>
  void renumber(F&& number) {
    for (TapeOp& op : ops_) {
      for (TapeRef& ref : op.refs) ref.value = number(ref.value);
      for (TapeValueId& out : op.outputs) {
        if (out != kNoTapeValue) out = number(out);
      }
    }
  }

  // For every call that has drawn, in order: `number` is given TapeOp::draws and returns the new one.
  template <class F>
  void renumber_draws(F&& number) {
    for (TapeOp& op : ops_) {
      if (op.draws != kNoDraws) op.draws = number(op.draws);
    }
  }

  void clear();

 private:
  void swap(OpLog& other) noexcept;

  std::vector<TapeOp> ops_;
  Arena memory_;
  Arena spare_;  // empty, for keep()
};

}  // namespace koila
