#include "runtime/whole_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "runtime/quiet_write.h"

namespace koila {
namespace {

namespace fs = std::filesystem;

class WholeFile : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/koila_whole_file_XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/file";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string text_of(const std::string& path) const {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::size_t files() const { return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator())); }

  std::string folder_, path_;
};

TEST_F(WholeFile, ReplacesAndLeavesNothingBeside) {
  EXPECT_EQ(write_whole_file(path_, "one"), 0);
  EXPECT_EQ(write_whole_file(path_, "two"), 0);
  EXPECT_EQ(text_of(path_), "two");
  EXPECT_EQ(files(), 1U);
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(WholeFile, AnotherNameWhereTheFirstIsTaken) {
  std::ofstream(folder_ + "/victim") << "mine";
  fs::create_symlink("victim", path_ + "." + std::to_string(getpid()) + ".partial");
  EXPECT_EQ(write_whole_file(path_, "text"), 0);
  EXPECT_EQ(text_of(folder_ + "/victim"), "mine");
  EXPECT_EQ(text_of(path_), "text");
  fs::create_symlink("victim", path_ + ".koila.partial");
  EXPECT_EQ(write_shared_file(path_, "shared", nullptr), 0);
  EXPECT_EQ(text_of(folder_ + "/victim"), "mine");
  EXPECT_EQ(text_of(path_), "shared");
}

TEST_F(WholeFile, ALongNameLeavesNoRoomForMore) {
  const std::string path = folder_ + "/" + std::string(250, 'n') + ".json";
  EXPECT_EQ(write_whole_file(path, "text"), 0);
  EXPECT_EQ(text_of(path), "text");
  EXPECT_EQ(files(), 1U);
  EXPECT_EQ(write_whole_file(folder_ + "/" + std::string(256, 'n'), "text"), ENAMETOOLONG);
  EXPECT_EQ(files(), 1U);
}

TEST_F(WholeFile, WhatIsNoFileStays) {
  fs::create_directory(path_);
  EXPECT_EQ(write_whole_file(path_, "text"), EISDIR);
  fs::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(write_whole_file(path_, "text"), EEXIST);
  EXPECT_TRUE(fs::is_fifo(path_));
  EXPECT_EQ(files(), 1U);
}

TEST_F(WholeFile, BeyondTheLimitThereIsAnErrorAndNoSignal) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {100, 100};
    setrlimit(RLIMIT_FSIZE, &limit);
    const bool short_one = write_whole_file(path_, std::string(100, 'x')) == 0;
    const bool long_one = write_whole_file(path_, std::string(101, 'y')) == EFBIG;
    sigset_t pending;
    sigpending(&pending);
    _exit(short_one && long_one && sigismember(&pending, SIGXFSZ) == 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(text_of(path_), std::string(100, 'x'));
  EXPECT_EQ(files(), 1U);
}

// Killed anywhere, it leaves the old file or the new one.
TEST_F(WholeFile, KilledAtAnyMomentItIsWhole) {
  const std::string old_text(300'000, 'o'), new_text(300'000, 'n');
  std::mt19937 random(11);
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(write_whole_file(path_, old_text), 0);
    const pid_t child = fork();
    if (child == 0) {
      while (true) {
        write_whole_file(path_, new_text);
        write_whole_file(path_, old_text);
      }
    }
    usleep(random() % 3000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string text = text_of(path_);
    ASSERT_TRUE(text == old_text || text == new_text) << text.size();
  }
}

TEST_F(WholeFile, NoDescriptorOfTheStandardThree) {
  const pid_t child = fork();
  if (child == 0) {
    for (int file = 0; file < 3; ++file) close(file);
    const int file = quiet_open(path_.c_str(), O_WRONLY | O_CREAT, 0600);
    _exit(file > 2 && fcntl(0, F_GETFD) < 0 && fcntl(1, F_GETFD) < 0 && fcntl(2, F_GETFD) < 0 && (fcntl(file, F_GETFD) & FD_CLOEXEC) != 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace koila
