#include "runtime/leak_watch.h"

#include <gtest/gtest.h>

namespace koila {
namespace {

constexpr std::int64_t kKi = 1024;

struct Program {
  TensorBook book;
  Findings findings;
  LeakWatch watch{book, findings};
  std::int64_t steps = 0;
  std::uintptr_t next = 0x1000;

  std::uintptr_t make(std::int64_t bytes, koila_when when = KOILA_IN_FORWARD) {
    const auto op = static_cast<std::uint16_t>(book.ops().number("aten::relu"));
    book.add(KOILA_CPU, next += 64, bytes, {static_cast<std::uint8_t>(when), op, 0});
    return next;
  }
  void end_step() {
    book.end_step();
    watch.step_over(++steps);
  }
};

TEST(LeakWatch, TellsOfWhatIsKeptFromEveryStep) {
  Program program;
  for (int i = 0; i < 40; ++i) {
    program.make(64 * kKi);
    const std::uintptr_t passing = program.make(kKi);
    program.book.remove(KOILA_CPU, passing);
    program.end_step();
  }
  const std::vector<Leak> leaks = program.findings.leaks();
  ASSERT_EQ(leaks.size(), 1U);
  EXPECT_EQ(leaks[0].op, "aten::relu");
  EXPECT_EQ(leaks[0].category, KOILA_ACTIVATIONS);
  EXPECT_EQ(leaks[0].bytes_per_step, 64 * kKi);
  const auto asked = program.watch.to_name();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(program.book.addresses(*asked, 3).size(), 3U);
  EXPECT_FALSE(program.watch.to_name().has_value()) << "once is enough";
}

TEST(LeakWatch, SaysNothingOfAProgramThatKeepsNothing) {
  Program program;
  program.make(1024 * kKi, KOILA_SETUP);
  for (int i = 0; i < 40; ++i) {
    const std::uintptr_t passing = program.make(64 * kKi);
    program.end_step();
    program.book.remove(KOILA_CPU, passing);
  }
  EXPECT_TRUE(program.findings.leaks().empty());
}

TEST(LeakWatch, TakesBackWhatIsLetGo) {
  Program program;
  std::vector<std::uintptr_t> kept;
  for (int i = 0; i < 30; ++i) {
    kept.push_back(program.make(64 * kKi));
    program.end_step();
  }
  ASSERT_FALSE(program.findings.leaks().empty());
  for (const std::uintptr_t address : kept) program.book.remove(KOILA_CPU, address);
  for (int i = 0; i < 4; ++i) program.end_step();
  EXPECT_TRUE(program.findings.leaks().empty());
}

}  // namespace
}  // namespace koila
