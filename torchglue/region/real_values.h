// No kernel sees a deferred tensor.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>

#include <utility>

#include "torchglue/base/hot.h"

namespace koila {

// Note [No kernel sees a deferred tensor]
// A deferred tensor has no memory, and whoever runs a kernel of the program's gives it a value before. That is one function, make_real(), and it is called where
// the kernel is called (run_plainly), whatever way the call came: a rescue that found no plan, a call whose rules were asked for another batch, a
// tensor subclass, a thread's functorch layer. It costs one look at a flag where nothing is deferred.
// What arrives at a kernel in other ways than as its argument (a closure of a Python kernel, what TorchScript has captured for its own backward pass) is
// met when the kernel takes the pointer: see before_kernel_access().

// Gives every deferred tensor among the arguments its value, and takes note of the graph that the call may hang on it. Throws out of memory when one row does not
// fit. Thread contract: the owner of the step, or an engine thread that works for it; on another thread nothing is done.
void make_real(at::ArrayRef<c10::IValue> arguments);

// A kernel that runs asks for the tensor's memory: if it is deferred, it gets its value now. Nothing while koila itself is at work on a region.
void before_kernel_access(const c10::TensorImpl& tensor);

// While it lives, this thread is at work on a region: micro-batches run, or metadata of deferred tensors is looked at. Kernels that it calls see tensors of
// micro-batches only. `at_work` false: it is not, for as long as a kernel of the program's runs.
class RegionWork {
 public:
  explicit RegionWork(bool at_work = true) : before_(std::exchange(active(), at_work)) {}
  ~RegionWork() { active() = before_; }
  RegionWork(const RegionWork&) = delete;
  RegionWork& operator=(const RegionWork&) = delete;
  static bool& active() { return is_active_; }

 private:
  KOILA_HOT static inline constinit thread_local bool is_active_ = false;
  const bool before_;
};

}  // namespace koila
