#include "runtime/report/advice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "runtime/report/report.h"

namespace koila {
namespace {

constexpr std::int64_t kMi = 1 << 20;

// A run in float32 with Adam, whose peak is at the end of the forward pass.
ReportData plain_training() {
  DeviceFigures device;
  device.device = 0;
  device.allocations = 1000;
  device.peak_bytes = 1000 * kMi;
  device.peak_by_category[KOILA_PARAMETERS] = 100 * kMi;
  device.peak_by_category[KOILA_OPTIMIZER_STATE] = 200 * kMi;
  device.peak_by_category[KOILA_ACTIVATIONS] = 700 * kMi;
  device.holders = {{KOILA_ACTIVATIONS, "aten::linear", "", 600 * kMi, 60, 3}, {KOILA_ACTIVATIONS, "aten::relu", "", 100 * kMi, 40, 3},
                    {KOILA_OPTIMIZER_STATE, "aten::zeros_like", "", 200 * kMi, 80, 1}};
  ReportData data;
  data.devices = {device};
  data.events.steps = 50;
  return data;
}

// The advice that has these words in it, or one without text.
Advice find(const ReportData& data, const std::string& words) {
  for (const Advice& a : advice(data))
    if (a.text.find(words) != std::string::npos) return a;
  return {};
}
bool says(const ReportData& data, const std::string& words) { return !find(data, words).text.empty(); }
std::string first(const ReportData& data) { return next_thing_to_try(data); }

TEST(Advice, NothingIsKnownNothingIsSaid) {
  EXPECT_TRUE(advice({}).empty());
  EXPECT_EQ(first({}), "");
}

TEST(Advice, TheMostBytesFirst) {
  const auto all = advice(plain_training());
  ASSERT_EQ(all.size(), 3U);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(), [](const Advice& a, const Advice& b) { return a.saves_bytes > b.saves_bytes; }));
  EXPECT_EQ(first(plain_training()), all[0].text);
  EXPECT_NE(all[0].text.find("checkpoint"), std::string::npos);
}

TEST(Advice, MixedPrecisionForActivationsInFloat32) {
  ReportData data = plain_training();
  EXPECT_EQ(find(data, "mixed precision").saves_bytes, 300 * kMi) << "half of 700, less a copy of the weights of 50";
  data.facts.autocast = 50;
  EXPECT_FALSE(says(data, "mixed precision"));
  data.facts.autocast = 0;
  data.facts.half_parameters_bytes = 100 * kMi;
  EXPECT_FALSE(says(data, "mixed precision"));
  data.facts.half_parameters_bytes = 0;
  data.devices[0].peak_by_category[KOILA_ACTIVATIONS] = 90 * kMi;
  EXPECT_FALSE(says(data, "mixed precision")) << "the copies of the weights take more than the activations give";
}

TEST(Advice, CheckpointingWhereActivationsAreMostOfThePeak) {
  ReportData data = plain_training();
  EXPECT_EQ(find(data, "checkpointing").saves_bytes, 525 * kMi) << "2/sqrt(100) would remain, but no more than three quarters are promised";
  EXPECT_TRUE(says(data, "of 100 activations with 700.0 MiB, cut into 10 parts, about 175.0 MiB would remain"));
  data.devices[0].holders[0].count = 1;
  EXPECT_EQ(find(data, "checkpointing").saves_bytes, 100 * kMi) << "one tensor of 600 cannot be cut";
  data = plain_training();
  data.facts.checkpoints = 50;
  EXPECT_FALSE(says(data, "checkpointing"));
  data = plain_training();
  data.devices[0].peak_by_category[KOILA_ACTIVATIONS] = 250 * kMi;
  EXPECT_FALSE(says(data, "checkpointing")) << "the state is more";
  data = plain_training();
  data.devices[0].holders.clear();
  EXPECT_FALSE(says(data, "checkpointing")) << "how many there are is not known";
  data = plain_training();
  data.devices[0].holders[0].count = 2;
  data.devices[0].holders[1].count = 2;
  EXPECT_FALSE(says(data, "checkpointing")) << "nothing to be had from four tensors";
}

