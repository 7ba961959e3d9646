#include "tool/library.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tool/folder.h"

namespace koila::tool {
namespace {

TEST(Library, PreloadComesFirstAndOnce) {
  EXPECT_EQ(preload_with("/a/libkoila.so", ""), "/a/libkoila.so");
  EXPECT_EQ(preload_with("/a/libkoila.so", "/x/libjemalloc.so.2 /y/libz.so"), "/a/libkoila.so:/x/libjemalloc.so.2:/y/libz.so");
  EXPECT_EQ(preload_with("/a/libkoila.so", "/x/l.so:/a/libkoila.so"), "/a/libkoila.so:/x/l.so");
  EXPECT_EQ(preload_with("/a/libkoila.so", "/b/libkoila.so:/x/l.so"), "/a/libkoila.so:/x/l.so") << "two of them would be in each other's way";
}

// Where the command is, and where the library.
struct Layout {
  const char* command;
  const char* library;
};
class LibraryLayout : public testing::TestWithParam<Layout> {};

TEST_P(LibraryLayout, IsFound) {
  Folder folder;
  std::filesystem::create_directories(folder.path(GetParam().command));
  const std::string path = folder.file(std::string(GetParam().library) + "/libkoila.so", "");
  folder.file(std::string(GetParam().library) + "/libkoila_torch.so", "");
  folder.file(std::string(GetParam().library) + "/libkoila_torch.version", "2.13.0+cpu\n");
  const Library library = find_library_from(folder.path(GetParam().command));
  EXPECT_EQ(library.path, std::filesystem::canonical(path));
  EXPECT_EQ(releases_of(library.adapters), "2.13.0+cpu");
}

INSTANTIATE_TEST_SUITE_P(All, LibraryLayout,
                         testing::Values(Layout{"build/tool", "build/lib"}, Layout{"usr/bin", "usr/lib"}, Layout{"usr/bin", "usr/lib/x86_64-linux-gnu"},
                                         Layout{"usr/bin", "usr/lib64"}, Layout{"koila", "koila"}, Layout{"koila/bin", "koila"},
                                         Layout{"venv/bin", "venv/lib/python3.11/site-packages/koila"}));

TEST(Library, AskedForByPathOrFolder) {
  Folder folder;
  const std::string path = folder.file("libkoila.so", "");
  EXPECT_EQ(find_library(path).path, path);
  EXPECT_EQ(find_library(folder.path("")).path, folder.path("") + "/libkoila.so");
  EXPECT_TRUE(find_library(path).adapters.empty()) << "no adapter beside it";
  const Library absent = find_library(folder.path("absent"));
  EXPECT_EQ(absent.path, "");
  EXPECT_EQ(absent.problem(), "libkoila.so was not found in " + folder.path("absent"));
}

TEST(Library, ProblemsOfTheFile) {
  Folder folder;
  EXPECT_NE(find_library(folder.file("a/libkoila.so", "text")).problem().find("is not a library"), std::string::npos);
  EXPECT_NE(find_library(folder.file("with space/libkoila.so", "")).problem().find("a space or a colon"), std::string::npos);
  std::filesystem::copy_file("/proc/self/exe", folder.path("libkoila.so"));
  EXPECT_EQ(find_library(folder.path("libkoila.so")).problem(), "");
}

}  // namespace
}  // namespace koila::tool
