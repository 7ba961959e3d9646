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

// What the operators give that are made again; f(value, its number).
template <class F>
void for_each_made_again(const Tape& tape, const std::vector<char>& needed, const Staying& staying, F&& f) {
  for (size_t i = 0; i < tape.ops().size(); ++i) {
    if (!needed[i]) continue;
    for (TapeValueId out : tape.ops()[i].outputs) {
      if (out == kNoTapeValue || tape.values()[out].is_capture() || staying.has(tape.values()[out].group)) continue;
      f(tape.values()[out], out);
    }
  }
}

}  // namespace

void give_up_memory(const Tape& tape, const Plan& plan, const std::vector<char>& needed, const Staying& staying, at::Device device) {
  for_each_made_again(tape, needed, staying, [&](const TapeValue& value, TapeValueId v) {
    const at::Tensor t = plan.placements[v].is_replicate() ? at::Tensor() : value.lock();
    if (!t.defined() || storage_of(t) == nullptr) return;
    c10::StorageImpl& storage = *t.storage().unsafeGetStorageImpl();
    storage.set_data_ptr_noswap(at::DataPtr(nullptr, device));
    refuse_raw_access(storage);
  });
}

void give_up_graphs(const Tape& tape, const Plan& plan, const std::vector<char>& needed, const Staying& staying) {
  for_each_made_again(tape, needed, staying, [&](const TapeValue& value, TapeValueId v) {
    const at::Tensor t = value.differentiable() && plan.descends[v] && !is_seed(plan, v) ? value.lock() : at::Tensor();
    if (!t.defined() || !tape.is_current(v) || node_of(t) != value.grad_fn) return;
    torch::autograd::impl::set_gradient_edge(t, torch::autograd::Edge(make_node<GivenUp>(t), 0));
  });
}

}  // namespace koila
