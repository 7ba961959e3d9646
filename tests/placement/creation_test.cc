#include "torchglue/placement/creation.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include "tests/placement/specs.h"

namespace koila {
namespace {

OpCall call_of(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  OpCall call(op.schema(), kBatch);
  call.args().resize(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    OpCall::Arg& arg = call.args()[i];
    if (arguments[i].isTensor()) {
      arg.is_tensor = true;
      TensorSpec& spec = arg.tensors.emplace_back();
      spec.defined = true;
      for (int64_t size : arguments[i].toTensor().sizes()) spec.sizes.push_back(size);
    } else {
      arg.value = arguments[i];
    }
  }
  return call;
}

// The micro-batch's own result, for rows [begin, end), beside its part of the full one.
void expect_same_rows(const char* name, std::vector<c10::IValue> arguments, int64_t dim, int64_t inner = 1) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  OpCall call = call_of(op, arguments);
  ASSERT_TRUE(create_split(call, Placement::shard(dim, 1, inner))) << name;
  ASSERT_EQ(call.outputs().size(), 1u);
  EXPECT_EQ(call.outputs()[0], Placement::shard(dim, 1, inner)) << name;
  torch::jit::Stack full(arguments.begin(), arguments.end());
  op.callBoxed(full);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 4}, {4, 6}, {5, 6}}) {
    torch::jit::Stack part(arguments.begin(), arguments.end());
    for (const OpCall::Literal& literal : call.literals()) {
      std::vector<int64_t> sizes = part[literal.arg].toIntVector();
      sizes[literal.element] = (end - begin) * literal.factor;
      part[literal.arg] = sizes;
    }
    op.callBoxed(part);
    EXPECT_TRUE(at::equal(part[0].toTensor(), full[0].toTensor().narrow(dim, begin * inner, (end - begin) * inner))) << name;
  }
}

const c10::IValue kNone;

TEST(Creation, MakesTheRowsOfAMicroBatch) {
  expect_same_rows("aten::zeros", {std::vector<int64_t>{6, 3}, kNone, kNone, kNone, kNone}, 0);
  expect_same_rows("aten::ones", {std::vector<int64_t>{3, 6, 2}, kNone, kNone, kNone, kNone}, 1);
  expect_same_rows("aten::zeros", {std::vector<int64_t>{18, 3}, kNone, kNone, kNone, kNone}, 0, 3);
  expect_same_rows("aten::full", {std::vector<int64_t>{6}, 2.5, kNone, kNone, kNone, kNone}, 0);
  const at::Tensor like = at::rand({2});
  expect_same_rows("aten::new_zeros", {like, std::vector<int64_t>{6, 3}, kNone, kNone, kNone, kNone}, 0);
  expect_same_rows("aten::new_ones", {like, std::vector<int64_t>{3, 6}, kNone, kNone, kNone, kNone}, 1);
  expect_same_rows("aten::new_full", {like, std::vector<int64_t>{6, 3}, 1.5, kNone, kNone, kNone, kNone}, 0);
}

TEST(Creation, RepeatsWhatIsTheSameForEveryRow) {
  expect_same_rows("aten::repeat", {at::rand({3, 2}), std::vector<int64_t>{6, 1, 1}}, 0);   // a new dimension
  expect_same_rows("aten::repeat", {at::rand({1, 2}), std::vector<int64_t>{6, 3}}, 0);      // one of one entry
  expect_same_rows("aten::repeat", {at::rand({3, 1}), std::vector<int64_t>{2, 6}}, 1);
}

TEST(Creation, RefusesWhereRowsAreNotAlike) {
  const auto repeat = c10::Dispatcher::singleton().findSchemaOrThrow("aten::repeat", "");
  OpCall call = call_of(repeat, {at::rand({2, 3}), std::vector<int64_t>{6, 1}});
  EXPECT_TRUE(creatable(call).empty());
  EXPECT_FALSE(create_split(call, Placement::shard(0)));
}

TEST(Creation, KnowsEveryDimensionThatMayBeTheRows) {
  EXPECT_EQ(parts_of_constant(std::vector<int64_t>{12, 3, 6}, 6), (std::vector<Placement>{Placement::shard(2), Placement::shard(0, 1, 2)}));
  EXPECT_TRUE(parts_of_constant(std::vector<int64_t>{13, 3, 5}, 6).empty());
  EXPECT_TRUE(parts_of_constant(std::vector<int64_t>{0, 6}, 0).empty());
}

TEST(Creation, RefusesWithoutADimensionAsLongAsTheBatch) {
  const auto zeros = c10::Dispatcher::singleton().findSchemaOrThrow("aten::zeros", "");
  OpCall call = call_of(zeros, {std::vector<int64_t>{13, 3}, kNone, kNone, kNone, kNone});
  EXPECT_FALSE(create_split(call, Placement::shard(0)));
}

TEST(Creation, KnowsOnlyOperatorsThatCreate) {
  EXPECT_EQ(created_sizes_argument(c10::Dispatcher::singleton().findSchemaOrThrow("aten::zeros", "").schema()), 0);
  EXPECT_EQ(created_sizes_argument(c10::Dispatcher::singleton().findSchemaOrThrow("aten::zeros", "out").schema()), -1);
  EXPECT_EQ(created_sizes_argument(c10::Dispatcher::singleton().findSchemaOrThrow("aten::randn", "").schema()), -1);
}

}  // namespace
}  // namespace koila
