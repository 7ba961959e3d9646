#include "runtime/torch_release.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace koila {
namespace {

// As PyTorch's build writes it.
constexpr const char* kVersionPy =
    "from typing import Optional\n"
    "\n"
    "__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'xpu']\n"
    "__version__ = '2.13.0+cu130'\n"
    "debug = False\n"
    "cuda: Optional[str] = '13.0'\n"
    "git_version = 'abc'\n"
    "hip: Optional[str] = None\n"
    "rocm: Optional[str] = None\n";

TEST(TorchRelease, ReadsNamesOfVersionPy) {
  EXPECT_EQ(parse_version_py(kVersionPy), "2.13.0+cu130");
  EXPECT_EQ(parse_version_py(kVersionPy, "cuda"), "13.0");
  EXPECT_EQ(parse_version_py(kVersionPy, "hip"), "");
  EXPECT_EQ(parse_version_py(kVersionPy, "git"), "");
  EXPECT_EQ(parse_version_py("__version__ = \"2.0\""), "2.0");
  EXPECT_EQ(parse_version_py("__version__ = 2"), "");
  EXPECT_EQ(parse_version_py(""), "");
}

TEST(TorchRelease, OnlyTheLocalPartMayDiffer) {
  EXPECT_TRUE(same_torch("2.13.0+cpu", "2.13.0+cu130"));
  EXPECT_TRUE(same_torch("2.13.0", "2.13.0+cpu"));
  EXPECT_FALSE(same_torch("2.13.0", "2.13.1"));
  EXPECT_FALSE(same_torch("", ""));
}

TEST(TorchRelease, OfAPackageAndOfADistribution) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "torch_release_test";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(torch_of_package(folder), "");
  std::ofstream(folder / "build-version") << "2.13.0+cpu\n";
  EXPECT_EQ(torch_of_package(folder), "2.13.0+cpu");
  EXPECT_EQ(built_for(folder / "build-version"), "2.13.0+cpu");
  std::ofstream(folder / "version.py") << kVersionPy;
  EXPECT_EQ(torch_of_package(folder), "2.13.0+cu130");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace koila
