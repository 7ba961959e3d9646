// What a program, or a test, may say and ask by hand of the step that runs: operators, so that Python reaches them as torch.ops.koila.NAME.
//
//   lazy(Tensor(a) x, int dim=0, int micro_batch=0) -> Tensor(a)
//     Dimension `dim` of `x` is the batch: what is computed from it from here on runs `micro_batch` rows at a time, as if it had run out of
//     memory before; 0: as many as fit, by what its first rows take. Returns x. Does nothing for a tensor that is split already, for one that is not
//     an ordinary tensor of rows (none, sparse, nested, a subclass in Python), in a thread while another one's steps are followed, in a backward pass, and where
//     koila rescues nothing. Throws c10::IndexError for a dimension that x has not, and c10::ValueError for an x without dimensions, and fewer than
//     no rows. include/koila/lazy.h has it for C++, and says what it means.
//   placement(Tensor x) -> str
//     "Replicate", "Partial" or "Shard(dim)", as in docs/rules.md.
//   run_whole() -> str[]
//     Operators that ran at full batch although an argument was split, since this was asked last; 64 at most.
//   has_rule(str name) -> bool
//     Whether there is a rule for an operator by its name, such as "aten::add.Tensor".
//   settle() -> ()
//     What is deferred gets its value, and nothing is split any more.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

#include "torchglue/base/followed.h"
#include "torchglue/oom/oom_watch.h"
#include "torchglue/placement/rule.h"
#include "torchglue/region/deferred.h"
#include "torchglue/step/session.h"
#include "torchglue/step/step_owner.h"

namespace koila {

namespace {

bool at_work() { return session().runtime != nullptr && session().rescue && (session().owned_by_this_thread() || take_steps()); }

bool is_split(const at::Tensor& x) {
  return session().marks.find(x.unsafeGetTensorImpl()) != nullptr || deferred_registry().find(x.unsafeGetTensorImpl()).region != nullptr;
}

// Marks of steps without a backward pass stay.
bool is_split_in_this_step(const at::Tensor& x) {
  const Session& s = session();
  return deferred_registry().find(x.unsafeGetTensorImpl()).region != nullptr || (is_split(x) && s.current && s.current->open() && s.current->has_deferred());
}

// Whether rows of it can be told apart here.
bool has_rows(const at::Tensor& x) { return follows(*x.unsafeGetTensorImpl()); }

at::Tensor lazy(const at::Tensor& x, int64_t dim, int64_t micro_batch) {
  TORCH_CHECK_VALUE(x.dim() > 0, "koila::lazy: the tensor has no dimensions, and so no rows to split it by");
  TORCH_CHECK_INDEX(dim >= -x.dim() && dim < x.dim(), "koila::lazy: dimension ", dim, " of a tensor of shape ", x.sym_sizes(), "; it is from ", -x.dim(), " to ",
                    x.dim() - 1);
  TORCH_CHECK_VALUE(micro_batch >= 0, "koila::lazy: micro_batch is ", micro_batch, "; it is a number of rows, or 0 for as many as fit");
  Session& s = session();
  if (s.runtime == nullptr || !s.rescue) return x;
  if (!at_work()) {
    TORCH_WARN_ONCE("koila::lazy: koila splits the steps of one thread at a time, and another has them: what this one computes runs whole.");
    return x;
  }
  if (s.capturing() || !has_rows(x)) return x;
  const int along = static_cast<int>(dim < 0 ? dim + x.dim() : dim);
  const int64_t rows = x.size(along);
  if (micro_batch > 0) {
    if (rows > 0 && !is_split(x)) s.marks.add(x, Placement::shard(along), rows, micro_batch);
  } else if (rows > 1 && x.layout() == at::kStrided && s.engine_depth == 0 && !is_split_in_this_step(x)) {
    s.marks.remove(x.unsafeGetTensorImpl());
    s.named.add(x, along);
  }
  return x;
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

bool has_rule(const std::string& name) {
  const size_t dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema({name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  return op && find_rule(op->schema()) != nullptr;
}

void settle() {
  if (!at_work()) return;
  static const std::string name = "koila::settle";
  watched(name, "one row of the batch, or a full-size result that the program holds, does not fit.", [] { session().settle(); });
}

TORCH_LIBRARY_FRAGMENT(koila, m) {
  m.def("lazy(Tensor(a) x, int dim=0, int micro_batch=0) -> Tensor(a)");
  m.def("placement(Tensor x) -> str");
  m.def("run_whole() -> str[]");
  m.def("has_rule(str name) -> bool");
  m.def("settle() -> ()");
}

// Not for the interceptor, which would take them for operators of the step; where it is not, as everywhere.
void implement(torch::Library& m) {
  m.impl("placement", placement);
  m.impl("has_rule", has_rule);
  m.impl("run_whole", run_whole);
  m.impl("settle", settle);
}
TORCH_LIBRARY_IMPL(koila, DeferredInit, m) {
  implement(m);
  m.impl("lazy", lazy);
}
TORCH_LIBRARY_IMPL(koila, CompositeExplicitAutograd, m) { implement(m); }
// It hands its argument back, with the gradient that it has, and under vmap as it is.
TORCH_LIBRARY_IMPL(koila, CompositeImplicitAutograd, m) { m.impl("lazy", lazy); }
TORCH_LIBRARY_IMPL(koila, FuncTorchBatched, m) { m.impl("lazy", lazy); }

}  // namespace

}  // namespace koila
