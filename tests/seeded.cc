// Each test draws what it would draw alone, whichever ran before it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace {

class Seeded : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { at::manual_seed(c10::default_rng_seed_val); }
};

const bool added = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Seeded);
  return true;
}();

}  // namespace
