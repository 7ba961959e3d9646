#include "tool/variables.h"

#include <gtest/gtest.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "tool/command_line.h"

namespace koila::tool {
namespace {

TEST(Variables, NamesOfOptions) {
  EXPECT_EQ(option_name("KOILA_MODE"), "--mode");
  EXPECT_EQ(option_name("KOILA_CPU_MEMORY"), "--cpu-memory");
}

TEST(Variables, EveryVariableIsAnOptionWithAMeaning) {
  CLI::App app;
  Given given;
  add_variables(app, given, Shown::kYes);
  for (const VariableForm& form : variable_forms()) {
    const CLI::Option* option = app.get_option(option_name(form.name));
    EXPECT_NE(option->get_description().find('\n'), std::string::npos) << form.name << " has no line in kMeaning";
    const std::string name = option_name(form.name), values = form.form == std::string("0 or 1") ? name + ", or " + name + "=0" : form.form;
    EXPECT_NE(option->get_description().find(values), std::string::npos) << option->get_description();
  }
}

TEST(Variables, OptionsTakeThePlaceOfTheEnvironment) {
  CLI::App app;
  Given given;
  add_variables(app, given, Shown::kNo);
  Words program;
  ASSERT_FALSE(parse(app, "x", {"--mode", "lazy", "--cpu-memory=2GiB", "--strict", "--verify=0", "python", "train.py", "--mode", "x", "--", "y"}, &program));
  EXPECT_EQ(program, (Words{"python", "train.py", "--mode", "x", "--", "y"}));
  const CheckedVariables checked = check_variables(given, {{"KOILA_MODE", "track"}, {"KOILA_LOG", "info"}});
  EXPECT_EQ(checked.environment, (Environment{{"KOILA_LOG", "info"},
                                              {"KOILA_CPU_MEMORY", "2GiB"},
                                              {"KOILA_MODE", "lazy"},
                                              {"KOILA_STRICT", "1"},
                                              {"KOILA_VERIFY", "0"}}));
  EXPECT_TRUE(checked.errors.empty());
  EXPECT_TRUE(checked.warnings.empty());
}

TEST(Variables, BadValuesAreErrorsWithTheFormThatIsWanted) {
  const CheckedVariables checked = check_variables({{"KOILA_CPU_MEMORY", "200"}, {"KOILA_REPORT", ""}}, {{"KOILA_MODE", "on"}, {"KOILA_MODUS", "off"}});
  ASSERT_EQ(checked.errors.size(), 3U);
  EXPECT_EQ(checked.errors[0], "KOILA_MODE=on is not understood: want off, track, rescue or lazy");
  EXPECT_TRUE(checked.errors[1].starts_with("--cpu-memory 200 is not understood: want a size with its unit")) << checked.errors[1];
  for (const char* unit : {" K,", " M,", " G,", " MiB,", " GiB,", " GB,", "auto"}) EXPECT_NE(checked.errors[1].find(unit), std::string::npos) << unit;
  EXPECT_TRUE(checked.errors[2].starts_with("--report '' is not understood")) << checked.errors[2];
  ASSERT_EQ(checked.warnings.size(), 1U);
  EXPECT_NE(checked.warnings[0].find("KOILA_MODUS"), std::string::npos);
}

TEST(CommandLine, ProgramBehindTheMarkOrTheFirstWord) {
  const auto program_of = [](const Words& words) {
    CLI::App app;
    bool flag = false;
    app.add_flag("-q", flag);
    Words program;
    EXPECT_FALSE(parse(app, "x", words, &program));
    return program;
  };
  EXPECT_EQ(program_of({}), Words{});
  EXPECT_EQ(program_of({"-q", "--", "a", "-q", "--", "b"}), (Words{"a", "-q", "--", "b"}));
  EXPECT_EQ(program_of({"a", "-q"}), (Words{"a", "-q"}));
  EXPECT_EQ(program_of({"--", "-a"}), Words{"-a"});
}

TEST(CommandLine, WrongOnesAreSaid) {
  const auto status_of = [](const Words& words) {
    CLI::App app;
    std::string value;
    app.add_option("--value", value);
    Words program;
    return parse(app, "x", words, &program);
  };
  EXPECT_EQ(status_of({"--valeu", "1"}), kWrongUse);
  EXPECT_EQ(status_of({"--value"}), kWrongUse);
  EXPECT_EQ(status_of({"--help"}), kDone);
}

TEST(CommandLine, NearestName) {
  EXPECT_EQ(nearest("rnu", {"run", "report"}), "run");
  EXPECT_EQ(nearest("--mdoe", {"--mode", "--log"}), "--mode");
  EXPECT_EQ(nearest("something", {"run", "report"}), "");
}

}  // namespace
}  // namespace koila::tool
