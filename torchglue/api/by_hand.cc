// What a program, or a test, may say and ask by hand of the step that runs: operators, so that Python reaches them as torch.ops.koila.NAME.
//
//   lazy(Tensor x, int dim, int micro_batch) -> ()
//     Dimension `dim` of `x` is the batch: what is computed from it from here on runs `micro_batch` rows at a time, as if it had run out of
//     memory before. Does nothing for a tensor that is split already, in a thread other than the one that loaded torch, and where koila
//     rescues nothing. Throws c10::IndexError for a dimension that x has not, and c10::ValueError for less than one row.
//   placement(Tensor x) -> str
//     "Replicate", "Partial" or "Shard(dim)", as in docs/rules.md.
//   run_whole() -> str[]
//     Operators that ran at full batch although an argument was split, since this was asked last; 64 at most.
//   settle() -> ()
//     What is deferred gets its value, and nothing is split any more.
#include <c10/core/WrapDimMinimal.h>
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

#include "torchglue/region/deferred.h"
#include "torchglue/session.h"

namespace koila {

namespace {

bool at_work() { return session().runtime != nullptr && session().rescue && session().owned_by_this_thread(); }

bool is_split(const at::Tensor& x) {
  return session().marks.find(x.unsafeGetTensorImpl()) != nullptr || deferred_registry().find(x.unsafeGetTensorImpl()).region != nullptr;
}

void lazy(const at::Tensor& x, int64_t dim, int64_t micro_batch) {
  dim = c10::maybe_wrap_dim(dim, x.dim());
  TORCH_CHECK_VALUE(micro_batch >= 1, "koila::lazy: micro_batch must be at least 1 row, got ", micro_batch);
  if (!at_work() || x.dim() == 0 || x.size(dim) < 1 || is_split(x)) return;
  session().marks.add(x, Placement::shard(static_cast<int>(dim)), x.size(dim), micro_batch);
}

std::string placement(const at::Tensor& x) {
  if (!at_work()) return to_string(Placement::replicate());
  if (const auto entry = deferred_registry().find(x.unsafeGetTensorImpl()); entry.region != nullptr) {
    return to_string(entry.region->value(entry.value).placement);
  }
  const Mark* mark = session().marks.find(x.unsafeGetTensorImpl());
  return to_string(mark == nullptr ? Placement::replicate() : mark->placement);
}

std::vector<std::string> run_whole() { return std::exchange(session().run_whole, {}); }

void settle() {
  if (at_work()) session().settle();
}

TORCH_LIBRARY_FRAGMENT(koila, m) {
  m.def("lazy(Tensor x, int dim, int micro_batch) -> ()");
  m.def("placement(Tensor x) -> str");
  m.def("run_whole() -> str[]");
  m.def("settle() -> ()");
}

// Not for the interceptor, which would take them for operators of the step; where it is not, as everywhere.
void implement(torch::Library& m) {
  m.impl("lazy", lazy);
  m.impl("placement", placement);
  m.impl("run_whole", run_whole);
  m.impl("settle", settle);
}
TORCH_LIBRARY_IMPL(koila, DeferredInit, m) { implement(m); }
TORCH_LIBRARY_IMPL(koila, CompositeExplicitAutograd, m) { implement(m); }

}  // namespace

}  // namespace koila
