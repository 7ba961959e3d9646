#include "tool/elf_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/tool/folder.h"
#include "tool/files.h"

// To be found among what this program defines.
extern "C" int koila_elf_file_test_function() { return 1; }

namespace koila::tool {
namespace {

const std::string kSelf = "/proc/self/exe";

TEST(ElfFile, OfThisProgram) {
  const auto facts = read_elf(kSelf);
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->bits, 64);
  EXPECT_TRUE(facts->is_dynamic);
  EXPECT_NE(facts->loader.find("ld-linux"), std::string::npos);
  EXPECT_NE(std::find(facts->needed.begin(), facts->needed.end(), "libc.so.6"), facts->needed.end());
}

TEST(ElfFile, Symbols) {
  ASSERT_EQ(koila_elf_file_test_function(), 1);
  EXPECT_TRUE(defines_any(kSelf, {"no_such", "koila_elf_file_test_function"}, true));
  EXPECT_FALSE(defines_any(kSelf, {"no_such"}, true));
  EXPECT_FALSE(defines_any(kSelf, {"koila_elf_file_test_function"}, false)) << "no dynamic symbol: nothing is exported";
  EXPECT_TRUE(contains(kSelf, "a text that only this program has"));
}

TEST(ElfFile, OtherFilesAreNone) {
  Folder folder;
  EXPECT_FALSE(read_elf(folder.file("text", "#!/bin/sh\n")));
  EXPECT_FALSE(read_elf(folder.file("empty", "")));
  EXPECT_FALSE(read_elf(folder.path("absent")));
  EXPECT_FALSE(read_elf("/tmp"));
}

TEST(ElfFile, DamagedFilesDoNoHarm) {
  Folder folder;
  const std::string whole = read_file(kSelf).value_or("");
  ASSERT_GT(whole.size(), 4096U);
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    std::string text = whole.substr(0, round % 2 == 0 ? 4096 + random() % (whole.size() - 4096) : whole.size());
    for (int i = 0; i < 40; ++i) text[random() % std::min<std::size_t>(text.size(), 4096)] = static_cast<char>(random());
    const std::string path = folder.file("damaged", text);
    read_elf(path);
    defines_any(path, {"no_such"}, true);
  }
}

}  // namespace
}  // namespace koila::tool
