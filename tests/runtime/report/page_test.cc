#include "runtime/report/page.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "samples.h"

namespace koila {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Page, WrapsBetweenWordsAndIndents) {
  Page page;
  page.add("the head", 0, Tone::kTitle, 0);
  page.add("one two three four five six seven", 0);
  EXPECT_EQ(page.text({false, 40}),
            "koila: the head\n"
            "koila:   one two three four five six\n"
            "koila:     seven\n");
}

TEST(Page, KeepsANumberAndItsUnitTogether) {
  Page page;
  page.add("one two three four five 12.5 MiB, 3 more", 0);
  EXPECT_EQ(page.text({false, 40}),
            "koila:   one two three four five\n"
            "koila:     12.5 MiB, 3 more\n");
}

TEST(Page, ALineThatJustFitsIsNotWrapped) {
  for (const std::size_t length : {111U, 112U}) {
    Page page;
    page.add(std::string(length - 2, 'x') + " a", 0);
    EXPECT_EQ(lines_of(page.text({})).size(), length == 111 ? 1U : 2U);
  }
}

TEST(Page, BreaksAWordThatIsTooLongBetweenCharacters) {
  Page page;
  std::string word;
  for (int i = 0; i < 60; ++i) word += "\xc3\xa9";
  page.add(word, 0);
  const auto lines = lines_of(page.text({false, 40}));
  ASSERT_EQ(lines.size(), 3U);
  std::string again;
  for (const std::string& line : lines) again += line.substr(line.find_last_of(' ') + 1);
  EXPECT_EQ(again, word);
  EXPECT_EQ(lines[0].size(), 9U + 2 * 29);
}

TEST(Page, ColoursOnlyWhenAsked) {
  Page page;
  page.add("bad", 0, Tone::kBad);
  page.add("plain", 0);
  EXPECT_EQ(page.text({false, 0}), "koila:   bad\nkoila:   plain\n");
  EXPECT_EQ(page.text({true, 0}), "koila:   \x1b[31mbad\x1b[0m\nkoila:   plain\n");
}

TEST(Page, NothingInALineMovesTheCursor) {
  Page page;
  page.add("a\nb\x1b[2Jc\td\re", 0);
  EXPECT_EQ(page.text({}), "koila:   a b?[2Jc d e\n");
}

TEST(Page, LosesWhatMattersLeastFirst) {
  Page page;
  page.add("head", 0, Tone::kPlain, 0);
  for (int i = 0; i < 12; ++i) page.add("second " + std::to_string(i), 2);
  for (int i = 0; i < 12; ++i) page.add("third " + std::to_string(i), 3);
  page.add("first", 1);
  page.add("last", 0);
  const auto lines = lines_of(page.text({}));
  ASSERT_EQ(lines.size(), 24U);
  EXPECT_EQ(lines[12], "koila:   second 11");
  EXPECT_EQ(lines[20], "koila:   third 7");
  EXPECT_EQ(lines[21], "koila:   first");
  EXPECT_EQ(lines[22], "koila:   (4 more in KOILA_REPORT=run.json or run.html)");
  EXPECT_EQ(lines[23], "koila:   last");
}

TEST(Page, NeverLosesWhatIsAlwaysTold) {
  Page page;
  for (int i = 0; i < 30; ++i) page.add("line", 0);
  EXPECT_EQ(lines_of(page.text({})).size(), 30U);
}

TEST(Page, ARefusalsReasonIsWhole) {
  ReportData data = longest_report();
  std::string reason;
  for (int i = 0; i < 600; ++i) reason += "word" + std::to_string(i) + " ";
  data.events.oom_events[1].reason = reason;
  std::string whole;
  for (const std::string& line : lines_of(report_text(data))) {
    const std::size_t begin = line.find_first_not_of(' ', 6);
    whole += line.substr(begin) + " ";
  }
  EXPECT_NE(whole.find(reason), std::string::npos);
}

// A terminal so many columns wide; 0: one that does not say.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    grantpt(master_);
    unlockpt(master_);
    slave_ = open(ptsname(master_), O_RDWR | O_NOCTTY);
    const winsize size = {50, columns, 0, 0};
    ioctl(slave_, TIOCSWINSZ, &size);
  }
  ~Terminal() {
    close(slave_);
    close(master_);
  }
  int descriptor() const { return slave_; }

 private:
  int master_;
  int slave_;
};

TEST(TextStyle, ATerminalHasColoursAndAWidth) {
  setenv("TERM", "xterm", 1);
  unsetenv("NO_COLOR");
  EXPECT_TRUE(style_of(Terminal(90).descriptor()).colour);
  EXPECT_EQ(style_of(Terminal(90).descriptor()).columns, 90);
  EXPECT_EQ(style_of(Terminal(300).descriptor()).columns, kTextColumns);
  EXPECT_EQ(style_of(Terminal(0).descriptor()).columns, 0);
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(style_of(Terminal(90).descriptor()).colour);
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(style_of(Terminal(90).descriptor()).colour);
  unsetenv("TERM");
  EXPECT_FALSE(style_of(Terminal(90).descriptor()).colour);
}

TEST(TextStyle, WhatIsNoTerminalHasNone) {
  setenv("TERM", "xterm", 1);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(style_of(ends[1]).colour);
  EXPECT_EQ(style_of(ends[1]).columns, 0);
  close(ends[0]);
  close(ends[1]);
  EXPECT_FALSE(style_of(ends[1]).colour) << "a closed one";
}

TEST(Page, TheLongestReportIsAScreen) {
  for (const int columns : {0, 60, 80, 100}) {
    const auto lines = lines_of(report_text(longest_report(), {false, columns}));
    EXPECT_LE(lines.size(), static_cast<std::size_t>(kTextLines)) << columns;
    for (const std::string& line : lines) {
      EXPECT_LE(line.size(), static_cast<std::size_t>(columns > 0 ? columns : kTextColumns));
      EXPECT_TRUE(line.starts_with("koila: ")) << line;
    }
  }
}

}  // namespace
}  // namespace koila
