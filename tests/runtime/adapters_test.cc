#include "runtime/adapters.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace koila {
namespace {

class Adapters : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/koila_adapters_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  void put(const std::string& place, const std::string& built_for) {
    std::filesystem::create_directories(folder + place);
    std::ofstream(folder + place + "/libkoila_torch.so") << "a library";
    std::ofstream(folder + place + "/libkoila_torch.version") << built_for << "\n";
  }
  // The path below the folder, of the one that is taken; "" where none is.
  std::string taken(const std::string& running) {
    const std::vector<Adapter> adapters = adapters_in(folder);
    const Adapter* adapter = adapter_for(adapters, running);
    return adapter == nullptr ? "" : adapter->path.substr(folder.size());
  }

  std::string folder;
};

TEST_F(Adapters, OneBesideTheLibrary) {
  put("", "2.13.0+cpu");
  EXPECT_EQ(taken("2.13.0+cu130"), "/libkoila_torch.so");
  EXPECT_EQ(taken("2.13.1"), "");
  EXPECT_EQ(taken(""), "");
}

TEST_F(Adapters, OneForEachRelease) {
  for (const std::string release : {"2.9.1", "2.13.0", "2.15.0", "2.8.0"}) put("/torch-" + release, release);
  EXPECT_EQ(taken("2.13.0+cpu"), "/torch-2.13.0/libkoila_torch.so");
  EXPECT_EQ(taken("2.9.1+cu128"), "/torch-2.9.1/libkoila_torch.so");
  EXPECT_EQ(taken("2.9.0"), "") << "a patch release is a release of its own";
  EXPECT_EQ(taken("2.1"), "");
  EXPECT_EQ(releases_of(adapters_in(folder)), "2.8.0, 2.9.1, 2.13.0 and 2.15.0");
}

TEST_F(Adapters, TheFileSaysWhatAnAdapterIsForAndNotItsFolder) {
  put("/torch-2.13.0", "2.15.0");
  put("/other-2.14.0", "2.14.0");
  EXPECT_EQ(taken("2.13.0"), "");
  EXPECT_EQ(taken("2.15.0"), "/torch-2.13.0/libkoila_torch.so");
  EXPECT_EQ(taken("2.14.0"), "");
}

TEST_F(Adapters, TheVeryBuildComesFirst) {
  put("", "2.13.0+cpu");
  put("/torch-2.13.0", "2.13.0+cu130");
  EXPECT_EQ(taken("2.13.0+cpu"), "/libkoila_torch.so");
  EXPECT_EQ(taken("2.13.0+cu130"), "/torch-2.13.0/libkoila_torch.so");
  EXPECT_EQ(taken("2.13.0+rocm"), "/libkoila_torch.so") << "the oldest by name";
}

TEST_F(Adapters, HalfOfOneIsNone) {
  put("/torch-2.13.0", "2.13.0");
  put("/torch-2.14.0", "2.14.0");
  std::filesystem::remove(folder + "/torch-2.13.0/libkoila_torch.so");
  std::filesystem::remove(folder + "/torch-2.14.0/libkoila_torch.version");
  EXPECT_TRUE(adapters_in(folder).empty());
  EXPECT_EQ(releases_of({}), "");
  EXPECT_TRUE(adapters_in(folder + "/absent").empty());
}

}  // namespace
}  // namespace koila
