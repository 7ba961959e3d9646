#include "torchglue/rescue/give_up.h"

#include <torch/csrc/autograd/variable.h>

#include <string>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/compat/node.h"
#include "torchglue/oom/events.h"
#include "torchglue/region/deferred.h"

namespace koila {

namespace {

class GivenUp final : public torch::autograd::Node {
 public:
  explicit GivenUp(const at::Tensor& tensor) : Node(/*sequence_nr=*/0) { add_input_metadata(tensor); }
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    TORCH_CHECK_WITH(OutOfMemoryError, false, kUnderKoila, "a graph was let go of to make room, and what it was to be made again for has run out.");
  }
  std::string name() const override { return "KoilaGivenUp"; }
};

}  // namespace

void give_up_memory(const Tape& tape, const Plan& plan, const std::vector<char>& needed, const Staying& staying, at::Device device) {
  for (size_t i = 0; i < tape.ops().size(); ++i) {
    if (!needed[i]) continue;
    for (TapeValueId out : tape.ops()[i].outputs) {
      if (out == kNoTapeValue || plan.placements[out].is_replicate() || staying.has(tape.values()[out].group)) continue;
      const TapeValue& value = tape.values()[out];
      if (value.is_capture()) continue;
      const at::Tensor t = value.lock();
      if (!t.defined() || storage_of(t) == nullptr) continue;
      c10::StorageImpl& storage = *t.storage().unsafeGetStorageImpl();
      storage.set_data_ptr_noswap(at::DataPtr(nullptr, device));
      refuse_raw_access(storage);
    }
  }
}

void give_up_graphs(const Tape& tape, const Plan& plan, const std::vector<char>& needed, const Staying& staying) {
  for (size_t i = 0; i < tape.ops().size(); ++i) {
    if (!needed[i]) continue;
    for (TapeValueId out : tape.ops()[i].outputs) {
      if (out == kNoTapeValue || !plan.descends[out] || is_seed(plan, out) || staying.has(tape.values()[out].group)) continue;
      const TapeValue& value = tape.values()[out];
      const at::Tensor t = value.is_capture() || !value.differentiable() ? at::Tensor() : value.lock();
      if (!t.defined() || !tape.is_current(out) || node_of(t) != value.grad_fn) continue;
      torch::autograd::impl::set_gradient_edge(t, torch::autograd::Edge(make_node<GivenUp>(t), 0));
    }
  }
}

}  // namespace koila
