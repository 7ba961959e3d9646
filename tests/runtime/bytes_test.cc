#include "runtime/bytes.h"

#include <gtest/gtest.h>

namespace koila {
namespace {

TEST(ParseBytes, TakesEveryUnit) {
  EXPECT_EQ(parse_bytes("17B"), 17);
  EXPECT_EQ(parse_bytes("2KiB"), 2048);
  EXPECT_EQ(parse_bytes("512MiB"), 512LL << 20);
  EXPECT_EQ(parse_bytes("8GiB"), 8LL << 30);
  EXPECT_EQ(parse_bytes("1TiB"), 1LL << 40);
  EXPECT_EQ(parse_bytes("3KB"), 3000);
  EXPECT_EQ(parse_bytes("3MB"), 3'000'000);
  EXPECT_EQ(parse_bytes("3GB"), 3'000'000'000);
}

TEST(ParseBytes, ASingleLetterIsBinary) {
  EXPECT_EQ(parse_bytes("4G"), 4LL << 30);
  EXPECT_EQ(parse_bytes("80M"), 80LL << 20);
  EXPECT_EQ(parse_bytes("80m"), 80LL << 20);
  EXPECT_EQ(parse_bytes("1.5k"), 1536);
  EXPECT_EQ(parse_bytes("2T"), 2LL << 40);
}

TEST(ParseBytes, TakesFractionsBlanksAndAnyCase) {
  EXPECT_EQ(parse_bytes("1.5GiB"), 3LL << 29);
  EXPECT_EQ(parse_bytes("64 mib"), 64LL << 20);
  EXPECT_EQ(parse_bytes("0.5KIB"), 512);
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* text : {"", "MiB", "512", "12XB", "-1MiB", "0MiB", "0.1B", "1MiB2", "nanMiB", "infMiB", "1e3MiB", "99999999999GiB", "auto", "50%"})
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
}

TEST(ParsePercent, TakesOneToAHundred) {
  EXPECT_DOUBLE_EQ(parse_percent("50%").value(), 0.5);
  EXPECT_DOUBLE_EQ(parse_percent("100%").value(), 1.0);
  EXPECT_DOUBLE_EQ(parse_percent("0.5 %").value(), 0.005);
  for (const char* text : {"", "%", "0%", "101%", "-5%", "50", "50%%"}) EXPECT_EQ(parse_percent(text), std::nullopt) << text;
}

TEST(FormatBytes, ShowsOneDecimalFromKiBOn) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(200LL << 20), "200.0 MiB");
  EXPECT_EQ(format_bytes((1LL << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(3LL << 30), "3.0 GiB");
  EXPECT_EQ(format_bytes(5LL << 40), "5.0 TiB");
  EXPECT_EQ(format_bytes(-(2LL << 20)), "-2.0 MiB");
}

}  // namespace
}  // namespace koila
