// Writes of the program in a step that runs in micro-batches.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace koila {

class Region;

// A write through `.data` to a value of the step: what was saved of it for backward changes with it, and would not where it is made again.
void note_write_behind(const at::Tensor& t);

// A view that came out of its region by itself (Region::hand_over) is to PyTorch no view of what is left there: a write to it would change the memory of that, and not its graph. Throws out of
// memory in that case.
void refuse_write_to_a_part(const at::Tensor& t);

// Before a call writes for real, with a graph, to what may have got its value for it: the value leaves its region with all that share its memory. Throws as above, where PyTorch does not know that they do.
void take_written_out(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

// A write to a value of the step that has its memory: the region notes it for backward, see Note [Writes that backward finds].
void tell_of_write(const at::Tensor& t);
// For the duration of one call: where it fails, regions are told of no write.
class ToldOfWrites {
 public:
  ToldOfWrites() : outer_(std::exchange(current_, this)), exceptions_(std::uncaught_exceptions()) {}
  ~ToldOfWrites();
  ToldOfWrites(const ToldOfWrites&) = delete;
  ToldOfWrites& operator=(const ToldOfWrites&) = delete;

 private:
  friend void tell_of_write(const at::Tensor& t);
  struct Told {
    std::shared_ptr<Region> region;
    size_t instructions;  // with what it was told
  };

  static thread_local ToldOfWrites* current_;
  ToldOfWrites* outer_;
  int exceptions_;
  std::vector<Told> told_;
};

// Regions that read what the call writes to must do so before.
void settle_writes(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

}  // namespace koila
