// A folder of its own for a test, with files as they are asked for.
#ifndef KOILA_TESTS_TOOL_FOLDER_H_
#define KOILA_TESTS_TOOL_FOLDER_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace koila::tool {

class Folder {
 public:
  Folder() {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) / (std::string("koila_") + test->test_suite_name() + "_" + test->name() + "_" + std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string path(const std::string& name) const { return path_ / name; }

  // A file and the folders to it.
  std::string file(const std::string& name, const std::string& text, bool executable = false) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
    if (executable) std::filesystem::permissions(path_ / name, std::filesystem::perms::owner_all);
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace koila::tool

#endif  // KOILA_TESTS_TOOL_FOLDER_H_
