#include "runtime/printable.h"

#include <gtest/gtest.h>

#include <random>

namespace koila {
namespace {

TEST(Printable, LeavesTextAlone) {
  for (const std::string text : {"", "a b", "~!@#$%^&*()_+{}|:<>?", "\xc3\xa4\xc3\x9f \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\xa6\x99", "\xc2\xa0\xc2\xad"}) EXPECT_EQ(printable(text), text);
}

TEST(Printable, NothingMovesTheCursorOrColours) {
  EXPECT_EQ(printable("\x1b[31mred\x1b[0m\x07"), "?[31mred?[0m?");
  EXPECT_EQ(printable(std::string("a\0b\x7f", 4)), "a?b?");
  EXPECT_EQ(printable("one\ntwo\tthree\rfour"), "one two three four");
  EXPECT_EQ(printable_lines("one\n\x1b" "two\n"), "one\n?two\n");
}

// CSI is one byte in C1, whether as UTF-8 or by itself.
TEST(Printable, C1AsUtf8AndAsBytes) {
  EXPECT_EQ(printable("\xc2\x9b" "31m"), "?31m");
  EXPECT_EQ(printable("\x9b" "31m"), "?31m");
  for (int c = 0x80; c < 0xa0; ++c) EXPECT_EQ(printable(std::string("\xc2") + static_cast<char>(c)), "?");
}

TEST(Printable, NothingTurnsTheDirectionOrHidesALinesEnd) {
  for (const char* mark : {"\xe2\x80\xae", "\xe2\x80\x8f", "\xe2\x81\xa6", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xef\xbb\xbf", "\xd8\x9c"}) EXPECT_EQ(printable(std::string("a") + mark + "b"), "a?b");
}

TEST(Printable, WhatIsNoUtf8IsAQuestionMarkAByte) {
  EXPECT_EQ(printable("\xff\xfe"), "??");
  EXPECT_EQ(printable("\xc3"), "?");
  EXPECT_EQ(printable("\xe2\x82"), "??");
  EXPECT_EQ(printable("\xc0\x9b"), "??") << "longer than it has to be";
  EXPECT_EQ(printable("\xe0\x82\x9b"), "???");
  EXPECT_EQ(printable("\xed\xa0\x80"), "???") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "????") << "beyond the last";
}

TEST(Printable, AnyBytesBecomeALineOfUtf8ThatStaysAsItIs) {
  std::mt19937 random(4);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 24, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 3 == 0 ? 0x80 + random() % 0x80 : random() % 256);
    const std::string text = printable(bytes);
    ASSERT_EQ(printable(text), text);
    ASSERT_LE(text.size(), bytes.size());
    for (std::size_t k = 0; k < text.size(); ++k) {
      const auto c = static_cast<unsigned char>(text[k]);
      ASSERT_FALSE(c < 0x20 || c == 0x7f);
      ASSERT_FALSE(k > 0 && static_cast<unsigned char>(text[k - 1]) == 0xc2 && c < 0xa0);
    }
  }
}

}  // namespace
}  // namespace koila
