#include "tool/program.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tool/folder.h"

namespace koila::tool {
namespace {

// A folder for PATH with a Python that is no script.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest() { std::filesystem::copy_file("/proc/self/exe", folder_.path("python3.11")); }
  Program find(const std::vector<std::string>& command) const { return find_program(command, folder_.path("") + ":/usr/bin:/bin"); }
  std::string python() const { return folder_.path("") + "/python3.11"; }

  Folder folder_;
};

TEST_F(ProgramTest, StatusAsAShellAnswers) {
  EXPECT_EQ(find({"no-such-program"}).status, 127);
  EXPECT_EQ(find({folder_.path("absent")}).status, 127);
  EXPECT_EQ(find({folder_.file("plain", "x")}).status, 126);
  EXPECT_EQ(find({folder_.path(".")}).status, 126);
  EXPECT_EQ(find({"ls"}).status, 0);
  EXPECT_EQ(find({}).status, 127);
}

TEST_F(ProgramTest, PythonWithItsScript) {
  const Program program = find({"python3.11", "-u", "-sE", "-X", "dev", "train.py", "-I"});
  EXPECT_EQ(program.python, python());
  EXPECT_EQ(program.binary, python());
  EXPECT_EQ(program.script, "train.py");
  EXPECT_EQ(program.python_flags, std::vector<std::string>{"-sE"});
  EXPECT_EQ(find({"python3.11", "-m", "torch.distributed.run", "train.py"}).script, "");
  EXPECT_EQ(find({"python3.11", "-c", "1"}).script, "");
  EXPECT_EQ(find({"ls"}).python, "");
}

TEST_F(ProgramTest, ScriptsLeadToTheirInterpreter) {
  const std::string direct = folder_.file("direct", "#!" + folder_.path("python3.11") + " -s\n", true);
  EXPECT_EQ(find({direct, "x"}).python, folder_.path("python3.11"));
  EXPECT_EQ(find({direct, "x"}).script, direct);
  EXPECT_EQ(find({direct, "x"}).python_flags, std::vector<std::string>{"-s"});
  EXPECT_EQ(find({folder_.file("by_env", "#!/usr/bin/env python3.11\n", true)}).python, python());
  const Program split = find({folder_.file("by_env_split", "#!/usr/bin/env -S python3.11 -E\n", true)});
  EXPECT_EQ(split.python, python());
  EXPECT_EQ(split.python_flags, std::vector<std::string>{"-E"});
  // As pip writes it where the path is too long for a first line.
  const std::string text = "#!/bin/sh\n'''exec' \"" + folder_.path("python3.11") + "\" \"$0\" \"$@\"\n' '''\n";
  EXPECT_EQ(find({folder_.file("long_way", text, true)}).python, folder_.path("python3.11"));
}

TEST_F(ProgramTest, ThroughLaunchers) {
  EXPECT_EQ(find({"env", "-u", "X", "A=b", "nohup", "python3.11", "t.py"}).python, python());
  EXPECT_EQ(find({"nice", "-n", "5", "python3.11", "t.py"}).script, "t.py");
  EXPECT_EQ(find({"env", "A=b"}).binary, "");
}

TEST_F(ProgramTest, CarriersAreNamed) {
  std::filesystem::copy_file("/proc/self/exe", folder_.path("sudo"));
  EXPECT_EQ(find({"env", "sudo", "-E", "python3.11"}).carrier, "sudo");
  EXPECT_EQ(find({"python3.11", "sudo"}).carrier, "");
}

TEST_F(ProgramTest, ScriptsThatRunThemselvesEnd) {
  const std::string path = folder_.path("loop");
  folder_.file("loop", "#!" + path + "\n", true);
  EXPECT_EQ(find({path}).binary, "");
}

}  // namespace
}  // namespace koila::tool
