// What the machinery asks of an operator again and again, worked out once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

#include "torchglue/placement/rule.h"

namespace koila {

enum class ArgumentKind : uint8_t { kOther, kTensor /* Tensor, Tensor? */, kTensorList /* Tensor[], Tensor?[] */ };

// The same in every process: it goes into files.
uint64_t hash_of_name(const std::string& name);

struct OpTraits {
  uint64_t name = 0;                // hash_of_name() of the operator's, with its overload
  uint16_t number = 0;              // the runtime's, see koila_runtime::op_number
  std::vector<ArgumentKind> kinds;  // by argument
  const Rule* rule = nullptr;
  bool writes = false;        // writes to an argument
  bool in_place = false;      // writes to its first argument only, and returns it
  bool out = false;           // all that it writes to is `out=`: written, and not read
  bool composite = false;     // a CompositeImplicitAutograd kernel: calls other operators, and nothing else
  bool reads_value = false;   // what Python calls right before it reads memory itself (tolist, numpy)
  bool gives_memory = false;  // its arguments have other memory afterwards, with the same values in it
  bool forward_mode = false;  // makes a dual tensor
  bool random = false;        // may draw from a generator
  bool opaque = false;        // not PyTorch's own, and nobody has said what it does
  bool metadata = false;      // what it writes of a tensor is its sizes, or its graph, and no memory (detach_, t_)
  bool silent_effect = false; // updates running statistics without saying so in its schema
  bool pointwise = false;     // f(a, b, ...) element by element
  bool foreach = false;       // aten::_foreach_*: optimisers
  bool fused = false;         // aten::_fused_*: optimisers too, where no graph is made
  bool tensor_result = false; // returns at least one tensor
  bool makes_zeros = false;   // zeros(), in some way: see Note [Zeros that rows are added to]
  int creates = -1;           // argument that holds the sizes, see Note [Created for the batch]
  bool may_view = false;      // a result may share an argument's storage without writing to it
  bool takes_part = false;    // its result is a view of some of its argument's elements (diagonal, a slice)
  bool attention = false;     // may choose among kernels for attention, see kinds_of_attention()
  bool collective = false;    // talks to other processes, see Note [Collectives]
};

// Lives as long as the process; any thread. Asked again it may be another: a rule of the user's has come, the operator was defined anew, or it has drawn unsaid.
const OpTraits& op_traits(const c10::OperatorHandle& op);

// An opaque operator has drawn from a generator, and no tag of it says so: from now on it is random.
void note_draws(const c10::OperatorHandle& op);

// The operator that makes the view which this one would have its argument become (unsqueeze of unsqueeze_), see Note [Changes of metadata]. Nothing where it does something else, too.
std::optional<c10::OperatorHandle> view_instead(const c10::OperatorHandle& op);

// The call as the rules see it, nothing of it split. `batch`: rows; 0 where that is still to be said.
OpCall call_of(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, int64_t batch);

// Every tensor in an argument or result list, lists flattened; f(tensor, argument, element), element -1 outside lists.
// Undefined tensors and None are skipped.
template <class F>
void for_each_tensor(at::ArrayRef<c10::IValue> values, F&& f) {
  for (size_t i = 0; i < values.size(); ++i) {
    const c10::IValue& v = values[i];
    if (v.isTensor()) {
      const at::Tensor& t = v.toTensor();
      if (t.defined()) f(t, static_cast<int>(i), -1);
    } else if (v.isList()) {
      const auto elements = v.toListRef();
      for (size_t j = 0; j < elements.size(); ++j) {
        if (!elements[j].isTensor()) continue;
        const at::Tensor& t = elements[j].toTensor();
        if (t.defined()) f(t, static_cast<int>(i), static_cast<int>(j));
      }
    }
  }
}

inline bool any_requires_grad(at::ArrayRef<c10::IValue> values) {
  bool any = false;
  for_each_tensor(values, [&](const at::Tensor& t, int, int) { any |= t.requires_grad(); });
  return any;
}

// Every tensor argument that the operator writes to; f(tensor, argument).
template <class F>
void for_each_written(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments, F&& f) {
  for_each_tensor(arguments, [&](const at::Tensor& t, int i, int) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) f(t, i);
  });
}

}  // namespace koila