TEST(Advice, GradientsThatStayThroughTheForwardPass) {
  ReportData data = plain_training();
  EXPECT_FALSE(says(data, "set_to_none"));
  data.facts.kept_gradients = 4;
  data.facts.kept_gradients_bytes = 100 * kMi;
  EXPECT_FALSE(says(data, "set_to_none")) << "none at the peak";
  data.devices[0].peak_by_category[KOILA_GRADIENTS] = 90 * kMi;
  EXPECT_EQ(find(data, "set_to_none=True").saves_bytes, 90 * kMi);
  data.facts.kept_gradients = 1;
  EXPECT_FALSE(says(data, "set_to_none")) << "once is no habit";
}

TEST(Advice, AFusedOptimizerWhereTheUpdateIsThePeak) {
  ReportData data = plain_training();
  data.facts.foreach_bytes = 100 * kMi;
  EXPECT_FALSE(says(data, "fused")) << "the peak is elsewhere";
  data.devices[0].peak_by_category[KOILA_WORKSPACE] = 80 * kMi;
  EXPECT_EQ(find(data, "fused=True").saves_bytes, 80 * kMi);
  data.facts.fused_optimizer = 50;
  EXPECT_FALSE(says(data, "fused"));
  data.facts = {};
  EXPECT_FALSE(says(data, "fused")) << "the workspace is backward's";
}

TEST(Advice, SmallerStateByItsBytesPerParameter) {
  ReportData data = plain_training();
  EXPECT_EQ(find(data, "8-bit").saves_bytes, 150 * kMi);
  CategoryBytes& peak = data.devices[0].peak_by_category;
  peak[KOILA_OPTIMIZER_STATE] = 100 * kMi;
  EXPECT_EQ(find(data, "8-bit").saves_bytes, 75 * kMi) << "momentum";
  peak[KOILA_OPTIMIZER_STATE] = 50 * kMi;
  EXPECT_FALSE(says(data, "8-bit")) << "Adam in 8 bits";
  peak[KOILA_OPTIMIZER_STATE] = 200 * kMi;
  data.facts.half_parameters_bytes = 100 * kMi;
  EXPECT_EQ(find(data, "8-bit").saves_bytes, 100 * kMi) << "Adam in 16 bits";
  peak[KOILA_OPTIMIZER_STATE] = 100 * kMi;
  EXPECT_FALSE(says(data, "8-bit")) << "Adam in 8 bits, parameters in 16";
  peak[KOILA_OPTIMIZER_STATE] = 0;
  EXPECT_FALSE(says(data, "8-bit"));
}

TEST(Advice, NoGradForEvaluation) {
  ReportData data = plain_training();
  EXPECT_FALSE(says(data, "no_grad"));
  data.facts.graph_in_evaluation = 20;
  data.facts.graph_in_evaluation_bytes = 600 * kMi;
  EXPECT_EQ(find(data, "torch.no_grad()").saves_bytes, 600 * kMi);
  EXPECT_TRUE(says(data, "20 forward passes"));
  data.facts.graph_in_evaluation_bytes = kMi;
  EXPECT_FALSE(says(data, "no_grad")) << "not worth a change";
}

TEST(Advice, ExpandableSegmentsWhereFragmentationIsTheCause) {
  ReportData data = plain_training();
  EXPECT_FALSE(says(data, "expandable_segments"));
  data.facts.fragmented_bytes = 64 * kMi;
  EXPECT_NE(first(data).find("expandable_segments:True"), std::string::npos);
  EXPECT_EQ(advice(data)[0].saves_bytes, 64 * kMi);
  data.facts.expandable_segments = 1;
  EXPECT_FALSE(says(data, "expandable_segments"));
}

TEST(Advice, LeaksComeFirst) {
  ReportData data = plain_training();
  data.facts.fragmented_bytes = 64 * kMi;
  Leak leak;
  leak.category = KOILA_ACTIVATIONS;
  leak.op = "aten::linear";
  leak.where = "train.py:12 in forward\ntrain.py:40 in <module>";
  leak.holder = "a list, `outputs` in train.py";
  leak.bytes = 300 * kMi;
  leak.bytes_per_step = 3 * kMi;
  data.leaks = {leak};
  EXPECT_EQ(first(data), "a list, `outputs` in train.py: 300.0 MiB in tensors of aten::linear add up, 3.0 MiB a step, made at train.py:12 in forward; "
                         "keep numbers (.item()) or detached copies, and clear what holds them");
  EXPECT_EQ(advice(data)[0].saves_bytes, 300 * kMi);
  data.leaks[0].holder = data.leaks[0].op = data.leaks[0].where = "";
  data.leaks[0].category = KOILA_OTHER;
  EXPECT_EQ(first(data), "something that the program keeps: 300.0 MiB in tensors add up, 3.0 MiB a step; clear what holds them, or keep fewer");
  for (int i = 0; i < 9; ++i) {
    data.leaks.push_back(leak);
    data.leaks.back().holder = "list " + std::to_string(i);
  }
  const auto all = advice(data);
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const Advice& a) { return a.text.find("add up") != std::string::npos; }), 3);
}

