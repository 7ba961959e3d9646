#include "tool/frame.h"

#include <gtest/gtest.h>

#include "tool/screen.h"

namespace koila::tool {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

Moment moment() {
  Moment moment;
  ReportData& data = moment.data;
  data.pid = 42;
  data.command = "python train.py";
  data.torch_version = "2.13.0";
  data.seconds = 3725;
  DeviceFigures cpu;
  cpu.live_bytes = 6 * kMiB;
  cpu.peak_bytes = 8 * kMiB;
  cpu.budget_bytes = 10 * kMiB;
  cpu.live_by_category[KOILA_PARAMETERS] = 2 * kMiB;
  data.devices.push_back(cpu);
  data.events.steps = 7;
  data.events.rescues = 2;
  data.events.last_region.micro_batch = 16;
  data.events.last_region.batch = 64;
  OomEvent event;
  event.op = "aten::relu";
  event.at = 1.5;
  data.events.oom_events.push_back(event);
  moment.steps_per_second = 2.5;
  moment.resident_bytes = 300 * kMiB;
  return moment;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(Frame, TellsTheState) {
  const std::string text = text_of(frame(moment(), 100, 100, false));
  for (const char* part : {"pid 42", "running", "1:02:05", "python train.py", "steps 7 (2.5/s)", "rescues 2", "RSS 300.0 MiB", "micro-batch 16 of 64 rows",
                           "live 6.0 MiB  peak 8.0 MiB  budget 10.0 MiB", "parameters 2.0 MiB", "1.5 s  rescued: out of memory in aten::relu"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(Frame, HasALegendAndTheLatestSteps) {
  Moment with_steps = moment();
  EXPECT_EQ(text_of(frame(with_steps, 100, 100, false)).find("peaks by step"), std::string::npos);
  for (const std::int64_t mi : {0, 5, 8, 10}) {
    StepSample step;
    step.peak_bytes = mi * kMiB;
    with_steps.data.steps.push_back(step);
  }
  const std::string text = text_of(frame(with_steps, 100, 100, false));
  EXPECT_NE(text.find("peaks by step [ =*#]"), std::string::npos) << text;
  EXPECT_NE(text.find("[#] live   [-] the peak"), std::string::npos) << text;
}

TEST(Frame, FitsTheTerminal) {
  for (const int columns : {30, 47, 80, 200}) {
    for (const int rows : {1, 5, 60}) {
      const std::vector<std::string> lines = frame(moment(), columns, rows, false);
      EXPECT_LE(lines.size(), static_cast<std::size_t>(rows));
      for (const std::string& line : lines) EXPECT_LE(line.size(), static_cast<std::size_t>(columns)) << line;
    }
  }
  EXPECT_FALSE(frame({}, 0, 0, true).empty());
}

TEST(Frame, NothingOfTheProgramMovesTheCursor) {
  Moment hostile = moment();
  hostile.data.command = "python\033[2J\n\r" + std::string(1, '\x7f');
  hostile.data.events.notes.push_back("\033]0;title\a");
  for (const std::string& line : frame(hostile, 80, 60, false)) EXPECT_EQ(line.find_first_of("\033\n\r\a\x7f"), std::string::npos) << line;
}

TEST(Frame, Bars) {
  EXPECT_EQ(memory_bar(4, 6, 10, 12), "[####--    ]");
  EXPECT_EQ(memory_bar(5, 10, 0, 12), "[#####-----]");
  EXPECT_EQ(memory_bar(20, 20, 10, 12), "[##########]") << "more than the budget is not more than the bar";
  EXPECT_EQ(memory_bar(0, 0, 0, 12), "[          ]");
}

TEST(Frame, RateOfLate) {
  ReportData data;
  EXPECT_EQ(recent_rate(data, 10), 0);
  for (int step = 1; step <= 20; ++step) {
    StepSample sample;
    sample.step = step;
    sample.seconds = step <= 10 ? step * 10 : 100 + (step - 10);
    data.steps.push_back(sample);
  }
  EXPECT_DOUBLE_EQ(recent_rate(data, 5), 1);
}

TEST(Screen, CutsByCharacters) {
  EXPECT_EQ(cut("abc", 5), "abc");
  EXPECT_EQ(cut("abc", 2), "ab");
  EXPECT_EQ(cut("\u00e4\u00f6\u00fc", 2), "\u00e4\u00f6");
}

}  // namespace
}  // namespace koila::tool
