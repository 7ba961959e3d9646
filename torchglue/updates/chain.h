// Calls on one entry that have been noted and not run: what they read, what they write, and how they are run.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "torchglue/updates/entries.h"

namespace koila {

struct Chain;

// Memory that calls of a chain read or write.
struct Slot {
  Chain* chain = nullptr;
  at::Tensor real;  // the program's, with its memory; undefined: it is deferred
  c10::weak_intrusive_ptr<c10::StorageImpl> deferred{c10::intrusive_ptr<c10::StorageImpl>()};  // that waits for a value
  const c10::StorageImpl* key = nullptr;
  bool written = false;
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;

  bool is_deferred() const { return !real.defined(); }
  // The program may still read it.
  bool is_held() const { return !is_deferred() || !deferred.expired(); }
  bool is_seen_as(const at::Tensor& t) const {
    return t.sizes() == at::IntArrayRef(sizes) && t.strides() == at::IntArrayRef(strides) && t.storage_offset() == offset && t.scalar_type() == dtype;
  }
};

struct LateCall {
  uint64_t number = 0;  // in the order in which the program made them
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  struct Place {
    int argument;
    bool in_list;
    Slot* slot;
  };
  std::vector<Place> places;
  Slot* result = nullptr;  // null: it writes to an argument
};

// Note [Chains]
// The tensors of a chain are laid out alike, and its calls work element by element, so the chain runs for a stretch of elements at a time: all its calls in the
// program's order, then the next stretch. What the program no longer holds of what the calls make exists for a stretch only. Each call runs once for each element,
// so it does not matter that parameters are overwritten on the way.
// A call that runs out of memory has written nothing: it makes a tensor, or it is a pointwise operator on one tensor, which has all its memory before it
// writes. What came before it is done, for this stretch, and stays; from that call on the stretch is halved.
struct Chain {
  explicit Chain(at::Device on) : device(on) {}
  at::Device device;
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<LateCall> calls;

  // Whether the program has let go of all that was deferred: then nothing is gained by waiting.
  bool is_ripe() const;
  // Takes over what the other one has.
  void merge(Chain&& other);
  // How much at a time.
  struct Terms {
    int64_t bytes_at_most = 0;            // for what exists for a stretch alone
    std::function<bool(int)> try_again;   // the least that can be asked for has run out for the n-th time: whether it is worth another try
  };
  // Runs it, and gives what the program holds its value. Throws out of memory; `begun` says whether something of it has run by then.
  void run(const Terms& terms, bool& begun);
};

// The fewest elements that run at a time, and room for what they need: with so much kept aside a chain does not fail.
inline constexpr int64_t kElementsAtLeast = 16;

}  // namespace koila