TEST(Advice, LeaksOfOneHolderAreOne) {
  ReportData data;
  for (const char* op : {"aten::linear", "aten::relu", "aten::linear", "aten::gelu", "aten::add"}) {
    Leak& leak = data.leaks.emplace_back();
    leak.holder = "`total`";
    leak.op = op;
    leak.category = KOILA_ACTIVATIONS;
    leak.bytes = 10 * kMi;
    leak.bytes_per_step = kMi;
  }
  Leak& graph = data.leaks.emplace_back();
  graph.holder = "`total`";
  graph.graph_nodes = 500;
  graph.bytes = kMi;
  ASSERT_EQ(advice(data).size(), 1U);
  EXPECT_EQ(first(data), "`total`: 50.0 MiB in tensors of aten::linear, aten::relu, aten::gelu and others add up, 5.0 MiB a step; "
                         "keep numbers (.item()) or detached copies, and clear what holds them");
}

TEST(Advice, AGraphThatGrowsIsNoTensor) {
  ReportData data;
  Leak leak;
  leak.holder = "a local variable `total` in train.py:12";
  leak.graph_nodes = 1200;
  leak.bytes = 2 * kMi;
  data.leaks = {leak};
  EXPECT_EQ(first(data), "a local variable `total` in train.py:12: keeps the autograd graph of every step, 1200 nodes by now (2.0 MiB of host memory); "
                         "add numbers up instead (loss.item(), or loss.detach())");
}

TEST(Advice, NoMemoryAdviceWhereABudgetWasNeverReached) {
  ReportData data = plain_training();
  data.devices[0].budget_bytes = 4000 * kMi;
  ASSERT_EQ(advice(data).size(), 1U);
  EXPECT_EQ(first(data), "nothing to do: the budget was never reached");
  data.devices[0].failed_allocations = 1;
  EXPECT_TRUE(says(data, "mixed precision"));
  EXPECT_EQ(find(data, "mixed precision").saves_bytes, 0) << "the budget cut the peak: nobody knows what the activations would be";
  data.devices[0].failed_allocations = 0;
  data.leaks.resize(1);
  data.leaks[0].holder = "a list";
  data.leaks[0].bytes = kMi;
  EXPECT_EQ(advice(data).size(), 1U);
  EXPECT_NE(first(data).find("a list"), std::string::npos);
}

TEST(Advice, WhatTrackModeCannotSeeIsNotAdvised) {
  ReportData data = plain_training();
  data.mode = KOILA_MODE_TRACK;
  EXPECT_TRUE(advice(data).empty());
  data.events.refusals = 1;
  EXPECT_NE(first(data).find("KOILA_MODE=rescue"), std::string::npos);
}

// Rescued in every step, with an operator at full batch.
ReportData rescued() {
  ReportData data;
  data.events.steps = 20;
  data.events.rescues = 19;
  data.events.rungs[KOILA_RUNG_SPLIT].count = 19;
  data.events.region_totals.count = 20;
  data.events.last_region = {.device = 0, .batch = 512, .micro_batch = 128, .runs = 4, .forward_only = 0, .halvings = 0, .operators = 30, .seconds = 0.25};
  return data;
}

TEST(Advice, RescuedAnewInEachStep) {
  ReportData data = rescued();
  EXPECT_EQ(first(data), "KOILA_MICROBATCH=128, since most steps had to be rescued anew");
  data.microbatch = 128;
  EXPECT_FALSE(says(data, "KOILA_MICROBATCH"));
  data = rescued();
  data.events.rungs[KOILA_RUNG_SPLIT].count = 2;
  EXPECT_FALSE(says(data, "KOILA_MICROBATCH"));
  data = rescued();
  data.events.refusals = 1;
  EXPECT_FALSE(says(data, "KOILA_MICROBATCH"));
}

