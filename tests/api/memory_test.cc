// The C++ API about memory in a process without koila. tests/api/test_memory.py runs what needs it.
#include <ATen/ATen.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <gtest/gtest.h>
#include <koila/torch.h>
#include <torch/nn.h>
#include <torch/script.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace koila {

static bool operator==(const Tally& a, const Tally& b) { return a.tensors == b.tensors && a.elements == b.elements && a.bytes == b.bytes; }
static std::ostream& operator<<(std::ostream& out, const Tally& t) { return out << t.tensors << " tensors, " << t.elements << " elements, " << t.bytes << " bytes"; }

namespace {

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(WithoutKoila, IsSaid) {
  EXPECT_FALSE(loaded());
  EXPECT_EQ(version(), "");
  for (const std::string& text : {message_of([] { ScopedBudget budget(at::kCPU, 1); }), message_of([] { snapshot(at::kCPU); }), message_of([] { report("r.json"); })}) {
    EXPECT_NE(text.find("koila is not in this process; run the program with LD_PRELOAD=libkoila.so"), std::string::npos) << text;
  }
}

TEST(WithoutKoila, OfTheCpuNothingIsKnown) {
  const Memory now = memory(at::kCPU);
  EXPECT_EQ(now.source, Memory::Source::kNobody);
  EXPECT_FALSE(now.live || now.peak || now.run_peak || now.reserved || now.budget || now.outside || now.by_category || now.allocations);
  ScopedTrack track(at::kCPU);
  EXPECT_FALSE(track.at_begin() || track.peak() || track.growth());
  track.stop();
  EXPECT_FALSE(track.at_begin() || track.peak() || track.growth());
  reset_peak(at::kCPU);
}

TEST(WithoutKoila, NothingHappens) {
  Subscription subscription = on_event(EventKind::kOutOfMemory | EventKind::kStep, [](const Event&) { FAIL(); });
  EXPECT_FALSE(subscription);
  subscription = Subscription();
  subscription.cancel();
}

TEST(Misuse, IsSaid) {
  EXPECT_THROW(ScopedBudget(at::kCPU, 0), c10::ValueError);
  EXPECT_THROW(on_event(EventKind::kStep, nullptr), c10::ValueError);
  Snapshot cuda;
  cuda.device = c10::Device(at::kCUDA, 0);
  EXPECT_THROW(cuda - Snapshot(), c10::ValueError);
}

// An accelerator with a caching allocator whose figures are set by hand.
class Accelerator : public c10::DeviceAllocator {
 public:
  static Accelerator& get() {
    static auto* one = [] {
      static c10::impl::FakeGuardImpl<c10::DeviceType::PrivateUse1> guard;
      c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::DeviceType::PrivateUse1)].store(&guard);
      auto* made = new Accelerator;
      c10::SetAllocator(c10::DeviceType::PrivateUse1, made);
      return made;
    }();
    return *one;
  }
  void add(std::int64_t bytes, int device = 0) {
    live_[device] += bytes;
    peak_[device] = std::max(peak_[device], live_[device]);
  }
  void pass(std::int64_t bytes, int device = 0) {
    add(bytes, device);
    add(-bytes, device);
  }

  c10::DataPtr allocate(std::size_t) override { return {}; }
  void copy_data(void*, const void*, std::size_t) const override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = live_[device];
    stats.allocated_bytes[0].peak = peak_[device];
    stats.reserved_bytes[0].current = 4096;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { peak_[device] = live_[device]; }

 private:
  std::int64_t live_[2] = {}, peak_[2] = {};
};

const c10::Device kFirst(c10::DeviceType::PrivateUse1, 0), kSecond(c10::DeviceType::PrivateUse1, 1);

TEST(Memory, OfAnAcceleratorIsTheAllocators) {
  Accelerator& on = Accelerator::get();
  reset_peak(kFirst);
  on.add(100);
  on.pass(50);
  const Memory now = memory(kFirst);
  EXPECT_EQ(now.source, Memory::Source::kAllocator);
  EXPECT_EQ(now.live, 100);
  EXPECT_EQ(now.peak, 150);
  EXPECT_EQ(now.reserved, 4096);
  EXPECT_FALSE(now.run_peak || now.budget || now.outside || now.by_category);
  reset_peak(kFirst);
  EXPECT_EQ(memory(kFirst).peak, 100);
  on.add(-100);
}

TEST(ScopedTrack, WithinAndAcrossEachOther) {
  Accelerator& on = Accelerator::get();
  on.pass(1 << 20);
  on.add(10);
  const ScopedTrack outer(kFirst);
  on.pass(90);
  auto across = std::make_unique<ScopedTrack>(kFirst);
  {
    const ScopedTrack inner(kFirst);
    on.pass(50);
    on.add(5);
    EXPECT_EQ(inner.peak(), 60);
    EXPECT_EQ(inner.growth(), 5);
  }
  ScopedTrack last(kFirst);
  on.pass(65);
  across->stop();
  on.pass(200);
  reset_peak(kFirst);
  EXPECT_EQ(outer.at_begin(), 10);
  EXPECT_EQ(outer.peak(), 215);
  EXPECT_EQ(across->peak(), 80) << "stopped";
  EXPECT_EQ(across->growth(), 5);
  across.reset();
  EXPECT_EQ(last.at_begin(), 15);
  EXPECT_EQ(last.peak(), 215);
  on.add(-15);
  EXPECT_EQ(last.growth(), -15);
}

TEST(ScopedTrack, LeavesThePeakOfTheDeviceAlone) {
  Accelerator& on = Accelerator::get();
  reset_peak(kFirst);
  on.pass(700);
  { const ScopedTrack track(kFirst); }
  EXPECT_EQ(memory(kFirst).peak, 700);
  reset_peak(kFirst);
  EXPECT_EQ(memory(kFirst).peak, 0);
}

