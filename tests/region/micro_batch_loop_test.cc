// The loop over micro-batches, with memory that runs out where it is told to.

#include "torchglue/region/micro_batch_loop.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace koila {
namespace {

// Keeps account of what the loop asked for. Each answer is given as often as it says.
struct Told final : MicroBatchLoop::Host {
  int again = 0, room = 0, served = 0;
  int64_t micro_batch = 8;
  std::vector<std::string> asked;

  bool ran_out(const std::exception& error) override { return dynamic_cast<const std::bad_alloc*>(&error) != nullptr; }
  std::exception_ptr keep(const std::exception&) override { return std::current_exception(); }
  bool try_again(int& tries) override {
    asked.push_back("again " + std::to_string(tries++));
    return again-- > 0;
  }
  bool make_room() override {
    asked.emplace_back("room");
    return room-- > 0;
  }
  bool shrink(int64_t rows) override {
    asked.push_back("shrink " + std::to_string(rows));
    if (rows <= 1) return false;
    micro_batch = rows / 2;
    return true;
  }
  bool serve() override {
    asked.emplace_back("serve");
    return served-- > 0;
  }
  void clean_up() override { asked.emplace_back("clean up"); }
};

using Asked = std::vector<std::string>;

// Fails `times` times.
struct Failing {
  int times;
  int runs = 0;
  void operator()() {
    ++runs;
    if (times-- > 0) throw std::bad_alloc();
  }
};

TEST(MicroBatchLoop, AsksForNothingWhereNothingRunsOut) {
  Told told;
  MicroBatchLoop(told).once([] { return 8; }, [] {});
  MicroBatchLoop(told).whole([] {});
  EXPECT_EQ(told.asked, Asked{});
}

TEST(MicroBatchLoop, GoesThroughTheStepsInTheirOrder) {
  Told told;
  told.again = told.room = told.served = 1;
  Failing pass{4};
  told.micro_batch = 2;
  MicroBatchLoop(told).once([&] { return told.micro_batch; }, std::ref(pass));
  EXPECT_EQ(told.asked, (Asked{"again 0", "clean up", "again 1", "room", "clean up", "again 2", "room", "clean up", "shrink 2", "again 3", "room", "clean up", "shrink 1", "serve"}));
  EXPECT_EQ(pass.runs, 5);
}

TEST(MicroBatchLoop, HandsTheErrorOnWhenNothingHelps) {
  Told told;
  told.micro_batch = 1;
  EXPECT_THROW(MicroBatchLoop(told).once([] { return 1; }, Failing{9}), std::bad_alloc);
  EXPECT_EQ(told.asked, (Asked{"again 0", "room", "clean up", "shrink 1", "serve"}));
}

TEST(MicroBatchLoop, DoesNotHalveWhatIsAsLargeAsTheBatch) {
  Told told;
  told.served = 1;
  MicroBatchLoop(told).whole(Failing{1});
  EXPECT_EQ(told.asked, (Asked{"again 0", "room", "clean up", "serve"}));
}

TEST(MicroBatchLoop, LeavesOtherErrorsAlone) {
  Told told;
  EXPECT_THROW(MicroBatchLoop(told).whole([] { throw std::runtime_error("another"); }), std::runtime_error);
  EXPECT_EQ(told.asked, Asked{});
}

// Sums up rows; fails where it is told to.
struct Sum final : MicroBatchLoop::Passes {
  explicit Sum(Told& told) : told_(told) {}
  std::vector<int64_t> fails_above;  // pass by pass: the rows that still fit; the last is for all that follow
  bool of_one_size = false;
  std::vector<std::pair<int64_t, int64_t>> rows;  // that are in the sum
  int starts = 0, passes = 0;

  int64_t end_of(int64_t begin) override { return std::min<int64_t>(begin + told_.micro_batch, 16); }
  void run(int64_t begin, int64_t end) override {
    const size_t n = std::min<size_t>(passes++, fails_above.size() - 1);
    if (end - begin > fails_above[n]) throw std::bad_alloc();
    rows.emplace_back(begin, end);
  }
  bool depends_on_size(int64_t) override { return of_one_size; }
  void start_over() override {
    ++starts;
    rows.clear();
  }

 private:
  Told& told_;
};

using Rows = std::vector<std::pair<int64_t, int64_t>>;

TEST(MicroBatchLoop, CoversTheBatchOnceWhereverItRunsOut) {
  for (int64_t fits = 1; fits <= 16; ++fits) {
    for (int64_t before = 0; before < 4; ++before) {  // passes that come through at first
      Told told;
      Sum sum(told);
      sum.fails_above.assign(static_cast<size_t>(before), 16);
      sum.fails_above.push_back(fits);
      MicroBatchLoop(told).over(16, sum);
      int64_t until = 0;
      for (const auto& [begin, end] : sum.rows) {
        EXPECT_EQ(begin, until);
        until = end;
      }
      EXPECT_EQ(until, 16);
    }
  }
}

TEST(MicroBatchLoop, GoesOnFromTheRowWhereItRanOut) {
  Told told;
  Sum sum(told);
  sum.fails_above = {8, 4};
  MicroBatchLoop(told).over(16, sum);
  EXPECT_EQ(sum.rows, (Rows{{0, 8}, {8, 12}, {12, 16}}));
  EXPECT_EQ(sum.starts, 0);
}

TEST(MicroBatchLoop, StartsOverWhereRowsDependOnTheSize) {
  Told told;
  Sum sum(told);
  sum.of_one_size = true;
  sum.fails_above = {8, 4};
  MicroBatchLoop(told).over(16, sum);
  EXPECT_EQ(sum.rows, (Rows{{0, 4}, {4, 8}, {8, 12}, {12, 16}}));
  EXPECT_EQ(sum.starts, 1);
}

TEST(MicroBatchLoop, DoesNotStartOverForAnotherTry) {
  Told told;
  told.again = 1;
  Sum sum(told);
  sum.of_one_size = true;
  sum.fails_above = {8, 4, 8};
  MicroBatchLoop(told).over(16, sum);
  EXPECT_EQ(sum.rows, (Rows{{0, 8}, {8, 16}}));
  EXPECT_EQ(sum.starts, 0);
}

TEST(MicroBatchLoop, CountsTriesFromTheLastPassThatCameThrough) {
  Told told;
  told.again = 2;
  Sum sum(told);
  sum.fails_above = {4, 8, 4, 8};
  MicroBatchLoop(told).over(16, sum);
  EXPECT_EQ(told.asked, (Asked{"again 0", "clean up", "again 0", "clean up"}));
}

TEST(MicroBatchLoop, DoesNotMakeTheSameRoomForEver) {
  Told told;
  told.room = told.served = 1'000'000;
  Sum sum(told);
  sum.fails_above = std::vector<int64_t>(100'000, 0);
  EXPECT_THROW(MicroBatchLoop(told).over(16, sum), std::bad_alloc);
  EXPECT_LT(told.asked.size(), 1000);
}

TEST(MicroBatchLoop, ServesTheLastRow) {
  Told told;
  told.served = 1;
  Sum sum(told);
  sum.fails_above = {0, 0, 0, 0, 8};
  MicroBatchLoop(told).over(16, sum);
  EXPECT_EQ(sum.rows.front(), (std::pair<int64_t, int64_t>{0, 1}));
  EXPECT_EQ(told.asked.back(), "serve");
}

}  // namespace
}  // namespace koila
