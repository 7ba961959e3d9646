// Rows of what lies outside the device's memory: brought in ahead of their use, and sent out beside the work.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <exception>
#include <utility>
#include <vector>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"
#include "torchglue/oom/oom.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/region.h"

namespace koila {

// Note [Boundaries by the row]
// A CUDA device reads pinned memory over the bus, so a micro-batch's part of it is copied in before it is used, while the micro-batch before
// it computes; what is stored goes out the same way. On the CPU the kernel is asked to read the file.
void Region::ask_ahead(Rows rows, const Schedule& plan) {
  std::erase_if(ahead_, [&](const Ahead& a) { return !a.part.defined() || a.rows.end != rows.begin; });  // but for those of the rows before
  if (rows.begin >= rows.end) return;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const NoInterceptGuard no_intercept;
  std::vector<char> asked(uses_.size(), 0);
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (!plan.needed[i]) continue;
    for (const Argument& argument : instructions_[i].arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind != Operand::Kind::kUse || std::exchange(asked[o.id], 1) || !uses_[o.id].placement.is_shard()) continue;
        if (!boundaries().outside(storage_of(captures_[uses_[o.id].capture].tensor))) continue;
        const at::Tensor slice = slice_of_use(o.id, rows);
        if (device_.is_cpu()) {
          boundaries().read_ahead(slice);
          continue;
        }
        try {
          side_.run([&] { ahead_.push_back({o.id, rows, slice.clone()}); });
        } catch (const std::exception& error) {
          if (!is_out_of_memory(error)) throw;
          return;  // in good time, then
        }
      }
    }
  }
}

at::Tensor Region::bring_in(uint32_t use, Rows rows, const at::Tensor& slice) {
  if (device_.is_cpu() || !boundaries().outside(storage_of(slice))) return slice;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const NoInterceptGuard no_intercept;
  for (Ahead& ahead : ahead_) {
    if (ahead.use != use || ahead.rows.begin != rows.begin || ahead.rows.end != rows.end || !ahead.part.defined()) continue;
    side_.join();
    SideStream::used_here(ahead.part.storage().data_ptr(), device_);
    return std::exchange(ahead.part, at::Tensor());
  }
  side_.join();
  return slice.clone();
}

void Region::send_out(const at::Tensor& full, const Placement& placement, Rows rows, const at::Tensor& part) {
  if (!boundaries().outside(storage_of(full))) return write_rows(full, placement, batch_, rows, part);
  side_.run([&] {
    SideStream::used_here(part.storage().data_ptr(), device_);
    write_rows(full, placement, batch_, rows, part);
  });
}

}  // namespace koila
