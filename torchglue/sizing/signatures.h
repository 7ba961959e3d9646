// What earlier steps taught: at which operator a like step starts to run lazily, and in how many rows.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/size_policy.h"
#include "torchglue/op_traits.h"
#include "torchglue/placement/placement.h"

namespace koila {

// Note [Signatures]
// A step has no name. What is known at its first operators is those operators: so a split is remembered by the first operator that
// read the seed (its name, the shapes, dtypes and requires_grad of its tensors, grad mode). When a like call comes again, its argument
// is marked as split and the step is lazy from there. A call that looks alike and is none costs speed, never a wrong result.
struct LearnedSeed {
  std::string op;  // of the call, with its overload
  uint64_t key = 0;
  int times = 1;  // how many seeds of one step begin with a call of this key
  int argument = 0;  // -1: the operator creates the tensor, see Note [Created for the batch]
  int element = -1;
  Placement placement;
  at::DeviceType device = at::kCPU;
  std::shared_ptr<SizePolicy> policy;  // shared by the seeds of one step
  int64_t batch() const { return policy->batch(); }
};

class Signatures {
 public:
  bool empty() const { return seeds_.empty(); }
  void learn(LearnedSeed seed);
  // The same, in place of all others that take this argument of such calls.
  void correct(LearnedSeed seed);
  const std::vector<LearnedSeed>* find(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) const;
  // The policy of a step of so many rows of which a seed begins with that key; null: none is known.
  std::shared_ptr<SizePolicy> find_policy(uint64_t key, int64_t batch) const;

  // The key of a call as it is made now.
  static uint64_t key(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

  // Every seed there is; f(seed).
  template <class F>
  void for_each(F&& f) const {
    for (const auto& [key, seeds] : seeds_) std::for_each(seeds.begin(), seeds.end(), f);
  }

  // A tensor in a key.
  struct Shape {
    at::IntArrayRef sizes;
    at::ScalarType dtype;
    bool requires_grad;
  };
  // Accumulates a key; the operator first, then each tensor in order of the arguments.
  static uint64_t start_key(const c10::OperatorHandle& op, bool grad_mode);
  static uint64_t add_to_key(uint64_t key, const Shape& shape);
  // The sizes that an operator without tensors creates.
  static uint64_t add_to_key(uint64_t key, const c10::IValue& sizes);

 private:
  ska::flat_hash_map<uint64_t, std::vector<LearnedSeed>> seeds_;
  ska::flat_hash_set<uint64_t> operators_;  // that some key starts with, by name: most calls are turned away here
};

}  // namespace koila
