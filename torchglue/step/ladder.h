// What may be done about an out-of-memory, rung by rung (KOILA_LADDER).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "runtime/abi.h"
#include "torchglue/kept_arguments.h"
#include "torchglue/oom/events.h"

namespace koila {

// Note [The ladder]
// 0. Caches are freed, and the operator or the pass runs again, if what it wanted is there now: it was another thread's, or a cache's; or an error made
//    on purpose. An operator only when it has written nothing, see Note [What a failed operator has written].
// 1. Micro-batches.
// 2. Outside: values between stages (Note [Boundaries]), and what a step that cannot be split has no room for (Note [Serving from outside]).
// 3. The program's own error.
bool may(koila_rung rung);

// Rung 0: whether it is worth to try again what ran out: what was wanted would fit beside what was there, or nobody knows. Caches are freed. `tries`:
// how often it was so already; a few times are enough. `micro_batch`: it was one, whose memory is gone by now; where there is no budget to say how
// much there was, it has to shrink.
bool worth_another_try(const OutOfMemory& oom, int& tries, bool micro_batch);

// Note [What a failed operator has written]
// An operator that ran out may have written to its arguments by then: some of the tensors of a `_foreach_mul_`, the self of an `index_put_`. PyTorch
// raises version counters only when an operator is done, so they tell of another's write and not of a failed one's. What is certain:
// - who declares no written argument has written nothing;
// - the pointwise in-place operators, on one tensor, have all their memory before they write the first element (TensorIterator);
// - `out=` is written without being read, unless it shares memory with an input: it is written again, once its sizes are as they were, for they are set
//   before the memory for them is asked for.
// Anything else is taken to have written.
class WrittenArguments {
 public:
  // Before the call.
  WrittenArguments(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

  // After it failed: whether it can be made again as if it had not been made. Puts sizes back where that is needed.
  bool make_as_before(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) const;

 private:
  struct Before {
    c10::SmallVector<int64_t, 5> sizes, strides;
    int64_t offset = 0;
    uint32_t version = 0;
  };
  c10::SmallVector<Before, 1> before_;  // by written tensor
};

}  // namespace koila
