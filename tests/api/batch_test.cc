// toma's published behaviour (its README), and what koila adds. Out of memory is real where a test is about that, and thrown elsewhere.
#include "koila/batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/jit.h>

#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace koila {
namespace {

using Sizes = std::vector<std::int64_t>;
using Rows = std::vector<std::pair<std::int64_t, std::int64_t>>;

[[noreturn]] void out_of_memory() { throw c10::OutOfMemoryError({"function", "file.cpp", 1}, "CUDA out of memory. Tried to allocate 2.00 GiB."); }

// No machine has an exbibyte.
void really_out_of_memory() { at::empty({std::int64_t{1} << 60}, at::kByte); }

// As much memory as n rows of a MiB take.
void use(std::int64_t n) { at::empty({n << 20}, at::kByte).fill_(1); }

class Batch : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override {
    set_default_size_cache(call_site_size_cache());
    clear();
  }
  static void clear() {
    call_site_size_cache().clear();
    global_size_cache().clear();
  }
  // Available memory may pass from one step to the next between two calls, as others come and go: what is looked up again must not depend on it.
  SizeCache fixed_{SizeCache::By::kFunction};
};

TEST_F(Batch, HalvesUntilItFits) {
  Sizes tried;
  const std::int64_t fitted = batch(512, [&](std::int64_t n) {
    tried.push_back(n);
    if (n > 64) out_of_memory();
    return n * 10;
  });
  EXPECT_EQ(tried, (Sizes{512, 256, 128, 64}));
  EXPECT_EQ(fitted, 640);
}

TEST_F(Batch, HalvesWhenMemoryReallyRunsOut) {
  Sizes tried;
  batch(100, [&](std::int64_t n) {
    tried.push_back(n);
    if (n > 10) really_out_of_memory();
  });
  EXPECT_EQ(tried, (Sizes{100, 50, 25, 12, 6}));
}

TEST_F(Batch, ReturnsWhatTheFunctionDoes) {
  int there = 1;
  static_assert(std::is_same_v<decltype(batch(1, [&](std::int64_t) -> int& { return there; })), int&>);
  batch(1, [&](std::int64_t) -> int& { return there; }) = 5;
  EXPECT_EQ(there, 5);
  static_assert(std::is_same_v<decltype(batch(1, [](std::int64_t) { return std::unique_ptr<int>(); })), std::unique_ptr<int>>);
  EXPECT_EQ(*batch(1, [](std::int64_t n) { return std::make_unique<std::int64_t>(n); }), 1);
  const at::Tensor ones = batch(4, [](std::int64_t n) { return at::ones({n}); });
  EXPECT_EQ(ones.sum().item<int>(), 4);
}

TEST_F(Batch, HandsOnTheFunctionsOwnErrorWhenTheSmallestDoesNotFit) {
  Sizes tried;
  const auto never = [&](std::int64_t n) {
    tried.push_back(n);
    throw c10::OutOfMemoryError({"function", "file.cpp", 1}, "at " + std::to_string(n));
  };
  try {
    batch(8, never);
    FAIL() << "it fitted";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_STREQ(error.what_without_backtrace(), "at 1");
  }
  EXPECT_EQ(tried, (Sizes{8, 4, 2, 1}));
  EXPECT_TRUE(default_size_cache().entries().empty()) << "no size went through";

  tried.clear();
  EXPECT_THROW(batch(20, never, BatchOptions().with_minimum(4)), c10::OutOfMemoryError);
  EXPECT_EQ(tried, (Sizes{20, 10, 5, 4}));
}

TEST_F(Batch, HandsOnOtherErrorsAtOnce) {
  int calls = 0;
  EXPECT_THROW(batch(8, [&](std::int64_t) { ++calls; throw std::runtime_error("CUDA out of coffee"); }), std::runtime_error);
  EXPECT_THROW(batch(8, [&](std::int64_t) { ++calls; throw 7; }), int);
  EXPECT_THROW(batch(8, [&](std::int64_t) { ++calls; TORCH_CHECK(false, "CUDA error: device-side assert triggered"); }), c10::Error);
  EXPECT_EQ(calls, 3);
}

// An exception that keeps memory.
struct Held : std::bad_alloc {
  std::shared_ptr<int> memory = std::make_shared<int>(0);
};

