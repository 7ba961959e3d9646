#include "runtime/record/record.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "runtime/record/layout.h"
#include "runtime/record/process.h"
#include "runtime/record/writer.h"

namespace koila {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMi = 1 << 20;

// A folder of its own, which is TMPDIR meanwhile.
class Record : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "koila-record-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    if (const char* before = std::getenv("TMPDIR")) before_ = before;
    setenv("TMPDIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    if (before_.empty()) unsetenv("TMPDIR");
    else setenv("TMPDIR", before_.c_str(), 1);
    fs::remove_all(folder_);
  }

  std::string path(const std::string& name = "a.koila") const { return (folder_ / name).string(); }

  std::unique_ptr<RecordWriter> open(const std::string& name = "a.koila", std::int64_t pid = getpid()) {
    ReportData identity;
    identity.mode = KOILA_MODE_LAZY;
    identity.microbatch = 3;
    identity.pid = pid;
    identity.host = "node7";
    identity.command = "python train.py";
    identity.torch_version = "2.13.0";
    return RecordWriter::open(path(name), identity, clock_, problem_);
  }

  fs::path folder_;
  std::string before_;
  RunClock clock_;
  std::string problem_;
};

OomEvent rescue(int i) {
  OomEvent event;
  event.op = "aten::linear";
  event.requested_bytes = i;
  event.micro_batch = 16;
  event.batch = 64;
  event.rung = KOILA_RUNG_SPLIT;
  event.seconds = 0.5;
  event.at = i;
  return event;
}

DeviceFigures figures(int device) {
  DeviceFigures f;
  f.device = device;
  f.live_bytes = 5 * kMi;
  f.peak_bytes = 90 * kMi;
  f.budget_bytes = 100 * kMi;
  f.allocations = 10;
  f.frees = 9;
  f.outside_bytes = 1;
  f.outside_peak_bytes = 2;
  f.outside_written_bytes = 3;
  f.live_by_category[KOILA_PARAMETERS] = 4 * kMi;
  f.peak_by_category[KOILA_ACTIVATIONS] = 80 * kMi;
  f.peak_seconds = 1.5;
  f.peak_step = 4;
  f.failed_allocations = 5;
  f.tensor_bytes = 6;
  f.tensor_peak_bytes = 7;
  f.used_bytes = 8;
  f.untracked_bytes = 9;
  return f;
}

koila_region_event region(std::int64_t batch) {
  koila_region_event event = {};
  event.device = KOILA_CPU;
  event.batch = batch;
  return event;
}

// Everything that there is to write.
void fill(RecordWriter& writer, Events& events) {
  events.write_to(&writer);
  for (int i = 1; i <= 3; ++i) events.add_oom(rescue(i));
  events.add_oom(rescue(2));
  OomEvent refusal = rescue(4);
  refusal.outcome = KOILA_REFUSED;
  refusal.reason = "one row does not fit";
  events.add_oom(refusal);
  events.add_region({.device = 1, .batch = 64, .micro_batch = 16, .runs = 4, .forward_only = 1, .halvings = 2, .operators = 9, .seconds = 0.25});
  events.add_full_batch("aten::sort", 30);
  events.add_full_batch("aten::sort", 20);
  events.add_full_batch("aten::cumsum", 5);
  events.add_note("first");
  events.add_note("second");
  events.add_step();
  for (const int device : {1, -1}) {
    writer.write_device(figures(device));
    writer.write_device(figures(device));  // of either twin
    writer.write_sizes(device, std::vector<std::int64_t>(kSizeClasses, 2));
    writer.write_holders(device, {{KOILA_PARAMETERS, "aten::addmm", "train.py:31 in forward", 10, 2, 1}, {KOILA_GRADIENTS, "", "", 5, 1, 0}});
  }
  writer.write_sources({{1, MemoryKind::kPool, "c10_cuda", 1, 2, 3, 4}});
  writer.write_leaks({{1, KOILA_ACTIVATIONS, "aten::relu", "train.py:3", "a list named `outputs`", 100, 10, 7}});
  ProgramFacts facts;
  facts.autocast = 11;
  facts.fragmented_bytes = 12;
  writer.write_facts(facts);
}

