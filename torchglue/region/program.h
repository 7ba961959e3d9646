// What a region consists of: its operators, its values, and what it reads from outside; and one pass over them.
//
// Thread contract: the region's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"
#include "torchglue/placement/creation.h"
#include "torchglue/placement/rule.h"
#include "torchglue/statistics/moments.h"

namespace koila {

using ValueId = uint32_t;
inline constexpr ValueId kNoValue = UINT32_MAX;

// Rows [begin, end) of the batch.
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

// The part of `full` that the rows own. A view, except where `outer` > 1, or an order of its own, makes it a copy.
at::Tensor slice_rows(const at::Tensor& full, const Placement& placement, int64_t batch, Rows rows);

// Writes a micro-batch's part into its place in the full value.
void write_rows(const at::Tensor& full, const Placement& placement, int64_t batch, Rows rows, const at::Tensor& part);

// A tensor from outside the region.
struct Capture {
  at::Tensor tensor;             // the program's, or another handle on its memory, see capture()
  uint32_t version = 0;          // version counter when it joined
  const void* data = nullptr;    // its storage's memory then: a parameter freed behind one's back is found out
  bool requires_grad = false;
  int64_t edge = -1;             // index into the node's next_edges when it requires grad
  at::Tensor before;             // a copy of its value then, from before somebody wrote to it; see Note [Captures that change]
  const void* graph = nullptr;   // the node that it hung on, for comparison only: what was read without a gradient may have been given one since
  c10::weak_intrusive_ptr<c10::TensorImpl> of;  // the program's tensor; weak, and so its address is no other's
  uint64_t foreign = 0;          // digest of its memory when it joined, where that is not PyTorch's: see Note [Foreign memory]
  bool lost = false;             // somebody was about to write to it, and there was no room for the copy: nothing that read it can be made again
  at::Tensor there;              // a handle on the memory that it lay in when it joined: see Note [Captures that are moved]

  // What operators read, with the sizes that it had then: transpose_ gives the program's tensor others.
  const at::Tensor& as_read() const { return before.defined() ? before : is_moved() ? there : tensor; }
  // Whether the program has given it other memory since (`.data = ...`).
  bool is_moved() const { return there.defined() && storage_of(tensor) != storage_of(there); }
  const at::Tensor& lying() const { return there.defined() ? there : tensor; }
  bool is_of(const at::Tensor& t) const { return of._unsafe_get_target() == t.unsafeGetTensorImpl(); }
};

// From now on it is read where it lies now.
void note_memory(Capture& capture);

// A capture as operators see it: whole, or sliced on use.
struct Use {
  uint32_t capture = 0;
  Placement placement;
};

// How an operator's tensor argument is made for a micro-batch.
struct Operand {
  enum class Kind : uint8_t { kUndefined, kValue, kUse };
  Kind kind = Kind::kUndefined;
  uint32_t id = 0;
  bool weighted = false;  // times rows / B
};

struct Argument {
  c10::IValue constant;             // not a tensor: as given
  std::vector<Operand> operands;    // a tensor, or a list of them
  bool is_tensor = false;
  bool is_list = false;
  bool is_optional_list = false;
  bool weighted = false;            // a number, times rows / B
  c10::SmallVector<OpCall::Literal, 1> literals;  // what becomes of `constant` in a micro-batch
};

struct Instruction {
  c10::OperatorHandle op;
  std::vector<Argument> arguments;
  std::vector<ValueId> outputs;  // flat; kNoValue for undefined tensors and for arguments handed back
  OpState state;
  bool in_place = false;          // its first operand is written; outputs[0] is that value
  bool random = false;
  bool by_user = false;           // a rule of the user's let it join: what comes of it is looked at
  uint64_t seed = 0;              // of its draws
  uint32_t place = 0;             // source line, where these are asked for
  uint32_t line = 0;              // for who finds it wrong, where it is known
  bool gradient = false;      // koila::gradient: runs on the micro-batch's own graph
  bool scale_by_rows = false;
  int32_t denominator = -1;  // a use, or -1
  // See Note [Sums of half precision].
  bool in_float = false;     // runs on operands in single precision
  bool keeps_float = false;  // a view of a sum, or a write to one: runs on what there is

