// Calls that work element by element, taken apart.

#include "torchglue/updates/entries.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace koila {
namespace {

c10::OperatorHandle operator_of(const char* name, const char* overload = "") { return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload); }

c10::List<at::Tensor> list(std::vector<at::Tensor> tensors) { return c10::List<at::Tensor>(std::move(tensors)); }

TEST(Entries, AListIsTakenApart) {
  const auto a = at::ones({2, 3}), b = at::ones({4});
  const auto found = take_apart(operator_of("aten::_foreach_sqrt"), {list({a, b})});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->written, -1);
  EXPECT_TRUE(found->list_result);
  ASSERT_EQ(found->entries.size(), 2u);
  EXPECT_TRUE(found->entries[1].like().is_same(b));
  EXPECT_EQ(found->entries[1].result, at::kFloat);
  torch::jit::Stack stack = with_operands(found->entries[1].arguments, found->entries[1].operands);
  operator_of("aten::_foreach_sqrt").callBoxed(stack);
  EXPECT_EQ(stack.front().toTensorVector().size(), 1u);
}

TEST(Entries, EachEntryHasItsNumber) {
  c10::List<at::Scalar> scalars;
  scalars.push_back(2);
  scalars.push_back(3);
  const auto a = at::ones({2}), b = at::ones({3});
  const auto found = take_apart(operator_of("aten::_foreach_mul_", "ScalarList"), {list({a, b}), scalars});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->written, 0);
  torch::jit::Stack stack = with_operands(found->entries[1].arguments, found->entries[1].operands);
  operator_of("aten::_foreach_mul_", "ScalarList").callBoxed(stack);
  EXPECT_TRUE(b.equal(at::full({3}, 3.0)));
  EXPECT_TRUE(a.equal(at::ones({2})));
}

TEST(Entries, ATypeIsPromotedAsForTheWhole) {
  const auto found = take_apart(operator_of("aten::mul", "Tensor"), {at::ones({2, 2}), at::ones({2, 2}, at::kDouble)});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->entries.front().result, at::kDouble);
  const auto number = take_apart(operator_of("aten::mul", "Tensor"), {at::ones({2, 2}), at::ones({}, at::kDouble)});
  ASSERT_TRUE(number);
  EXPECT_EQ(number->entries.front().result, at::kFloat);
  EXPECT_EQ(number->entries.front().numbers.size(), 1u);
}

TEST(Entries, WhatIsLaidOutInAnotherWayIsNot) {
  EXPECT_FALSE(take_apart(operator_of("aten::mul", "Tensor"), {at::ones({2, 3}), at::ones({3})}));
  EXPECT_FALSE(take_apart(operator_of("aten::mul", "Tensor"), {at::ones({3, 3}), at::ones({3, 3}).t()}));
  EXPECT_FALSE(take_apart(operator_of("aten::sqrt"), {at::ones({4, 4}).narrow(1, 0, 2)}));
  const auto memory = at::ones({8});
  EXPECT_FALSE(take_apart(operator_of("aten::copy_"), {memory.narrow(0, 0, 6), memory.narrow(0, 2, 6), false}));
}

TEST(Entries, WhatMixesElementsIsNot) {
  EXPECT_FALSE(take_apart(operator_of("aten::_foreach_norm", "Scalar"), {list({at::ones({3})}), 2, c10::IValue()}));
  EXPECT_FALSE(works_by_element(operator_of("aten::softmax", "int")));
  EXPECT_FALSE(works_by_element(operator_of("aten::cat")));
  EXPECT_FALSE(works_by_element(operator_of("aten::mm")));
  EXPECT_FALSE(works_by_element(operator_of("aten::bernoulli")));
  EXPECT_FALSE(works_by_element(operator_of("aten::view")));
}

}  // namespace
}  // namespace koila