TEST_F(Record, SaysAllThatWasWritten) {
  const auto writer = open();
  ASSERT_NE(writer, nullptr) << problem_;
  Events events;
  fill(*writer, events);
  Timeline timeline;
  timeline.add({1, 10, {}});
  timeline.write_to(writer->timeline_of(1));
  timeline.add({2, 30, {1, 2, 3}});
  StepSeries steps;
  steps.write_to(writer->steps());
  steps.add({.seconds = 1, .step = 1, .device = 1, .live_bytes = 2, .peak_bytes = 3, .batch = 4, .micro_batch = 5, .rescues = 6});

  const ReadRecord read = read_record(path());
  ASSERT_TRUE(read.data) << read.problem;
  EXPECT_EQ(read.problem, "");
  const ReportData& data = *read.data;
  EXPECT_EQ(data.mode, KOILA_MODE_LAZY);
  EXPECT_EQ(data.microbatch, 3);
  EXPECT_EQ(data.pid, getpid());
  EXPECT_EQ(data.host, "node7");
  EXPECT_EQ(data.command, "python train.py");
  EXPECT_EQ(data.torch_version, "2.13.0");
  EXPECT_EQ(data.started, clock_.started());
  EXPECT_EQ(data.end, RunEnd::kRunning);
  EXPECT_GE(data.seconds, 0);

  const EventList expected = events.snapshot();
  EXPECT_EQ(data.events.steps, 1);
  EXPECT_EQ(data.events.rescues, 4);
  EXPECT_EQ(data.events.refusals, 1);
  ASSERT_EQ(data.events.rungs.size(), 2U);
  EXPECT_EQ(data.events.rungs.at(KOILA_RUNG_SPLIT).count, 4);
  EXPECT_EQ(data.events.rungs.at(KOILA_RUNG_SPLIT).seconds, 2.0);
  EXPECT_EQ(data.events.rungs.at(0).count, 1);
  ASSERT_EQ(data.events.oom_events.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(data.events.oom_events[i].is_like(expected.oom_events[i])) << i;
    EXPECT_EQ(data.events.oom_events[i].count, expected.oom_events[i].count);
    EXPECT_EQ(data.events.oom_events[i].at, expected.oom_events[i].at);
    EXPECT_EQ(data.events.oom_events[i].seconds, expected.oom_events[i].seconds);
  }
  EXPECT_EQ(data.events.oom_events[1].count, 2);
  ASSERT_EQ(data.events.regions.size(), 1U);
  EXPECT_EQ(data.events.regions[0].operators, 9);
  EXPECT_EQ(data.events.last_region.halvings, 2);
  EXPECT_EQ(data.events.region_totals.runs, 4);
  EXPECT_EQ(data.events.full_batch.at("aten::sort").count, 2);
  EXPECT_EQ(data.events.full_batch.at("aten::sort").bytes, 30);
  EXPECT_EQ(data.events.full_batch.size(), 2U);
  EXPECT_EQ(data.events.notes, (std::vector<std::string>{"first", "second"}));

  ASSERT_EQ(data.devices.size(), 2U);
  EXPECT_EQ(data.devices[0].device, KOILA_CPU) << "in order";
  const DeviceFigures& device = data.devices[1];
  const DeviceFigures wanted = figures(1);
  EXPECT_EQ(device.device, 1);
  EXPECT_EQ(device.peak_bytes, wanted.peak_bytes);
  EXPECT_EQ(device.budget_bytes, wanted.budget_bytes);
  EXPECT_EQ(device.allocations, wanted.allocations);
  EXPECT_EQ(device.frees, wanted.frees);
  EXPECT_EQ(device.outside_bytes, wanted.outside_bytes);
  EXPECT_EQ(device.outside_peak_bytes, wanted.outside_peak_bytes);
  EXPECT_EQ(device.outside_written_bytes, wanted.outside_written_bytes);
  EXPECT_EQ(device.live_by_category, wanted.live_by_category);
  EXPECT_EQ(device.peak_by_category, wanted.peak_by_category);
  EXPECT_EQ(device.peak_seconds, wanted.peak_seconds);
  EXPECT_EQ(device.peak_step, wanted.peak_step);
  EXPECT_EQ(device.failed_allocations, wanted.failed_allocations);
  EXPECT_EQ(device.tensor_bytes, wanted.tensor_bytes);
  EXPECT_EQ(device.tensor_peak_bytes, wanted.tensor_peak_bytes);
  EXPECT_EQ(device.used_bytes, wanted.used_bytes);
  EXPECT_EQ(device.untracked_bytes, wanted.untracked_bytes);
  EXPECT_EQ(device.sizes, std::vector<std::int64_t>(kSizeClasses, 2));
  ASSERT_EQ(device.holders.size(), 2U);
  EXPECT_EQ(device.holders[0].op, "aten::addmm");
  EXPECT_EQ(device.holders[0].where, "train.py:31 in forward");
  EXPECT_EQ(device.holders[0].category, KOILA_PARAMETERS);
  EXPECT_EQ(device.holders[0].bytes, 10);
  ASSERT_EQ(device.timeline.size(), 2U);
  EXPECT_EQ(device.timeline[1].live_bytes, 30);
  EXPECT_EQ(device.timeline[1].by_category[2], 3);

  ASSERT_EQ(data.sources.size(), 1U);
  EXPECT_EQ(data.sources[0].library, "c10_cuda");
  EXPECT_EQ(data.sources[0].kind, MemoryKind::kPool);
  ASSERT_EQ(data.leaks.size(), 1U);
  EXPECT_EQ(data.leaks[0].holder, "a list named `outputs`");
  EXPECT_EQ(data.leaks[0].bytes_per_step, 10);
  EXPECT_EQ(data.facts.autocast, 11);
  EXPECT_EQ(data.facts.fragmented_bytes, 12);
  ASSERT_EQ(data.steps.size(), 1U);
  EXPECT_EQ(data.steps[0].rescues, 6);
  EXPECT_EQ(data.steps[0].micro_batch, 5);
}