TEST(Advice, TheNextRunStartsFromWhatThisOneLearned) {
  ReportData data = rescued();
  EXPECT_TRUE(says(data, "KOILA_CACHE"));
  data.facts.size_cache = 1;
  EXPECT_FALSE(says(data, "KOILA_CACHE"));
  data.facts.size_cache = 0;
  data.microbatch = 128;
  EXPECT_FALSE(says(data, "KOILA_CACHE"));
  EXPECT_FALSE(says(plain_training(), "KOILA_CACHE"));
}

TEST(Advice, WhereAllIsWellItSaysSoAndStops) {
  ReportData data = rescued();
  data.devices = plain_training().devices;
  data.devices[0].budget_bytes = 1000 * kMi;
  data.events.rungs[KOILA_RUNG_SPLIT] = {2, 0.25};
  data.seconds = 60;
  ASSERT_EQ(advice(data).size(), 1U);
  EXPECT_EQ(first(data), "nothing to do: every step came through, and running out cost 0.2 s in all");
  data.seconds = 1;
  EXPECT_NE(first(data).find("KOILA_CACHE"), std::string::npos) << "a quarter of the run went into running out";
  data.seconds = 60;
  data.events.last_region.micro_batch = 1;
  EXPECT_NE(first(data).find("checkpointing"), std::string::npos) << "512 passes over one row are slow";
  EXPECT_EQ(first(data).find("MiB"), std::string::npos) << "no figure comes from a peak that the budget has cut";
}

TEST(Advice, WhatARefusalAsksFor) {
  ReportData data = plain_training();
  data.events.refusals = 1;
  data.events.oom_events.resize(1);
  data.events.oom_events[0].outcome = KOILA_REFUSED;
  data.events.oom_events[0].reason = "a hook (register_hook, retain_grad) hangs on a tensor inside the step, and would need that tensor's full gradient.";
  EXPECT_NE(first(data).find("take register_hook() and retain_grad() off"), std::string::npos) << first(data);
  data.events.oom_events[0].reason = "create_graph=True: the statistics of a whole batch (batch norm; a std or var over the rows) cannot be differentiated twice in micro-batches.";
  EXPECT_NE(first(data).find("a smaller batch"), std::string::npos) << first(data);
}

TEST(Advice, ARuleForTheOperatorAtFullBatch) {
  ReportData data = rescued();
  data.events.full_batch = {{"aten::sort", {40, 2 * kMi}}, {"aten::cumsum", {1, 4 * kMi}}};
  EXPECT_EQ(find(data, "aten::cumsum").saves_bytes, 3 * kMi) << "all but 128 of 512 rows";
  EXPECT_TRUE(says(data, "would let it run in micro-batches too"));
  data.events.refusals = 1;
  EXPECT_EQ(first(data), "a rule for aten::cumsum (KOILA_RULES), which kept its whole batch in memory, or a larger budget");
  data.events.full_batch.clear();
  EXPECT_FALSE(says(data, "a rule"));
  EXPECT_TRUE(says(data, "a larger budget, or a change that the refusal's reason names"));
}

TEST(Advice, ARefusalAsksForALowerPeakBeforeALargerBudget) {
  ReportData data = plain_training();
  data.events.refusals = 1;
  EXPECT_NE(first(data).find("checkpointing"), std::string::npos);
  EXPECT_NE(advice(data).back().text.find("a larger budget"), std::string::npos);
}

TEST(Advice, WhatWasKeptOutside) {
  ReportData data = rescued();
  data.events.rungs[KOILA_RUNG_OFFLOAD].count = 2;
  EXPECT_NE(first(data).find("in 2 steps"), std::string::npos);
  EXPECT_FALSE(says(data, "KOILA_MICROBATCH"));
}

TEST(Advice, OfTheDeviceThatIsFullest) {
  ReportData data = plain_training();
  DeviceFigures host;
  host.peak_by_category[KOILA_ACTIVATIONS] = 10 * kMi;
  data.devices.insert(data.devices.begin(), host);
  EXPECT_EQ(find(data, "mixed precision").saves_bytes, 300 * kMi);
}

}  // namespace
}  // namespace koila