TEST(ScopedTrack, DevicesAreApart) {
  Accelerator& on = Accelerator::get();
  const ScopedTrack first(kFirst), second(kSecond);
  on.pass(100, 1);
  EXPECT_EQ(first.peak(), first.at_begin());
  EXPECT_EQ(second.peak(), 100);
}

TEST(Count, ModulesWithinAndWhatIsTrained) {
  torch::nn::Sequential model(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3));
  model->parameters()[0].set_requires_grad(false);
  const Count size = count(model);
  EXPECT_EQ(size.parameters, (Tally{4, 12 + 3 + 3 + 3, 84}));
  EXPECT_EQ(size.trainable, (Tally{3, 9, 36}));
  EXPECT_EQ(size.buffers, (Tally{3, 7, 3 * 4 + 3 * 4 + 8}));
  EXPECT_EQ(size.total(), (Tally{7, 28, 116}));
  ASSERT_EQ(size.places.size(), 2U);
  EXPECT_EQ(size.places[0].dtype, at::kFloat);
  EXPECT_EQ(size.places[0].tally, (Tally{6, 27, 108}));
  EXPECT_EQ(size.places[1].dtype, at::kLong);
  EXPECT_EQ(size.places[1].tally, (Tally{1, 1, 8}));
  EXPECT_EQ(count(*model).total(), size.total());
  EXPECT_EQ(count(std::shared_ptr<torch::nn::Module>(model.ptr())).total(), size.total());
}

struct Shares : torch::nn::Module {
  Shares() {
    const at::Tensor weight = register_parameter("weight", torch::ones({4, 6}));
    register_parameter("again", weight);
    register_parameter("transposed", weight.detach().t());
    register_buffer("seen_as_buffer", weight.detach());
    register_buffer("a_row_of_it", weight.detach()[1]);
    register_buffer("expanded", torch::ones({1, 8}).expand({100, 8}));
    register_buffer("none_at_all", torch::empty({0}));
    register_buffer("nor_here", torch::empty({0}));
    register_buffer("half", torch::ones({5}, at::kHalf));
    register_buffer("sparse", torch::eye(3).to_sparse());
    register_buffer("meta", torch::ones({10}, at::TensorOptions(at::kMeta)));
    register_buffer("undefined", at::Tensor());
  }
};

TEST(Count, WhatIsSharedCountsOnce) {
  const Count size = count(Shares());
  EXPECT_EQ(size.parameters, (Tally{1, 24, 96}));
  const std::int64_t sparse = 3 * (2 * 8 + 4);
  EXPECT_EQ(size.buffers, (Tally{7, 6 + 800 + 5 + 9 + 10, 24 + 32 + 10 + sparse + 40}));
  EXPECT_EQ(size.places.back().device, c10::Device(at::kMeta));
}

TEST(Count, OfTorchScript) {
  torch::jit::Module inner("inner"), outer("outer");
  const at::Tensor weight = torch::ones({2, 2});
  inner.register_parameter("w", weight, /*is_buffer=*/false);
  inner.register_buffer("b", torch::ones({3}));
  outer.register_module("inner", inner);
  outer.register_parameter("tied", weight, /*is_buffer=*/false);
  const Count size = count(outer);
  EXPECT_EQ(size.parameters, (Tally{1, 4, 16}));
  EXPECT_EQ(size.buffers, (Tally{1, 3, 12}));
}

Snapshot snapshot_of(std::vector<Snapshot::Group> groups) { return {at::kCPU, std::move(groups), false}; }

TEST(Snapshot, DifferenceIsSortedByBytes) {
  const Snapshot before = snapshot_of({{Category::kWorkspace, "aten::zeros_like", "", 3 << 20, 3}, {Category::kParameters, "aten::empty", "", 1000, 2}});
  const Snapshot after = snapshot_of({{Category::kOptimizerState, "aten::zeros_like", "", 3 << 20, 3}, {Category::kParameters, "aten::empty", "", 1000, 2},
                                      {Category::kInputs, "aten::randn", "a.cc:3 in f\nb.cc:4 in g", 600, 1}});
  const Snapshot more = after - before;
  EXPECT_EQ(more.bytes(), 600);
  EXPECT_EQ(more.count(), 1);
  std::ostringstream text;
  text << more;
  EXPECT_EQ(text.str(), "cpu: +600 B in +1 tensors\n"
                        "  +3.0 MiB  +3  optimizer state  aten::zeros_like\n"
                        "  +600 B    +1  inputs           aten::randn  a.cc:3 in f\n"
                        "  -3.0 MiB  -3  workspace        aten::zeros_like\n");
  std::ostringstream nothing;
  nothing << after - after;
  EXPECT_EQ(nothing.str(), "cpu: 0 B in 0 tensors\n");
}

TEST(Snapshot, PrintsWhatWeighsMost) {
  std::vector<Snapshot::Group> groups;
  for (int i = 0; i < 30; ++i) groups.push_back({Category::kActivations, "op" + std::to_string(i), "", 3000 - 200 * i, 1});
  Snapshot many = snapshot_of(groups);
  many.is_difference = true;
  std::ostringstream out;
  out << many;
  const std::string text = out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 22);
  EXPECT_NE(text.find("op0\n"), std::string::npos);
  EXPECT_NE(text.find("op29\n"), std::string::npos) << "the most that went";
  EXPECT_EQ(text.find("op15\n"), std::string::npos) << "nothing came or went of it";
  EXPECT_NE(text.find("  and 10 smaller groups\n"), std::string::npos);
}

}  // namespace
}  // namespace koila