TEST_F(Record, WhatWasThereBeforeTheRecordIsInItToo) {
  Events events;
  events.add_oom(rescue(1));
  events.add_note("early");
  events.add_full_batch("aten::sort", 1);
  events.add_region(region(2));
  events.add_step();
  const auto writer = open();
  events.write_to(writer.get());
  const EventList read = read_record(path()).data.value().events;
  EXPECT_EQ(read.oom_events.size(), 1U);
  EXPECT_EQ(read.notes.size(), 1U);
  EXPECT_EQ(read.full_batch.size(), 1U);
  EXPECT_EQ(read.regions.size(), 1U);
  EXPECT_EQ(read.steps, 1);
}

TEST_F(Record, ListsAreBoundedAsInMemory) {
  const auto writer = open();
  Events events;
  events.write_to(writer.get());
  for (int i = 0; i < 1500; ++i) {
    events.add_oom(rescue(i));
    events.add_region(region(i));
    events.add_full_batch("op" + std::to_string(i), i);
    events.add_note("note " + std::to_string(i));
  }
  const ReadRecord read = read_record(path());
  EXPECT_EQ(read.problem, "");
  const EventList list = read.data.value().events;
  EXPECT_EQ(list.oom_events.size(), kMaxOomEvents);
  EXPECT_EQ(list.regions.size(), kMaxRegions);
  EXPECT_EQ(list.full_batch.size(), kMaxFullBatchOps);
  EXPECT_EQ(list.notes.size(), kMaxNotes);
  EXPECT_EQ(list.rescues, 1500);
}

