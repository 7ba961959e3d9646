#include "torchglue/tape/op_log.h"

#include <ATen/core/List.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace koila {
namespace {

c10::OperatorHandle some_operator() { return c10::Dispatcher::singleton().findSchemaOrThrow("aten::relu", ""); }

// A call of which everything tells its number. `shared`: an argument that counts its references.
void add(OpLog& log, uint32_t number, const c10::IValue& shared) {
  std::vector<c10::IValue> args = {shared, static_cast<int64_t>(number)};
  std::vector<TapeRef> refs(number % 5, TapeRef{0, -1, number, number});
  std::vector<TapeValueId> outputs = {number, kNoTapeValue};
  TapeOp op{some_operator(), args, refs, outputs};
  op.place = number;
  log.add(op, args);
  EXPECT_TRUE(args.empty());
}

void expect_is(const TapeOp& op, uint32_t number) {
  EXPECT_EQ(op.place, number);
  ASSERT_EQ(op.args.size(), 2u);
  EXPECT_EQ(op.args[1].toInt(), static_cast<int64_t>(number));
  ASSERT_EQ(op.refs.size(), number % 5);
  for (const TapeRef& ref : op.refs) EXPECT_EQ(ref.value, number);
  ASSERT_EQ(op.outputs.size(), 2u);
  EXPECT_EQ(op.outputs[0], number);
  EXPECT_EQ(op.outputs[1], kNoTapeValue);
}

TEST(OpLog, KeepsWhatItIsTold) {
  OpLog log;
  const c10::List<int64_t> list({1, 2});
  constexpr uint32_t kCalls = 2000;  // several chunks of memory
  for (uint32_t i = 0; i < kCalls; ++i) add(log, i, list);
  EXPECT_EQ(list.use_count(), kCalls + 1);
  std::vector<char> needed(kCalls, 0);
  for (uint32_t i = 0; i < kCalls; i += 3) needed[i] = 1;
  std::vector<int32_t> new_op;
  log.keep(needed, new_op);
  ASSERT_EQ(log.ops().size(), (kCalls + 2) / 3);
  EXPECT_EQ(list.use_count(), log.ops().size() + 1);
  for (uint32_t i = 0; i < kCalls; ++i) {
    ASSERT_EQ(new_op[i], i % 3 == 0 ? static_cast<int32_t>(i / 3) : kNoProducer);
    if (i % 3 == 0) expect_is(log.ops()[i / 3], i);
  }
  add(log, 7, list);
  expect_is(log.ops().back(), 7);
}

TEST(OpLog, LetsGoOfItsArguments) {
  const c10::List<int64_t> list({1, 2});
  {
    OpLog log;
    add(log, 1, list);
    log.clear();
    EXPECT_EQ(list.use_count(), 1u);
    EXPECT_TRUE(log.ops().empty());
    add(log, 2, list);
    OpLog other = std::move(log);
    ASSERT_EQ(other.ops().size(), 1u);
    expect_is(other.ops()[0], 2);
    EXPECT_EQ(list.use_count(), 2u);
  }
  EXPECT_EQ(list.use_count(), 1u);
}

TEST(OpLog, RenumbersValues) {
  OpLog log;
  add(log, 4, c10::IValue());
  log.renumber([](TapeValueId id) { return id - 1; });
  EXPECT_EQ(log.ops()[0].refs[0].value, 3u);
  EXPECT_EQ(log.ops()[0].outputs[0], 3u);
  EXPECT_EQ(log.ops()[0].outputs[1], kNoTapeValue);
}

}  // namespace
}  // namespace koila
