// Saved-tensor hooks under operators that may have to be made again.
#pragma once

#include <cstddef>
#include <utility>

#include "torchglue/base/saved_hooks.h"
#include "torchglue/base/tls.h"

namespace koila {

// Note [What is packed once]
// An operator calls the program's pack hook for each tensor that it saves, often before it asks for the memory of its result. A try that ran out has by then
// left its mark outside: a checkpoint has counted tensors that its second run will not save, and hooks of the program's own may have counted or written
// anything. So what each try has packed is kept until the call is done. The next try saves the same tensors in the same order, and is given the same for
// them; the hook is called for what no try before has come to. What is saved, and what unpacks it, is then what it would have been had the first try come
// through.
// A hook that runs out itself may have done a part of its work. Torch's own have not: they change nothing before they have their memory. Hooks of the
// program's own are not called again: what they ask for is served from outside, as for an operator that writes (Note [Serving from outside]), and where that
// cannot be, the call is refused.
//
// All tries of one call of an operator, and what they call in turn. On the thread that makes the call.
class PackOnce {
 public:
  PackOnce();
  ~PackOnce();
  PackOnce(const PackOnce&) = delete;
  PackOnce& operator=(const PackOnce&) = delete;

  // The next try begins.
  void begin_again() const;
  // What of it PyTorch runs, under the program's hooks.
  template <class F>
  void run(F&& f) {
    if (!NoSavedTensorHooksGuard::active()) return f();
    begin_again();
    const StandIn stand_in;
    f();
  }

  // False when a hook of the program's own has run out.
  bool may_run_again() const;

 private:
  // For the pack hook.
  class StandIn {
   public:
    StandIn();
    ~StandIn();
    StandIn(const StandIn&) = delete;
    StandIn& operator=(const StandIn&) = delete;

   private:
    bool active_ = false;
  };

  const std::size_t begin_;  // packed before this call, by one that this is a part of
  const bool outermost_;
};

}  // namespace koila
