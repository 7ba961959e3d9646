#include "torchglue/region/real_values.h"

#include <c10/core/AutogradState.h>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/op_traits.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/step/session.h"
#include "torchglue/updates/late_updates.h"

namespace koila {

void make_real(at::ArrayRef<c10::IValue> arguments) {
  late_updates().settle(arguments);
  if (!DeferredRegistry::any() || !session().owned_by_this_thread()) return;
  const DeferredRegistry& registry = deferred_registry();
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    // Also where it has its value already: the operator's graph will hang on it.
    const auto entry = registry.find(t.unsafeGetTensorImpl());
    if (entry.region != nullptr && t.requires_grad() && c10::AutogradState::get_tls_state().get_grad_mode()) entry.region->consume(entry.value);
    if (!registry.awaits_value(storage_of(t))) return;
    const NoRawAccess koila;
    materialise_tensor(t);
  });
}

void before_kernel_access(const c10::TensorImpl& tensor) {
  const Session& s = session();
  if (late_updates().any() && !RegionWork::active() && s.owned_by_this_thread()) late_updates().settle(tensor.unsafe_storage().unsafeGetStorageImpl());
  if (!deferred_registry().any() || RegionWork::active() || !s.rescue || !s.owned_by_this_thread()) return;
  const c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  if (!deferred_registry().awaits_value(storage)) return;
  const NoRawAccess koila;
  materialise_storage(storage);
  raw_memory().note(tensor);  // it may be there to be written to
}

}  // namespace koila
