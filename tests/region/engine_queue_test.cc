#include "torchglue/base/engine_queue.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <stdexcept>

namespace koila {
namespace {

using torch::autograd::impl::gradient_edge;
using torch::autograd::variable_list;

// What a graph has saved, and nobody else holds.
c10::weak_intrusive_ptr<c10::StorageImpl> storage_of_saved(const at::Tensor& t) { return c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(t.storage().unsafeGetStorageImpl())); }

// Of two nodes that are ready the younger one runs first, and throws.
TEST(EngineQueue, APassThatFailsLeavesNoGraph) {
  const at::Tensor x = at::ones({4}, at::kDouble).set_requires_grad(true);
  c10::weak_intrusive_ptr<c10::StorageImpl> saved = [&] {
    const at::Tensor older = x.exp(), younger = x * 3;
    younger.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("as if memory had run out"); });
    auto storage = storage_of_saved(older);
    EXPECT_THROW(run_engine({gradient_edge(older), gradient_edge(younger)}, {at::ones_like(older), at::ones_like(younger)}, false, false, true, {}), std::runtime_error);
    return storage;
  }();
  EXPECT_TRUE(saved.expired());
  EXPECT_FALSE(x.grad().defined());
}

TEST(EngineQueue, APassThatComesThroughGivesItsGradients) {
  const at::Tensor x = at::full({4}, 2.0, at::kDouble).set_requires_grad(true);
  const at::Tensor y = x * x;
  const variable_list found = run_engine({gradient_edge(y)}, {at::ones_like(y)}, false, false, false, {gradient_edge(x)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].equal(at::full({4}, 4.0, at::kDouble)));
}

}  // namespace
}  // namespace koila