  bool makes_fresh_memory() const { return koila::makes_fresh_memory(op.schema()); }
};

// A tensor of the region: one identity, whatever is written to it in place.
struct Value {
  Placement placement;
  uint32_t group = 0;
  c10::TensorImpl* impl = nullptr;  // the program's deferred tensor while it lives
  bool requires_grad = false;
  bool random = false;       // a random draw went into it
  bool consumed = false;     // a plain operator's graph hangs on it
  bool hidden_base = false;  // PyTorch's own result is a view of memory that the program has no tensor for (einsum), and gets another node where it is written to
  bool constant_view = false;  // see Note [Views of constants]
  bool moved = false;        // its tensor had been given other memory (.data = ...) when it died
  bool used_up = false;      // no gradient passes through it any more, see Note [When a region ends]
  int64_t node_output = -1;  // input number of the region's node (an output of the forward pass)
  c10::SmallVector<int64_t, 5> sizes;  // of the full batch
  c10::SmallVector<int64_t, 5> strides;
  int64_t storage_offset = 0;
  at::ScalarType dtype = at::ScalarType::Float;
};

// Whether something that the operator makes takes a gradient.
inline bool takes_gradient(const Instruction& in, const std::vector<Value>& values) {
  return std::any_of(in.outputs.begin(), in.outputs.end(), [&](ValueId out) { return out != kNoValue && values[out].requires_grad; });
}

// Of the values that the operator reads, one after another; captures are none.
template <class F>
void for_each_value_read(const Instruction& in, F&& f) {
  for (const Argument& argument : in.arguments) {
    for (const Operand& o : argument.operands) {
      if (o.kind == Operand::Kind::kValue) f(o.id);
    }
  }
}

// Of what an operator of a micro-batch gave: its tensors, in the order of Instruction::outputs. Numbers are no values of a region.
template <class F>
void for_each_local(const torch::jit::Stack& results, F&& f) {
  for (const c10::IValue& result : results) {
    if (result.isTensor()) {
      f(result.toTensor());
    } else if (result.isTensorList()) {
      for (const c10::IValue& element : result.toListRef()) f(element.toTensor());
    }
  }
}

// Values that share storage.
struct Group {
  ValueId base = kNoValue;  // the value whose operator made the storage
  at::Storage storage;      // of the deferred tensors; kept only while it is empty
  bool materialised = false;
  bool let_go = false;      // it was, and nobody but regions reads it: they have its rows made again, see Note [Boundaries that are let go]
  const c10::StorageImpl* filled = nullptr;  // what its value was put into
  bool is_filled_in(const c10::StorageImpl* memory) const { return materialised && filled == memory; }
  const c10::StorageImpl* kept = nullptr;    // what it has had its value in from the start, where a conversion has left it there
  // Whether that memory has its value, put there or left there.
  bool has_its_value_in(const c10::StorageImpl* memory) const { return is_filled_in(memory) || (kept != nullptr && kept == memory); }
  // Whether its memory, which has no value yet, has more holders than itself and so many tensors.
  bool held_beside(size_t tensors) const { return !materialised && !let_go && storage && storage.use_count() > tensors + 1; }
  bool uncertain = false;  // whether micro-batches alias as the full batch would is not known: nothing may be written in place
};

struct Frame;

// Who looks at a pass while it runs, see Note [Proof]. `after`: the instruction has run, and its operands are still there. `read`: what operators are given for a
// capture's part, `local` or another tensor like it. `start_from`: the same for the gradient of a value's rows that backward starts from.
class FrameWatch {
 public:
  virtual ~FrameWatch() = default;
  virtual void after(size_t instruction, Frame& frame) = 0;
  virtual at::Tensor read(uint32_t /*use*/, const at::Tensor& local) { return local; }
  virtual at::Tensor start_from(ValueId /*value*/, const at::Tensor& gradient) { return gradient; }
};

// How a small sum over the rows comes about: see Note [Sums before what follows].
struct Origin {
  struct Sum {
    ValueId value;
    size_t made_by;  // instruction
  };
  std::vector<Sum> sums;      // what is added up over the micro-batches; none: the value itself is
  std::vector<size_t> after;  // instructions that make the value of them, in their order
};

// A value being put together from its rows.
struct Held {
  ValueId base;
  at::Tensor full;
  at::Tensor sum;     // of a half-precision Partial, in float32
  int64_t until = 0;  // rows stored so far
  Origin origin;
  std::vector<at::Tensor> totals;  // by origin.sums, of the rows stored so far
};

// Somebody who looks at a value's rows, each once, while they are made.
struct RowWatch {
  ValueId value = kNoValue;
  RowObserver* observer = nullptr;
  int64_t until = 0;
};

// A part of what lies outside the device's memory, asked for ahead of its use.
struct Ahead {
  uint32_t use;
  Rows rows;
  at::Tensor part;
};

// Which operators a pass has to run, and until when it keeps what they give.
struct Schedule {
  std::vector<char> needed;        // by instruction
  std::vector<size_t> last_value;  // by value: last instruction that reads it; SIZE_MAX: keep
};

// One pass over the operators for some rows.
struct Frame {
  Rows rows;
  bool grad = false;
  std::vector<at::Tensor> values;  // by ValueId
  std::vector<at::Tensor> uses;    // by use
  size_t next = 0;                 // first instruction that has not run
  FrameWatch* watch = nullptr;
  std::vector<at::Tensor> sums{};  // by ValueId: small sums over the rows, before they are divided
  at::Tensor undivided{};          // what the operator that has just run gave before it was divided
};

}  // namespace koila