TEST_F(Batch, TheExceptionIsGoneBeforeTheRetry) {
  std::weak_ptr<int> held;
  bool gone = false;
  batch(2, [&](std::int64_t n) {
    if (n == 1) {
      gone = held.expired();
      return;
    }
    const Held error;
    held = error.memory;
    throw error;
  });
  EXPECT_TRUE(gone);
}

TEST_F(Batch, KnowsTheErrorsThatMeanIt) {
  const std::vector<std::function<void()>> errors = {
      [] { throw std::bad_alloc(); },
      [] { TORCH_CHECK(false, "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`"); },
      [] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"); },
      [] { TORCH_CHECK(false, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"); },
      [] { TORCH_CHECK(false, "GET was unable to find an engine to execute this computation"); },
      [] { throw c10::AcceleratorError({"function", "file.cpp", 1}, 2, "CUDA error: out of memory"); },
  };
  for (const auto& error : errors) {
    Sizes tried;
    batch(2, [&](std::int64_t n) {
      tried.push_back(n);
      if (n == 2) error();
    });
    EXPECT_EQ(tried, (Sizes{2, 1}));
    clear();
  }
}

TEST_F(Batch, KnowsWhatComesOutOfTorchScript) {
  const auto script = torch::jit::compile(
      "def grab(n: int):\n    if n > 4:\n        return torch.empty([1152921504606846976])\n    return torch.ones([n])\n");
  Sizes tried;
  const at::Tensor ones = batch(16, [&](std::int64_t n) {
    tried.push_back(n);
    return script->run_method("grab", n).toTensor();
  });
  EXPECT_EQ(tried, (Sizes{16, 8, 4}));
  EXPECT_EQ(ones.numel(), 4);

  const auto wrong = torch::jit::compile("def wrong(n: int):\n    return torch.ones([n]) + torch.ones([n + 2])\n");
  tried.clear();
  EXPECT_THROW(batch(16, [&](std::int64_t n) { tried.push_back(n); return wrong->run_method("wrong", n); }), std::runtime_error);
  EXPECT_EQ(tried, Sizes{16});
}

TEST_F(Batch, RangeGoesOnFromWhereItStood) {
  Rows tried, done;
  const std::int64_t step = range(0, 20, 8, [&](std::int64_t begin, std::int64_t end) {
    tried.emplace_back(begin, end);
    if (begin >= 8 && end - begin > 2) out_of_memory();
    done.emplace_back(begin, end);
  });
  EXPECT_EQ(tried, (Rows{{0, 8}, {8, 16}, {8, 12}, {8, 10}, {10, 12}, {12, 14}, {14, 16}, {16, 18}, {18, 20}}));
  EXPECT_EQ(done, (Rows{{0, 8}, {8, 10}, {10, 12}, {12, 14}, {14, 16}, {16, 18}, {18, 20}})) << "each row once, and no more than two after the failure";
  EXPECT_EQ(step, 2);
}

TEST_F(Batch, RangeGivesTheRestItsOwnSize) {
  Rows tried;
  range(5, 25, 8, [&](std::int64_t begin, std::int64_t end) { tried.emplace_back(begin, end); });
  EXPECT_EQ(tried, (Rows{{5, 13}, {13, 21}, {21, 25}}));
}

TEST_F(Batch, RangeDoesNotTryTheSameRowsAgain) {
  Rows tried;
  range(0, 100, 512, [&](std::int64_t begin, std::int64_t end) {
    tried.emplace_back(begin, end);
    if (end - begin > 64) out_of_memory();
  });
  EXPECT_EQ(tried, (Rows{{0, 100}, {0, 64}, {64, 100}})) << "512, 256 and 128 are the same hundred rows";
}

TEST_F(Batch, RangeOfNothingCallsNothing) {
  int calls = 0;
  EXPECT_EQ(range(7, 7, 3, [&](std::int64_t, std::int64_t) { ++calls; }), 3);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(chunked(at::empty({0, 4}), 3, [&](const at::Tensor&, std::int64_t, std::int64_t) { ++calls; }), 3);
  EXPECT_EQ(calls, 0);
}

TEST_F(Batch, ChunksAreViewsOfTheTensor) {
  const at::Tensor result = at::zeros({10, 3});
  Rows tried;
  chunked(result, 8, [&](at::Tensor chunk, std::int64_t begin, std::int64_t end) {
    tried.emplace_back(begin, end);
    if (end - begin > 4) really_out_of_memory();
    EXPECT_EQ(chunk.sizes(), (at::IntArrayRef{end - begin, 3}));
    chunk.copy_(at::arange(begin, end).unsqueeze(1).expand({-1, 3}));
  });
  EXPECT_EQ(tried, (Rows{{0, 8}, {0, 4}, {4, 8}, {8, 10}}));
  EXPECT_TRUE(at::equal(result, at::arange(0, 10, at::kFloat).unsqueeze(1).expand({10, 3})));
}

TEST_F(Batch, ChunksOfAnyDimension) {
  const at::Tensor result = at::zeros({2, 6, 3});
  std::vector<std::int64_t> seen;
  chunked(result, 4, [&](at::Tensor& chunk, std::int64_t begin, std::int64_t) {
    seen.push_back(chunk.size(1));
    chunk.fill_(static_cast<double>(begin + 1));
  }, 1);
  chunked(result, 2, [&](const at::Tensor& chunk, std::int64_t, std::int64_t) { seen.push_back(chunk.size(2)); }, BatchOptions().with_dim(-1));
  EXPECT_EQ(seen, (std::vector<std::int64_t>{4, 2, 2, 1}));
  EXPECT_EQ(result.sum().item<int>(), 2 * 3 * (4 * 1 + 2 * 5));
}

TEST_F(Batch, RemembersByCallSite) {
  // One step of memory for all calls: whatever the machine does meanwhile.
  const BatchOptions steady = BatchOptions().with_cpu_memory(std::int64_t{1} << 30);
  Sizes tried;
  const auto fits_32 = [&](std::int64_t n) {
    tried.push_back(n);
    if (n > 32) out_of_memory();
  };
  for (int call = 0; call < 2; ++call) batch(128, fits_32, steady);
  EXPECT_EQ(tried, (Sizes{128, 64, 32, 32})) << "the second call begins with what went through";

  tried.clear();
  batch(128, fits_32, steady);
  EXPECT_EQ(tried, (Sizes{128, 64, 32})) << "another line knows nothing of that";

  const auto entries = call_site_size_cache().entries();
  ASSERT_EQ(entries.size(), 2u);
  for (const SizeCache::Entry& entry : entries) {
    EXPECT_NE(entry.where.find("batch_test.cc:"), std::string::npos) << entry.where;
    EXPECT_EQ(entry.size, 32);
    EXPECT_EQ(entry.failed, 64);
    EXPECT_EQ(entry.available_bytes, std::int64_t{1} << 30);
    EXPECT_EQ(entry.device, c10::Device(at::kCPU));
  }
}

TEST_F(Batch, RemembersByAvailableMemory) {
  Sizes tried;
  for (const std::int64_t memory : {1 << 30, 1 << 29, 1 << 30}) {
    batch(64, [&](std::int64_t n) {
      tried.push_back(n);
      if (n > (memory >> 25)) out_of_memory();
    }, BatchOptions().with_cpu_memory(memory));
  }
  EXPECT_EQ(tried, (Sizes{64, 32, 64, 32, 16, 32})) << "half the memory is a size of its own";
}

TEST_F(Batch, ClearForgets) {
  const BatchOptions options = BatchOptions().with_cache(fixed_);
  Sizes tried;
  for (int call = 0; call < 2; ++call) {
    batch(4, [&](std::int64_t n) { tried.push_back(n); if (n > 2) out_of_memory(); }, options);
    EXPECT_EQ(fixed_.entries().size(), 1u);
    fixed_.clear();
    EXPECT_TRUE(fixed_.entries().empty());
  }
  EXPECT_EQ(tried, (Sizes{4, 2, 4, 2}));
}

TEST_F(Batch, TheGlobalCacheGoesByFunction) {
  Sizes tried;
  const auto f = [&](std::int64_t n) { tried.push_back(n); if (n > 2) out_of_memory(); };
  explicit_::batch(global_size_cache(), 8, f);
  explicit_::batch(global_size_cache(), 8, f);
  EXPECT_EQ(tried, (Sizes{8, 4, 2, 2})) << "two places, one function";
  tried.clear();
  explicit_::batch(global_size_cache(), 8, [&](std::int64_t n) { f(n); });
  EXPECT_EQ(tried, (Sizes{8, 4, 2})) << "another function";
}

void first_function(std::int64_t n) { if (n > 2) out_of_memory(); }
void second_function(std::int64_t n) { if (n > 4) out_of_memory(); }

TEST_F(Batch, FunctionsOfOneTypeAreToldApart) {
  explicit_::batch(fixed_, 8, first_function);
  explicit_::batch(fixed_, 8, &second_function);
  explicit_::batch(fixed_, 8, &first_function);
  EXPECT_EQ(fixed_.entries().size(), 2u);
}

TEST_F(Batch, AContextStandsForPlaceAndFunction) {
  const BatchOptions options = BatchOptions().with_cache(fixed_).with_context("encoder");
  Sizes tried;
  batch(8, [&](std::int64_t n) { tried.push_back(n); if (n > 2) out_of_memory(); }, options);
  batch(8, [&](std::int64_t n) { tried.push_back(n); }, options);
  EXPECT_EQ(tried, (Sizes{8, 4, 2, 2}));
  EXPECT_EQ(fixed_.entries().at(0).where, "encoder");
}

TEST_F(Batch, NoCacheBeginsAnew) {
  Sizes tried;
  for (int call = 0; call < 2; ++call) explicit_::batch(no_size_cache(), 4, [&](std::int64_t n) { tried.push_back(n); if (n > 2) out_of_memory(); });
  EXPECT_EQ(tried, (Sizes{4, 2, 4, 2}));
  EXPECT_TRUE(no_size_cache().entries().empty());
}

TEST_F(Batch, TheDefaultCacheCanBeSet) {
  set_default_size_cache(fixed_);
  batch(4, [](std::int64_t n) { if (n > 2) out_of_memory(); });
  EXPECT_EQ(fixed_.entries().size(), 1u);
  EXPECT_TRUE(call_site_size_cache().entries().empty());
}

TEST_F(Batch, WhatIsAskedForIsTheMost) {
  Sizes tried;
  for (const std::int64_t initial : {64, 8, 64, 3}) {
    explicit_::batch(fixed_, initial, [&](std::int64_t n) { tried.push_back(n); if (n > 16) out_of_memory(); });
  }
  EXPECT_EQ(tried, (Sizes{64, 32, 16, 8, 16, 3})) << "a call that asks for less teaches the next one nothing";
}

TEST_F(Batch, ASmallCallThatFitsSetsNoLimit) {
  Sizes tried;
  for (const std::int64_t initial : {8, 64}) explicit_::batch(fixed_, initial, [&](std::int64_t n) { tried.push_back(n); });
  EXPECT_EQ(tried, (Sizes{8, 64})) << "nothing has run out of memory";
}

TEST_F(Batch, RangeRemembersForTheNextRange) {
  Rows tried;
  for (int call = 0; call < 2; ++call) {
    explicit_::range(fixed_, 0, 8, 8, [&](std::int64_t begin, std::int64_t end) {
      tried.emplace_back(begin, end);
      if (end - begin > 4) out_of_memory();
    });
  }
  EXPECT_EQ(tried, (Rows{{0, 8}, {0, 4}, {4, 8}, {0, 4}, {4, 8}}));
}

TEST_F(Batch, RemembersWhatWentThroughBeforeAnotherError) {
  const auto f = [](std::int64_t begin, std::int64_t end) {
    if (end - begin > 4) out_of_memory();
    if (begin == 4) throw std::runtime_error("bad row");
  };
  EXPECT_THROW(explicit_::range(fixed_, 0, 16, 16, f), std::runtime_error);
  ASSERT_EQ(fixed_.entries().size(), 1u);
  EXPECT_EQ(fixed_.entries()[0].size, 4);
}

TEST_F(Batch, GrowsAgainAfterSoManyThatWentThrough) {
  std::int64_t room = 4;
  Sizes tried;
  range(0, 64, 16, [&](std::int64_t begin, std::int64_t end) {
    tried.push_back(end - begin);
    if (begin >= 16) room = 16;
    if (end - begin > room) out_of_memory();
  }, BatchOptions().with_grow_after(2).with_cache(fixed_));
  // At row 8 it tries 8, which is too much: from there on it takes four in a row.
  EXPECT_EQ(tried, (Sizes{16, 8, 4, 4, 8, 4, 4, 4, 4, 8, 8, 8, 8, 8}));
}

TEST_F(Batch, GrowsFromCallToCall) {
  Sizes tried;
  const BatchOptions options = BatchOptions().with_grow_after(2).with_cache(fixed_);
  for (int call = 0; call < 8; ++call) {
    batch(4, [&](std::int64_t n) { tried.push_back(n); if (n > 2 && call != 7) out_of_memory(); }, options);
  }
  EXPECT_EQ(tried, (Sizes{4, 2, 2, 4, 2, 2, 2, 2, 4, 2, 2})) << "twice as patient after the growth that failed";
}

// The sizes that toma's own tests expect of it, call for call. A plain call site goes by available memory, which is held in place here.
class AsToma : public Batch {
 protected:
  auto batch_of_16() {
    return [this](std::int64_t n) {
      tried_.push_back(n);
      if (n != 16) out_of_memory();
    };
  }
  auto range_that_narrows() {
    return [this](std::int64_t begin, std::int64_t end) {
      tried_.push_back(end - begin);
      if (end - begin > 16 && end - begin > 128 - end) out_of_memory();
    };
  }
  static Sizes joined(const std::vector<Sizes>& parts) {
    Sizes all;
    for (const Sizes& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  const BatchOptions steady_ = BatchOptions().with_cpu_memory(std::int64_t{1} << 30);
  const Sizes narrowing_ = {64, 64, 32, 32, 16, 16}, narrow_ = Sizes(8, 16);
  Sizes tried_;
};

TEST_F(AsToma, BatchWithEachCache) {
  for (int call = 0; call < 2; ++call) explicit_::batch(no_size_cache(), 64, batch_of_16());
  EXPECT_EQ(std::exchange(tried_, {}), (Sizes{64, 32, 16, 64, 32, 16}));

  for (int call = 0; call < 3; ++call) explicit_::batch(global_size_cache(), 64, batch_of_16());
  explicit_::batch(global_size_cache(), 64, batch_of_16());
  EXPECT_EQ(std::exchange(tried_, {}), (Sizes{64, 32, 16, 16, 16, 16}));

  for (int call = 0; call < 3; ++call) batch(64, batch_of_16(), steady_);
  batch(64, batch_of_16(), steady_);
  EXPECT_EQ(std::exchange(tried_, {}), (Sizes{64, 32, 16, 16, 16, 64, 32, 16}));
}

TEST_F(AsToma, RangeWithEachCache) {
  for (int call = 0; call < 2; ++call) explicit_::range(no_size_cache(), 0, 128, 64, range_that_narrows());
  EXPECT_EQ(std::exchange(tried_, {}), joined({narrowing_, narrowing_}));

  for (int call = 0; call < 2; ++call) explicit_::range(global_size_cache(), 0, 128, 64, range_that_narrows());
  explicit_::range(global_size_cache(), 0, 128, 64, range_that_narrows());
  EXPECT_EQ(std::exchange(tried_, {}), joined({narrowing_, narrow_, narrow_}));

  for (int call = 0; call < 2; ++call) range(0, 128, 64, range_that_narrows(), steady_);
  range(0, 128, 64, range_that_narrows(), steady_);
  EXPECT_EQ(std::exchange(tried_, {}), joined({narrowing_, narrow_, narrowing_}));
}

TEST_F(AsToma, ExecuteWithEachCache) {
  for (int call = 0; call < 2; ++call) execute::batch(64, BatchOptions().with_cache(global_size_cache()))(batch_of_16());
  EXPECT_EQ(std::exchange(tried_, {}), (Sizes{64, 32, 16, 16}));
  for (int call = 0; call < 2; ++call) execute::range(0, 128, 64, BatchOptions().with_cache(no_size_cache()))(range_that_narrows());
  EXPECT_EQ(std::exchange(tried_, {}), joined({narrowing_, narrowing_}));
  for (int call = 0; call < 2; ++call) execute::range(0, 128, 64, steady_)(range_that_narrows());
  EXPECT_EQ(std::exchange(tried_, {}), joined({narrowing_, narrow_}));
}

TEST_F(AsToma, WhatNeverFitsRaises) {
  EXPECT_THROW(explicit_::batch(fixed_, 64, [](std::int64_t) { out_of_memory(); }), c10::OutOfMemoryError);
  EXPECT_THROW(explicit_::range(fixed_, 0, 64, 64, [](std::int64_t, std::int64_t) { out_of_memory(); }), c10::OutOfMemoryError);
}

TEST_F(AsToma, ChunkedWritesTheWholeTensor) {
  const at::Tensor tensor = at::zeros({128, 4, 4});
  chunked(tensor, 32, [](at::Tensor chunk, std::int64_t, std::int64_t) { chunk.fill_(1); });
  EXPECT_TRUE(at::equal(tensor, at::ones({128, 4, 4})));
}

TEST_F(Batch, ExecuteRunsAtOnce) {
  EXPECT_EQ(execute::batch(3)([](std::int64_t n) { return n + 1; }), 4);
  Rows rows;
  execute::range(0, 5, 3)([&](std::int64_t begin, std::int64_t end) { rows.emplace_back(begin, end); });
  EXPECT_EQ(rows, (Rows{{0, 3}, {3, 5}}));
  const at::Tensor result = at::zeros({5});
  execute::chunked(result, 2)([](at::Tensor chunk, std::int64_t begin, std::int64_t) { chunk.fill_(static_cast<double>(begin)); });
  EXPECT_EQ(result.sum().item<int>(), 0 + 0 + 2 + 2 + 4);
}

TEST_F(Batch, ExplicitFormsTakeTheirCache) {
  const at::Tensor result = at::zeros({4});
  explicit_::chunked(fixed_, result, 4, [](at::Tensor chunk, std::int64_t, std::int64_t) { if (chunk.numel() > 2) out_of_memory(); chunk.add_(1); });
  ASSERT_EQ(fixed_.entries().size(), 1u);
  EXPECT_EQ(fixed_.entries()[0].size, 2);
  EXPECT_EQ(result.sum().item<int>(), 4);
}

std::int64_t data_bytes() { return detail::proc_bytes("/proc/self/status", "VmData:"); }

rlim_t data_limit() {
  rlimit limit;
  getrlimit(RLIMIT_DATA, &limit);
  return limit.rlim_cur;
}

TEST_F(Batch, KeepsToAnAmountOfCpuMemory) {
  const rlim_t before = data_limit();
  Sizes tried;
  batch(512, [&](std::int64_t n) { tried.push_back(n); use(n); }, BatchOptions().with_cpu_memory(100 << 20));
  EXPECT_EQ(tried, (Sizes{512, 256, 128, 64}));
  EXPECT_EQ(data_limit(), before);

  batch(1, [&](std::int64_t) {
    const rlim_t outer = data_limit();
    EXPECT_LT(outer, static_cast<rlim_t>(data_bytes()) + (std::int64_t{201} << 20));
    batch(1, [&](std::int64_t) { EXPECT_LT(data_limit(), outer); }, BatchOptions().with_cpu_memory(100 << 20));
    batch(1, [&](std::int64_t) { EXPECT_EQ(data_limit(), outer) << "a larger one inside changes nothing"; }, BatchOptions().with_cpu_memory(400 << 20));
    EXPECT_EQ(data_limit(), outer);
  }, BatchOptions().with_cpu_memory(200 << 20));
  EXPECT_THROW(batch(1, [](std::int64_t) { use(300); }, BatchOptions().with_cpu_memory(100 << 20)), c10::Error);
  EXPECT_EQ(data_limit(), before);
}

TEST_F(Batch, MemoryComesInCoarseSteps) {
  const std::int64_t gib = std::int64_t{1} << 30;
  EXPECT_EQ(detail::memory_step(gib), gib);
  EXPECT_EQ(detail::memory_step(gib + gib / 5), gib);
  EXPECT_EQ(detail::memory_step(gib + gib / 3), gib + gib / 4);
  EXPECT_EQ(detail::memory_step(2 * gib - 1), gib + 3 * (gib / 4));
  EXPECT_EQ(detail::memory_step(900'000), 0);
  EXPECT_EQ(detail::memory_step(0), 0);
  EXPECT_GT(detail::available_memory(at::kCPU), 0);
}

TEST_F(Batch, ThreadsShareACache) {
  constexpr int kThreads = 8, kCalls = 50;
  std::mutex mutex;
  Sizes tried;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const std::thread::id mine = std::this_thread::get_id();
      for (int call = 0; call < kCalls; ++call) {
        explicit_::batch(fixed_, 64, [&](std::int64_t n) {
          EXPECT_EQ(std::this_thread::get_id(), mine);
          {
            const std::lock_guard<std::mutex> lock(mutex);
            tried.push_back(n);
          }
          if (n > 8) out_of_memory();
        });
        fixed_.entries();
        default_size_cache().entries();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count(tried.begin(), tried.end(), 8), kThreads * kCalls);
  EXPECT_LE(tried.size(), std::size_t{kThreads * kCalls + 3 * kThreads});
  EXPECT_EQ(fixed_.entries().size(), 1u);
}

// A device whose allocator says what it is told to.
struct FakeAllocator final : c10::DeviceAllocator {
  bool initialized() override { return in_use; }
  void emptyCache(c10::MempoolId_t) override {
    ++emptied;
    EXPECT_TRUE(held.expired()) << "what the exception holds could not be given back";
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    EXPECT_EQ(device, 3);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.reserved_bytes[0].current = 5 * kGib;
    stats.allocated_bytes[0].current = 4 * kGib;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    TORCH_CHECK(tells, "not told");
    EXPECT_EQ(device, 3);
    return {free, 80 * kGib};
  }
  c10::DataPtr allocate(std::size_t) override { return {}; }
  void copy_data(void*, const void*, std::size_t) const override {}

  static constexpr std::int64_t kGib = std::int64_t{1} << 30;
  bool in_use = true, tells = true;
  std::int64_t free = 2 * kGib;
  int emptied = 0;
  std::weak_ptr<int> held;  // by the exception that was thrown last
};

using FakeGuard = c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1>;
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

class OnADevice : public Batch {
 protected:
  void SetUp() override {
    Batch::SetUp();
    allocator_ = new FakeAllocator;  // c10 keeps the pointer
    c10::SetAllocator(c10::DeviceType::PrivateUse1, allocator_, 100);
  }
  FakeAllocator* allocator_ = nullptr;
  const c10::Device device_{c10::DeviceType::PrivateUse1, 3};
  const BatchOptions options_ = BatchOptions().with_device(device_);
};

TEST_F(OnADevice, TheCacheIsEmptiedBeforeEachRetry) {
  Sizes emptied;
  const auto fits_one = [&](std::int64_t n) {
    emptied.push_back(allocator_->emptied);
    if (n > 1) out_of_memory();
  };
  batch(4, fits_one, options_.with_cache(no_size_cache()));
  EXPECT_EQ(emptied, (Sizes{0, 1, 2})) << "and not when nothing has failed";
  batch(4, fits_one, options_.with_cache(no_size_cache()).with_empty_caches(false));
  EXPECT_EQ(allocator_->emptied, 2);
}

TEST_F(OnADevice, TheExceptionIsGoneBeforeTheCacheIsEmptied) {
  const auto throws_at_two = [&](std::int64_t rows) {
    if (rows == 1) return;
    const Held error;
    allocator_->held = error.memory;
    throw error;
  };
  batch(2, throws_at_two, options_);
  range(0, 2, 2, [&](std::int64_t begin, std::int64_t end) { throws_at_two(end - begin); }, options_);
  EXPECT_EQ(allocator_->emptied, 2);
}

TEST_F(OnADevice, SizesGoByWhatIsFreeAndWhatIsCached) {
  Sizes tried;
  for (const int call : {0, 1, 2}) {
    if (call == 1) allocator_->free += FakeAllocator::kGib / 8;  // the same step
    if (call == 2) allocator_->free += 2 * FakeAllocator::kGib;
    batch(2, [&](std::int64_t n) { tried.push_back(n); if (n > 1) out_of_memory(); }, options_);
  }
  EXPECT_EQ(tried, (Sizes{2, 1, 1, 2, 1}));
  const auto entries = default_size_cache().entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].device, device_);
  EXPECT_EQ(entries[0].available_bytes, 3 * FakeAllocator::kGib) << "2 GiB free, and 1 GiB that the allocator has and does not use";
  EXPECT_EQ(entries[1].available_bytes, 5 * FakeAllocator::kGib);
}

TEST_F(OnADevice, AnAllocatorThatDoesNotTellIsNoError) {
  allocator_->tells = false;
  EXPECT_EQ(batch(2, [](std::int64_t n) { return n; }, options_), 2);
  allocator_->in_use = false;
  EXPECT_EQ(batch(2, [](std::int64_t n) { if (n > 1) out_of_memory(); return n; }, options_), 1);
  EXPECT_EQ(allocator_->emptied, 0);
  for (const auto& entry : default_size_cache().entries()) EXPECT_EQ(entry.available_bytes, 0);
}

// What an error says, with the words that tell how to do it right.
template <class Error, class F>
std::string said(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "nothing";
}

TEST_F(Batch, MisuseSaysWhatWasExpected) {
  const auto one = [](std::int64_t) { FAIL() << "called"; };
  const auto two = [](std::int64_t, std::int64_t) { FAIL() << "called"; };
  const auto three = [](const at::Tensor&, std::int64_t, std::int64_t) { FAIL() << "called"; };
  const at::Tensor tensor = at::zeros({4, 2});
  using Value = c10::ValueError;
  EXPECT_EQ(said<Value>([&] { batch(0, one); }), "koila::batch: the initial size is 0; it is a number of rows, 1 or more");
  EXPECT_EQ(said<Value>([&] { range(0, 8, -1, two); }), "koila::range: the initial size is -1; it is a number of rows, 1 or more");
  EXPECT_EQ(said<Value>([&] { range(3, 2, 1, two); }), "koila::range: begin is 3 and end is 2; it goes up from begin, and stops before end");
  EXPECT_EQ(said<Value>([&] { chunked(tensor, 0, three); }), "koila::chunked: the initial size is 0; it is a number of rows, 1 or more");
  EXPECT_EQ(said<Value>([&] { chunked(at::Tensor(), 2, three); }),
            "koila::chunked: the tensor is undefined; pass one that holds the rows, such as torch::empty({rows, columns})");
  EXPECT_EQ(said<Value>([&] { chunked(at::scalar_tensor(1), 2, three); }), "koila::chunked: the tensor has no dimensions, and so no rows to cut it by");
  EXPECT_EQ(said<c10::IndexError>([&] { chunked(tensor, 2, three, 2); }), "koila::chunked: dimension 2 of a tensor of shape [4, 2]; it is from -2 to 1");
  EXPECT_EQ(said<c10::IndexError>([&] { chunked(tensor, 2, three, -3); }), "koila::chunked: dimension -3 of a tensor of shape [4, 2]; it is from -2 to 1");
  EXPECT_EQ(said<Value>([&] { batch(4, one, BatchOptions().with_minimum(5)); }),
            "koila::batch: BatchOptions::minimum is 5; it is a number of rows from 1 to the initial size, which is 4");
  EXPECT_EQ(said<Value>([&] { batch(4, one, BatchOptions().with_minimum(0)); }),
            "koila::batch: BatchOptions::minimum is 0; it is a number of rows from 1 to the initial size, which is 4");
  EXPECT_EQ(said<Value>([&] { batch(4, one, BatchOptions().with_grow_after(-1)); }),
            "koila::batch: BatchOptions::grow_after is -1; it is a number of calls, or 0 for never");
  EXPECT_EQ(said<Value>([&] { batch(4, one, BatchOptions().with_cpu_memory(-1)); }),
            "koila::batch: BatchOptions::cpu_memory is -1; it is a number of bytes, or 0 for no limit");
}

TEST_F(Batch, OptionsCanBeNamed) {
  Sizes tried;
  const auto never = [&](std::int64_t n) { tried.push_back(n); out_of_memory(); };
  EXPECT_THROW(batch(8, never, {.minimum = 4, .empty_caches = false, .cache = &fixed_}), c10::OutOfMemoryError);
  EXPECT_EQ(tried, (Sizes{8, 4}));
}

}  // namespace
}  // namespace koila
