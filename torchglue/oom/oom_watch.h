// Every out-of-memory that the program gets is told of, once: in the log, and in the report with its reason.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace koila {

// Note [Every failure is told]
// Most failures are met by who rescues, or refuses and says why. Others pass koila by: below a Python dispatch mode, in a tensor subclass, in a compiled graph
// that asks the allocator itself. So wherever the program calls into koila, a watch stands for as long as the call takes:
// - an out-of-memory that leaves the outermost watch, and that nobody has told of, is told of there;
// - so is one that the allocator has announced, that nobody of koila's has looked at, and that did not leave: the program has caught it on the way;
// - one that the allocator announces where no watch stands goes to the program as it is, and is told of by note_allocation_failure().
class OutOfMemoryWatch {
 public:
  // `op`: what the program has called; it must live as long as this.
  explicit OutOfMemoryWatch(const std::string& op) noexcept;
  ~OutOfMemoryWatch();
  OutOfMemoryWatch(const OutOfMemoryWatch&) = delete;
  OutOfMemoryWatch& operator=(const OutOfMemoryWatch&) = delete;

  // In a handler, of an error that is thrown on. `reason`: why it was not rescued.
  void leaves(const std::exception& error, const char* reason) const;

  // Whether one stands on this thread.
  static bool stands() noexcept;

 private:
  const std::string& op_;
  bool outermost_;
  int64_t told_;
};

// Calls `f` under a watch. `reason`: why what leaves was not rescued, where nobody else has said so.
template <class F>
auto watched(const std::string& op, const char* reason, F&& f) {
  const OutOfMemoryWatch watch(op);
  try {
    return f();
  } catch (const std::exception& error) {
    watch.leaves(error, reason);
    throw;
  }
}

// The same for what the program reads without an operator.
template <class F>
void watched_read(F&& f) {
  static const std::string name = "a read of a tensor's memory";
  watched(name, "one row of the batch, or a full-size result that the program reads, does not fit.", f);
}

}  // namespace koila
