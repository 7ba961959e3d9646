// Noted calls that run a few elements at a time.

#include "torchglue/updates/chain.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "torchglue/region/deferred.h"
#include "torchglue/base/tensor_memory.h"

namespace koila {
namespace {

// p /= sqrt(v), v += v, as a chain; the square root is what the program has let go of, or holds.
struct Update {
  at::Tensor p, v, root;
  Chain chain{at::kCPU};

  explicit Update(int64_t elements, bool holds) : p(at::rand({elements})), v(at::rand({elements}) + 1) {
    Slot *parameter = add(p), *square = add(v), *made = add_deferred(elements);
    if (!holds) root.reset();
    note("aten::sqrt", "", {c10::IValue()}, {{0, false, square}}, made);
    note("aten::div_", "Tensor", {c10::IValue(), c10::IValue()}, {{0, false, parameter}, {1, false, made}}, nullptr);
    note("aten::add_", "Tensor", {c10::IValue(), c10::IValue(), 1}, {{0, false, square}, {1, false, square}}, nullptr);
  }

  Slot* add(const at::Tensor& t) {
    auto slot = std::make_unique<Slot>();
    slot->chain = &chain;
    slot->real = t;
    return describe(std::move(slot), t);
  }

  Slot* add_deferred(int64_t elements) {
    root = at::empty({0});
    root.unsafeGetTensorImpl()->set_storage_keep_dtype(empty_storage(elements * sizeof(float), at::kCPU, c10::GetAllocator(at::kCPU)));
    root.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(elements), at::IntArrayRef({1}), 0);
    auto slot = std::make_unique<Slot>();
    slot->chain = &chain;
    slot->deferred = c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_of(root)));
    return describe(std::move(slot), root);
  }

  Slot* describe(std::unique_ptr<Slot> slot, const at::Tensor& t) {
    slot->key = storage_of(t);
    slot->sizes = t.sizes();
    slot->strides = t.strides();
    slot->dtype = t.scalar_type();
    return chain.slots.emplace_back(std::move(slot)).get();
  }

  void note(const char* name, const char* overload, std::vector<c10::IValue> arguments, std::vector<LateCall::Place> places, Slot* result) {
    chain.calls.push_back({chain.calls.size(), c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), std::move(arguments), std::move(places), result});
  }
};

Chain::Terms terms(int64_t bytes) {
  return {bytes, [](int) { return false; }};
}

class Sizes : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(Sizes, AreTheSameToTheBit) {
  const auto [elements, bytes] = GetParam();
  for (const bool holds : {false, true}) {
    Update update(elements, holds);
    const auto root = update.v.sqrt(), p = update.p / root, v = update.v + update.v;
    EXPECT_EQ(update.chain.is_ripe(), !holds);
    bool begun = false;
    update.chain.run(terms(bytes), begun);
    EXPECT_TRUE(begun);
    EXPECT_TRUE(update.p.equal(p));
    EXPECT_TRUE(update.v.equal(v));
    if (holds) {
      EXPECT_TRUE(update.root.equal(root));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Chain, Sizes, testing::Values(std::pair{1, 1 << 20}, std::pair{1000, 1 << 20}, std::pair{1000, 1}, std::pair{1003, 256}, std::pair{16, 64}));

TEST(Chain, MergedCallsKeepTheProgramsOrder) {
  Update one(10, false), other(10, false);
  for (size_t i = 0; i < 3; ++i) {
    one.chain.calls[i].number = 2 * i;
    other.chain.calls[i].number = 2 * i + 1;
  }
  one.chain.merge(std::move(other.chain));
  ASSERT_EQ(one.chain.calls.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(one.chain.calls[i].number, i);
  for (const auto& slot : one.chain.slots) EXPECT_EQ(slot->chain, &one.chain);
}

}  // namespace
}  // namespace koila
