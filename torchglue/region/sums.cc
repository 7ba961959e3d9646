// A tensor of zeros becomes a value of a region: see Note [Zeros that rows are added to].
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>
#include <vector>

#include "torchglue/region/deferred.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"

namespace koila {

bool Region::take_zeros(const at::Tensor& zeros, const Placement& placement) {
  Session& s = session();
  if (!open_ || !s.fresh_zeros.has(zeros) || zeros.is_inference() || zeros.requires_grad() || zeros.device() != device_ || !zeros.is_contiguous()) return false;
  const c10::Storage& storage = zeros.unsafeGetTensorImpl()->unsafe_storage();
  if (storage.use_count() != 1) return false;  // a view of it, or what a node has saved
  for (const auto& region : s.live_regions()) {
    if (region->concerns_storage(storage.unsafeGetStorageImpl())) return false;
  }
  {
    // Written to through `.data`, say, for which no version counts up.
    const NoInterceptGuard no_intercept;
    const at::NoGradGuard no_grad;
    if (at::count_nonzero(zeros).item<int64_t>() != 0) return false;
  }
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::zeros", "");
  const std::vector<c10::IValue> arguments{zeros.sizes().vec(), zeros.scalar_type(), zeros.layout(), device_, false};
  OpCall call(op.schema(), batch_);
  for (const c10::IValue& argument : arguments) call.args().emplace_back().value = argument;
  call.output(0, placement);
  if (placement.is_shard()) call.scale_literal(0, placement.dim, placement.inner);

  KnownOutput known;
  known.placement = placement;
  known.tensor = zeros;
  s.tape.settle(zeros);
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, device_));
  refuse_raw_access(*storage.unsafeGetStorageImpl());
  std::vector<KnownOutput> outputs;
  outputs.push_back(std::move(known));
  add_known({op, call, arguments, /*random=*/false}, std::move(outputs));
  catch_up();
  return true;
}

}  // namespace koila