TEST_F(Record, ALongTimelineIsTheOneInMemory) {
  const auto writer = open();
  Timeline timeline;
  timeline.write_to(writer->timeline_of(0));
  StepSeries steps;
  steps.write_to(writer->steps());
  for (int i = 1; i <= 30'000; ++i) {
    timeline.add({i * 0.01, (i % 9) * kMi, {}});
    steps.add({.seconds = i * 0.01, .step = i, .peak_bytes = i});
  }
  const ReportData data = read_record(path()).data.value();
  const std::vector<Sample> samples = timeline.snapshot();
  ASSERT_EQ(data.devices.at(0).timeline.size(), samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(data.devices[0].timeline[i].seconds, samples[i].seconds);
  ASSERT_EQ(data.steps.size(), steps.snapshot().size());
  EXPECT_EQ(data.steps.back().step, 30'000);
  EXPECT_EQ(data.devices[0].peak_bytes, 8 * kMi) << "the timeline knows more than figures that were not written since";
}

TEST_F(Record, LongTextsAreCutBetweenCharacters) {
  const auto writer = open();
  Events events;
  events.write_to(writer.get());
  std::string umlauts;
  for (int i = 0; i < 400; ++i) umlauts += "\xc3\xa4";
  events.add_note(umlauts);
  const std::string note = read_record(path()).data.value().events.notes.at(0);
  EXPECT_EQ(note, umlauts.substr(0, 510));
}

TEST_F(Record, TellsHowTheRunEnded) {
  auto writer = open("ended.koila");
  writer->write_end({});
  EXPECT_EQ(read_record(path("ended.koila")).data.value().end, RunEnd::kExited);

  const pid_t child = fork();
  if (child == 0) {
    open("child.koila");
    _exit(0);
  }
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(read_record(path("child.koila")).data.value().end, RunEnd::kCutOff) << "dead, if not yet waited for";
  waitpid(child, nullptr, 0);
  EXPECT_EQ(read_record(path("child.koila")).data.value().end, RunEnd::kCutOff);

  // A process of that number which is not the one that wrote.
  open("other.koila", 1);
  EXPECT_EQ(read_record(path("other.koila")).data.value().end, RunEnd::kRunning);
  std::fstream file(path("other.koila"), std::ios::in | std::ios::out | std::ios::binary);
  record::Twin<record::Identity> identity;
  file.seekg(offsetof(record::Base, identity));
  file.read(reinterpret_cast<char*>(&identity), sizeof identity);
  record::Identity older = *identity.read();
  older.birth -= 1;
  identity.write(older);
  file.seekp(offsetof(record::Base, identity));
  file.write(reinterpret_cast<const char*>(&identity), sizeof identity);
  file.close();
  EXPECT_EQ(read_record(path("other.koila")).data.value().end, RunEnd::kCutOff);
}

TEST_F(Record, BirthIsOfTheProcess) {
  EXPECT_NE(record::birth_of(getpid()), 0U);
  EXPECT_EQ(record::birth_of(getpid()), record::birth_of(getpid()));
  EXPECT_EQ(record::birth_of(1 << 30), 0U);
  // A name that looks like the fields after it.
  prctl(PR_SET_NAME, "x) Z 1 2 (");
  EXPECT_NE(record::birth_of(getpid()), 0U);
}

TEST_F(Record, TakesNobodyElsesPlace) {
  std::ofstream(path("thesis.tex")) << "all my work";
  EXPECT_EQ(open("thesis.tex"), nullptr);
  EXPECT_EQ(problem_, "there is a file that is no record");
  EXPECT_EQ(fs::file_size(path("thesis.tex")), 11U);

  fs::create_directory(path("folder"));
  EXPECT_EQ(open("folder"), nullptr);
  fs::create_symlink(path("thesis.tex"), path("link"));
  EXPECT_EQ(open("link"), nullptr);
  EXPECT_EQ(open("nowhere/a.koila"), nullptr);
  EXPECT_EQ(problem_, "No such file or directory");

  const auto first = open("shared.koila", getppid());
  ASSERT_NE(first, nullptr) << problem_;
  EXPECT_EQ(open("shared.koila"), nullptr);
  EXPECT_NE(problem_.find("which is running"), std::string::npos) << problem_;

  std::ofstream(path("empty.koila"));
  EXPECT_NE(open("empty.koila"), nullptr) << problem_;
  EXPECT_NE(open("empty.koila"), nullptr) << "its own: " << problem_;
  for (const auto& entry : fs::directory_iterator(folder_)) EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
}

TEST_F(Record, WhoLosesItsFileWritesOn) {
  const auto first = open();
  const auto second = open();  // has the path now
  Events events;
  fill(*first, events);
  EXPECT_EQ(read_record(path()).data.value().events.steps, 0);
  first->remove();
  EXPECT_TRUE(fs::exists(path())) << "it is another's";
  second->remove();
  EXPECT_FALSE(fs::exists(path()));
  Timeline timeline;
  timeline.write_to(second->timeline_of(0));
  for (int i = 0; i < 5000; ++i) timeline.add({i * 1.0, i * kMi, {}});
}

// Whatever stands in the file, there is an answer, and no text or number from beyond what was written.
std::string expect_sense(const std::string& file) {
  const ReadRecord read = read_record(file);
  EXPECT_TRUE(read.data || !read.problem.empty());
  if (!read.data) return read.problem;
  const ReportData& data = *read.data;
  EXPECT_LE(data.events.oom_events.size(), 4U);
  for (const OomEvent& event : data.events.oom_events) EXPECT_EQ(event.op, "aten::linear");
  for (const DeviceFigures& device : data.devices) {
    EXPECT_TRUE(device.device == 1 || device.device == KOILA_CPU);
    EXPECT_EQ(device.budget_bytes, 100 * kMi);
    for (const Sample& sample : device.timeline) EXPECT_EQ(sample.live_bytes % kMi, 0);
  }
  for (const StepSample& step : data.steps) EXPECT_EQ(step.peak_bytes, step.step);
  return read.problem;
}

class DamagedRecord : public Record {
 protected:
  void SetUp() override {
    Record::SetUp();
    const auto writer = open("a.koila", 1 << 24);  // of a dead one: nobody writes it any more
    Events events;
    fill(*writer, events);
    Timeline timeline;
    timeline.write_to(writer->timeline_of(1));
    StepSeries steps;
    steps.write_to(writer->steps());
    for (int i = 1; i < 3000; ++i) {
      timeline.add({i * 0.1, (i % 7) * kMi, {}});
      steps.add({.seconds = i * 0.1, .step = i, .peak_bytes = i});
    }
    std::ifstream in(path(), std::ios::binary);
    whole_.assign(std::istreambuf_iterator<char>(in), {});
  }

  void write(const std::string& bytes) {
    // Not made anew where it is only to be another: that is slow.
    if (!fs::exists(path("damaged"))) std::ofstream(path("damaged")).put(' ');
    std::fstream(path("damaged"), std::ios::binary | std::ios::in | std::ios::out) << bytes;
    fs::resize_file(path("damaged"), bytes.size());
  }

  std::string whole_;
};

TEST_F(DamagedRecord, FlippedBytesAreLeftOutAndSaid) {
  std::mt19937 random(1);
  // Holes are most of the file: bytes that say something, and some that do not.
  std::vector<std::size_t> used;
  for (std::size_t i = 0; i < whole_.size(); ++i)
    if (whole_[i] != 0) used.push_back(i);
  int said = 0;
  constexpr int kTries = 300;
  for (int i = 0; i < kTries; ++i) {
    std::string bytes = whole_;
    const int flips = i % 3 == 0 ? 1 : i % 3 == 1 ? 20 : 2000;
    for (int f = 0; f < flips; ++f) {
      const std::size_t at = f % 4 == 3 ? random() % bytes.size() : used[random() % used.size()];
      bytes[at] = static_cast<char>(bytes[at] ^ (1 + random() % 255));
    }
    write(bytes);
    // What was there before the series were last halved is of no use any more, and half of what there is.
    if (!expect_sense(path("damaged")).empty()) ++said;
  }
  EXPECT_GT(said, kTries / 2);
}

TEST_F(DamagedRecord, ACutFileIsSaid) {
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    const std::size_t bytes = i < 100 ? static_cast<std::size_t>(i) : random() % whole_.size();
    write(whole_.substr(0, bytes));
    const ReadRecord read = read_record(path("damaged"));
    EXPECT_FALSE(read.data && read.problem.empty() && read.data->devices.size() == 2) << bytes;
    expect_sense(path("damaged"));
  }
  write(whole_ + "x");
  EXPECT_FALSE(read_record(path("damaged")).data);
}

TEST_F(DamagedRecord, WhatIsNoneIsSaid) {
  EXPECT_NE(read_record(path("nothing")).problem.find("No such file"), std::string::npos);
  EXPECT_NE(read_record(folder_.string()).problem.find("not a regular file"), std::string::npos);
  mkfifo(path("pipe").c_str(), 0600);
  EXPECT_NE(read_record(path("pipe")).problem.find("not a regular file"), std::string::npos);
  write(std::string(whole_.size(), 'x'));
  EXPECT_NE(read_record(path("damaged")).problem.find("is no record"), std::string::npos);
  std::string newer = whole_;
  newer[offsetof(record::Prefix, version)] = 9;
  write(newer);
  EXPECT_NE(read_record(path("damaged")).problem.find("newer koila (layout 9"), std::string::npos) << read_record(path("damaged")).problem;
  std::string other = whole_;
  other[offsetof(record::Prefix, section_bytes)] ^= 8;
  write(other);
  EXPECT_NE(read_record(path("damaged")).problem.find("another koila"), std::string::npos);
  std::string nobody = whole_;
  nobody.replace(offsetof(record::Base, identity), sizeof(record::Twin<record::Identity>), sizeof(record::Twin<record::Identity>), '\1');
  write(nobody);
  EXPECT_NE(read_record(path("damaged")).problem.find("does not say whose"), std::string::npos);
}

TEST_F(DamagedRecord, ValuesThatMakeNoSenseAreLeftOutEvenWithAGoodCheck) {
  std::string bytes = whole_;
  auto& base = *reinterpret_cast<record::Base*>(bytes.data());
  record::Oom event = *base.oom_events.of[0].read();
  event.device = 1 << 20;
  base.oom_events.of[0].write(event);
  event.device = 0;
  event.at = NAN;
  base.oom_events.of[1].write(event);
  base.steps.entries.of[0][0].write({.seconds = 1, .step = 1, .device = 99});
  base.steps.entries.of[1][0].write({.seconds = 1, .step = 1, .device = 99});
  auto& section = *reinterpret_cast<record::Section*>(bytes.data() + record::kBaseBytes);
  section.holders.extent.write({7, 1});
  record::HolderEntry holder;
  holder.category = 100;
  section.holders.of[0][0].write(holder);
  auto& second = *reinterpret_cast<record::Section*>(bytes.data() + record::bytes_with(1));
  second.device.write(*section.device.read());
  write(bytes);
  const ReadRecord read = read_record(path("damaged"));
  ASSERT_TRUE(read.data);
  EXPECT_NE(read.problem.find("is damaged: 4 of its entries"), std::string::npos) << read.problem;
  EXPECT_EQ(read.data->events.oom_events.size(), 2U);
  EXPECT_EQ(read.data->devices.size(), 1U);
}

// The page that is written and read at once: steps and rescues go up together, and a reader never sees anything else.
TEST_F(Record, IsReadWhileItIsWritten) {
  const auto writer = open();
  Events events;
  events.write_to(writer.get());
  Timeline timeline;
  timeline.write_to(writer->timeline_of(KOILA_CPU));
  std::atomic<bool> over{false};
  std::thread thread([&] {
    for (int i = 1; !over; ++i) {
      events.add_oom(rescue(i % 100));
      DeviceFigures f = figures(KOILA_CPU);
      f.live_bytes = f.peak_bytes = f.tensor_bytes = i;
      f.outside_bytes = f.frees = i;
      writer->write_device(f);
      timeline.add({i * 0.03, (i % 50) * kMi, {(i % 50) * kMi}});
    }
  });
  for (int i = 0; i < 100; ++i) {
    const ReadRecord read = read_record(path());
    ASSERT_TRUE(read.data) << read.problem;
    EXPECT_EQ(read.problem, "");
    std::int64_t count = 0;
    for (const OomEvent& event : read.data->events.oom_events) {
      EXPECT_EQ(event.op, "aten::linear");
      EXPECT_EQ(event.seconds, 0.5 * static_cast<double>(event.count));
      count += event.count;
    }
    EXPECT_NEAR(static_cast<double>(count), static_cast<double>(read.data->events.rescues), 1e6);
    if (read.data->devices.empty()) continue;
    EXPECT_EQ(read.data->devices[0].frees, read.data->devices[0].outside_bytes);
    for (const Sample& sample : read.data->devices[0].timeline) EXPECT_EQ(sample.live_bytes, sample.by_category[0]);
  }
  over = true;
  thread.join();
}

// Killed at any instruction: with each value in half of its bytes, the one before is there.
TEST_F(Record, OfAHalfWrittenTwinTheOneBeforeIsThere) {
  record::Twin<record::Device> twin;
  record::Device device;
  for (int i = 1; i < 50; ++i) {
    device.live_bytes = device.peak_bytes = i;
    twin.write(device);
    record::Twin<record::Device> torn = twin;
    record::Twin<record::Device> next = twin;
    device.live_bytes = device.peak_bytes = i + 1;
    next.write(device);
    // Up to any byte as it will be, and from there on as it was.
    for (std::size_t bytes = 0; bytes <= sizeof torn; bytes += 8) {
      std::memcpy(static_cast<void*>(&torn), &next, bytes);
      const record::Device* read = torn.read();
      ASSERT_NE(read, nullptr) << bytes;
      EXPECT_EQ(read->live_bytes, read->peak_bytes);
      EXPECT_TRUE(read->live_bytes == i || read->live_bytes == i + 1);
      torn = twin;
    }
  }
}

TEST_F(DamagedRecord, WhatWasCutOffInTheMiddleIsNoDamage) {
  std::string bytes = whole_;
  auto& base = *reinterpret_cast<record::Base*>(bytes.data());
  base.regions[1].value.batch = 1;
  base.notes[2].value = std::string("half of it");
  base.oom_events.of[4].of[0].value.number = 1;
  base.full_batch.of[0].of[0].check = 0;
  base.full_batch.of[2].of[0].value.number = 1;
  base.page.of[0].check = 0;
  write(bytes);
  const ReadRecord read = read_record(path("damaged"));
  EXPECT_EQ(read.problem, "");
  EXPECT_EQ(read.data.value().events.regions.size(), 1U);
  EXPECT_EQ(read.data->events.notes.size(), 2U);
  EXPECT_EQ(read.data->events.oom_events.size(), 4U);
  EXPECT_EQ(read.data->events.full_batch.size(), 2U);
}

TEST_F(Record, WithoutRoomNothingIsWrittenAndNothingBreaks) {
  // Beyond this limit a write is a signal.
  const pid_t child = fork();
  if (child == 0) {
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 100'000;
    setrlimit(RLIMIT_FSIZE, &limit);
    if (open("none.koila") != nullptr) _exit(1);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto writer = open("some.koila");
    if (writer == nullptr) _exit(2);
    limit.rlim_cur = 100'000;
    setrlimit(RLIMIT_FSIZE, &limit);
    Events events;
    fill(*writer, events);
    StepSeries steps;
    steps.write_to(writer->steps());
    for (int i = 1; i < 10'000; ++i) steps.add({.seconds = 1.0 * i, .step = i});
    for (int i = 1; i < 2000; ++i) events.add_oom(rescue(i));
    if (writer->timeline_of(1) != nullptr) _exit(3);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_FALSE(fs::exists(path("none.koila")));
  const ReadRecord read = read_record(path("some.koila"));
  ASSERT_TRUE(read.data) << read.problem;
  EXPECT_NE(read.problem.find("no room on the disk"), std::string::npos) << read.problem;
  EXPECT_EQ(read.data->events.steps, 1);
  EXPECT_EQ(read.data->events.rescues, 4 + 1999);
}

TEST_F(Record, TheFolderIsForItsUserAlone) {
  for (const char* variable : {"XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"}) unsetenv(variable);
  const std::string folder = record_folder();
  EXPECT_EQ(folder, path("koila-" + std::to_string(geteuid())));
  EXPECT_EQ(prepare_record_folder(), "");
  struct stat status = {};
  ASSERT_EQ(stat(folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  EXPECT_EQ(prepare_record_folder(), "") << "it is there";
  chmod(folder.c_str(), 0755);
  EXPECT_NE(prepare_record_folder().find("open to others"), std::string::npos);
  fs::remove_all(folder);
  fs::create_directory(path("elsewhere"));
  fs::permissions(path("elsewhere"), fs::perms::owner_all);
  fs::create_symlink(path("elsewhere"), folder);
  EXPECT_NE(prepare_record_folder().find("is not a folder"), std::string::npos);
  fs::remove(folder);
  std::ofstream(folder) << "x";
  EXPECT_NE(prepare_record_folder().find("is not a folder"), std::string::npos);
  if (geteuid() != 0) return;
  fs::remove(folder);
  fs::create_directory(folder);
  chmod(folder.c_str(), 0700);
  ASSERT_EQ(chown(folder.c_str(), 12345, 12345), 0);
  EXPECT_NE(prepare_record_folder().find("somebody else's (user 12345)"), std::string::npos);
}

// Where somebody else was there first, what lies there is not looked at, and the record lies elsewhere.
TEST_F(Record, AFolderThatIsNotTheUsersOwnIsLeftAlone) {
  const std::string usual = path("koila-" + std::to_string(geteuid())), planted = "koila-" + std::to_string(geteuid()) + "/16777216.koila";
  fs::create_directory(path("home"));
  setenv("HOME", path("home").c_str(), 1);
  for (const char* variable : {"XDG_RUNTIME_DIR", "XDG_CACHE_HOME"}) unsetenv(variable);
  ASSERT_EQ(prepare_record_folder(), "");
  open(planted, 1 << 24);
  EXPECT_EQ(find_records().size(), 1U);
  EXPECT_EQ(record_folder_problem(), "");

  chmod(usual.c_str(), 0777);
  EXPECT_NE(record_folder_problem().find("open to others"), std::string::npos);
  EXPECT_EQ(record_folder(), path("home/.koila-records"));
  EXPECT_TRUE(find_records().empty());
  EXPECT_EQ(record_of(1 << 24), "");
  EXPECT_EQ(prepare_record_folder(), "");
  struct stat status = {};
  ASSERT_EQ(stat(path("home/.koila-records").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);

  chmod(usual.c_str(), 0700);
  EXPECT_EQ(record_folder(), usual);
  if (geteuid() != 0) return;
  EXPECT_EQ(find_records().size(), 1U);
  ASSERT_EQ(chown(path(planted).c_str(), 4711, 4711), 0);
  EXPECT_TRUE(find_records().empty()) << "the folder is the user's, and the file is not";
  ASSERT_EQ(chown(usual.c_str(), 4711, 4711), 0);
  EXPECT_NE(record_folder_problem().find("somebody else's (user 4711)"), std::string::npos);
  EXPECT_EQ(record_folder(), path("home/.koila-records"));
}

TEST_F(Record, OfTheDeadTheLatestStay) {
  ASSERT_EQ(prepare_record_folder(), "");
  const std::string folder = "koila-" + std::to_string(geteuid()) + "/";
  const auto age = [&](const std::string& name, int seconds) {
    fs::last_write_time(path(folder + name), fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  };
  const std::int64_t mine = getpid();
  const std::string living = std::to_string(mine) + ".koila";
  const auto writer = open(folder + living);
  age(living, 100'000);
  constexpr int kDead = 1 << 24;  // beyond all numbers that there are
  for (int i = 0; i < 20; ++i) {
    open(folder + std::to_string(kDead + i) + ".koila", kDead + i);
    age(std::to_string(kDead + i) + ".koila", i);
  }
  std::ofstream(path(folder + std::to_string(kDead) + ".koila." + std::to_string(kDead) + ".partial"));
  std::ofstream(path(folder + living + "." + std::to_string(mine) + ".partial"));
  std::ofstream(path(folder + "notes.txt"));
  prune_records();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(fs::exists(path(folder + std::to_string(kDead + i) + ".koila")), i < 16) << i;
  EXPECT_TRUE(fs::exists(path(folder + living)));
  EXPECT_TRUE(fs::exists(path(folder + "notes.txt")));
  EXPECT_TRUE(fs::exists(path(folder + living + "." + std::to_string(mine) + ".partial")));
  EXPECT_FALSE(fs::exists(path(folder + std::to_string(kDead) + ".koila." + std::to_string(kDead) + ".partial")));

  const std::vector<FoundRecord> found = find_records();
  ASSERT_EQ(found.size(), 17U);
  EXPECT_EQ(found[0].pid, kDead);
  EXPECT_FALSE(found[0].alive);
  EXPECT_EQ(found[16].pid, mine);
  EXPECT_TRUE(found[16].alive);
  EXPECT_EQ(found[16].path, path(folder + living));
}

TEST_F(Record, IsFoundByItsProcessWhereverItLies) {
  EXPECT_EQ(record_of(getpid()), "");
  const auto writer = open("a name with blanks");
  EXPECT_EQ(record_of(getpid()), path("a name with blanks"));
  EXPECT_EQ(record_of(1 << 24), "");
  ASSERT_EQ(prepare_record_folder(), "");
  const std::string dead = "koila-" + std::to_string(geteuid()) + "/16777216.koila";
  open(dead, 1 << 24);
  EXPECT_EQ(record_of(1 << 24), path(dead));
}

}  // namespace
}  // namespace koila
