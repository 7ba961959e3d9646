// Memory from outside for what a step that cannot be split has no room for.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "torchglue/oom/events.h"

namespace koila {

// Note [Serving from outside]
// Where there is nothing to split, an allocation that does not fit is given memory outside the budget (memory/outside.h), by the allocator itself: the
// operator never fails, so it does not matter what it has written, and every value is what it would have been. That is for
// - an operator that writes to its arguments while it is under way: it could not be made again;
// - an operator that ran out, for which no plan was found: it is made once more; and from there on the rest of the step;
// - a plain backward pass that no plan can split: it could not be made again either;
// - a few bytes: Python makes tensors of numbers (`p.mul_(0.9)`) before the operator is called, where nobody could make anything again.
// Within a micro-batch, which can shrink, only when it is down to one row. For the CPU only: a CUDA device's caching allocator gives what CUDA gives it.
//
// Thread contract: the owner of the step; ask() any thread.
class Offload {
 public:
  // An operator is under way that must not fail.
  class MustNotFail {
   public:
    explicit MustNotFail(bool must_not = true);
    ~MustNotFail();
    MustNotFail(const MustNotFail&) = delete;
    MustNotFail& operator=(const MustNotFail&) = delete;

   private:
    bool must_not_;
  };
  // Micro-batches run: what fails shrinks them.
  class MayFail {
   public:
    MayFail();
    ~MayFail();
    MayFail(const MayFail&) = delete;
    MayFail& operator=(const MayFail&) = delete;
  };
  // A plain backward pass runs; `can_be_split` is asked when something fails, at most once.
  class Backward {
   public:
    Backward(Offload& offload, std::function<bool()> can_be_split);
    ~Backward();
    Backward(const Backward&) = delete;
    Backward& operator=(const Backward&) = delete;

   private:
    Offload& offload_;
    std::function<bool()> before_;
    std::optional<bool> before_can_;
  };

  // The operator `op` ran out, and nothing can be split: the rest of the step is served; of an optimizer's or an evaluation's, without gradients, what
  // comes before the next operator with gradients. False where that cannot be.
  bool begin(int device, const std::string& op);
  // A micro-batch of one row does not fit: what does not is served, for the rest of the step. False where that cannot be, or is so already.
  bool begin_in_rows(int device);
  // An operator runs with gradients.
  void on_gradients() {
    if (step_ && !with_gradients_) end();
  }
  // Asked by the allocator for memory that it could not have; `on_purpose`: KOILA_INJECT_OOM has it so, and there is room.
  enum class Answer { kFail, kTryAgain, kServe };
  Answer ask(int device, size_t bytes, bool on_purpose);
  // So many bytes have come from outside, as answered.
  void served(int device, size_t bytes);
  // The operator that ran out has come through, in this step that is served.
  void came_through(const OutOfMemory& oom);
  // The step is over.
  void end();

 private:
  bool serves(size_t bytes);
  OutOfMemory describe(int device, size_t bytes) const;
  void say(const OutOfMemory& oom, koila_rung rung);

  bool step_ = false;
  bool in_rows_ = false;
  bool with_gradients_ = false;
  bool said_ = false;  // in this step
  std::string op_;
  std::function<bool()> can_be_split_;
  std::optional<bool> can_;
};

}  // namespace koila
