#include "runtime/rule_text.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "runtime/rule_book.h"

namespace koila {
namespace {

using Kind = PlacementText::Kind;

RuleText good(const std::string& text) {
  const ParsedRule parsed = parse_rule(text);
  EXPECT_TRUE(parsed.rule.has_value()) << text << "\n" << parsed.error;
  return parsed.rule.value_or(RuleText{});
}

TEST(RuleText, ReadsTheWholeLanguage) {
  const RuleText rule = good("mylib::op.some_overload(x: Shard(-2), w: Replicate, p: Partial, any_x: Shard(any), xs: Shard(any but -1, 0), n: rows, size[0]: rows, size[-1]: rows)"
                             " -> Shard(1), Shard(any), Partial  random  # why");
  EXPECT_EQ(rule.name, "mylib::op");
  EXPECT_EQ(rule.overload, "some_overload");
  ASSERT_EQ(rule.arguments.size(), 5U);
  EXPECT_EQ(rule.find("x")->placement.kind, Kind::kShard);
  EXPECT_EQ(rule.find("x")->placement.dim, -2);
  EXPECT_EQ(rule.find("w")->placement.kind, Kind::kReplicate);
  EXPECT_EQ(rule.find("p")->placement.kind, Kind::kPartial);
  EXPECT_EQ(rule.find("any_x")->placement.kind, Kind::kShardAny);
  EXPECT_TRUE(rule.find("any_x")->placement.except.empty());
  EXPECT_EQ(rule.find("xs")->placement.except, (std::vector<int>{-1, 0}));
  EXPECT_EQ(rule.find("y"), nullptr);
  ASSERT_EQ(rule.rows.size(), 3U);
  EXPECT_EQ(rule.rows[0].argument, "n");
  EXPECT_FALSE(rule.rows[0].element);
  EXPECT_EQ(rule.rows[1].element, 0);
  EXPECT_EQ(rule.rows[2].element, -1);
  ASSERT_EQ(rule.outputs.size(), 3U);
  EXPECT_EQ(rule.outputs[0].dim, 1);
  EXPECT_EQ(rule.outputs[1].kind, Kind::kShardAny);
  EXPECT_EQ(rule.outputs[2].kind, Kind::kPartial);
  EXPECT_TRUE(rule.random);
  EXPECT_FALSE(rule.mean);
}

TEST(RuleText, BlanksDoNotMatter) {
  EXPECT_EQ(good("  a::b(x:Shard(0))->Partial mean").name, "a::b");
  EXPECT_TRUE(good("a::b ( x : Shard ( 0 ) )\t->\tPartial mean # mean").mean);
  EXPECT_EQ(good("a::b(x: Shard(0)) -> Shard(0)\r\n").outputs.size(), 1U);
  EXPECT_EQ(good("_a1::B_2.c3(x: Shard(0)) -> Shard(0)").overload, "c3");
}

TEST(RuleText, AFunctionHasTheNameThatPythonHasForIt) {
  EXPECT_EQ(good("mylib.functions.Fused(x: Shard(0), w: Replicate) -> Shard(0)").name, "koila_function::mylib__functions__Fused");
  EXPECT_EQ(good("__main__.Outer.Fused(x: Shard(0)) -> Shard(0), Partial").name, operator_of_function("__main__.Outer.Fused"));
  EXPECT_EQ(good("a.b(x: Shard(0)) -> Shard(0)").overload, "");
  for (const char* text : {"a..b(x: Shard(0)) -> Shard(0)", ".b(x: Shard(0)) -> Shard(0)", "a.b.(x: Shard(0)) -> Shard(0)", "a.1b(x: Shard(0)) -> Shard(0)"}) EXPECT_FALSE(parse_rule(text).rule) << text;
}

TEST(RuleText, NothingIsNoError) {
  for (const char* text : {"", "   ", "# a comment", "\t# mylib::op(", "\r"}) {
    const ParsedRule parsed = parse_rule(text);
    EXPECT_FALSE(parsed.rule) << text;
    EXPECT_EQ(parsed.error, "") << text;
  }
}

struct Bad {
  const char* text;
  const char* error;
};

TEST(RuleText, SaysWhatIsWrongAndWhatWasExpected) {
  const Bad table[] = {
      {"(x: Shard(0)) -> Shard(0)", "column 1: found '(', expected an operator such as mylib::op"},
      {"op(x: Shard(0)) -> Shard(0)", "column 1: 'op' is no operator's name; expected one such as mylib::op or mylib::op.overload"},
      {"  a::b.(x: Shard(0)) -> Shard(0)", "column 3: 'a::b.' is no operator's name; expected one such as mylib::op or mylib::op.overload"},
      {"a::b.c.d(x: Shard(0)) -> Shard(0)", "column 1: 'a::b.c.d' is no operator's name; expected one such as mylib::op or mylib::op.overload"},
      {"a::b::c(x: Shard(0)) -> Shard(0)", "column 1: 'a::b::c' is no operator's name; expected one such as mylib::op or mylib::op.overload"},
      {"a::b", "column 5: the rule ends, expected '(' after the operator's name"},
      {"a::b(x Shard(0)) -> Shard(0)", "column 8: found 'Shard', expected ':' after an argument's name"},
      {"a::b(0: Shard(0)) -> Shard(0)", "column 6: found '0', expected an argument's name"},
      {"a::b(x: Shrad(0)) -> Shard(0)", "column 9: found 'Shrad', expected Replicate, Shard(...), Partial or rows"},
      {"a::b(x: 0) -> Shard(0)", "column 9: found '0', expected Replicate, Shard(...), Partial or rows"},
      {"a::b(x: Shard) -> Shard(0)", "column 14: found ')', expected '(' after Shard"},
      {"a::b(x: Shard(batch)) -> Shard(0)", "column 15: found 'batch', expected a dimension or 'any' within Shard(...)"},
      {"a::b(x: Shard(99999999999)) -> Shard(0)", "column 15: found '99999999999', expected a dimension or 'any' within Shard(...)"},
      {"a::b(x: Shard(0) -> Shard(0)", "column 18: found '-', expected ')' after the arguments"},
      {"a::b(x: Shard(any but)) -> Shard(any)", "column 22: found ')', expected a dimension after 'but'"},
      {"a::b(x: Shard(0), x: Replicate) -> Shard(0)", "argument 'x' stands there twice"},
      {"a::b(x: Shard(0), n: rows, n: rows) -> Shard(0)", "argument 'n' stands there twice"},
      {"a::b(x: Shard(0), x: rows) -> Shard(0)", "argument 'x' stands there twice"},
      {"a::b(x: Shard(0), n[0]: rows, n: Replicate) -> Shard(0)", "argument 'n' stands there twice"},
      {"a::b(x[0]: Shard(0)) -> Shard(0)", "an element such as 'x[0]' can only be rows; a list's placement holds for every element"},
      {"a::b(x: Shard(0), n[one]: rows) -> Shard(0)", "column 21: found 'one', expected an element's number within [...]"},
      {"a::b(x: Shard(0))", "column 18: the rule ends, expected '->' after the arguments"},
      {"a::b(x: Shard(0)) -> ", "column 22: the rule ends, expected Shard(...) or Partial, for each tensor that comes out"},
      {"a::b(x: Shard(0)) -> Replicate", "column 22: found 'Replicate', expected Shard(...) or Partial, for each tensor that comes out"},
      {"a::b(x: Shard(0)) -> rows", "column 22: found 'rows', expected Shard(...) or Partial, for each tensor that comes out"},
      {"a::b(x: Shard(-2)) -> Shard(-2)", "column 23: found 'Shard', expected an output's dimension counted from the front, or any: Shard(0), Shard(any)"},
      {"a::b(x: Shard(any)) -> Shard(any but 1)", "column 24: found 'Shard', expected Shard(any): 'but' belongs to an argument"},
      {"a::b(x: Shard(0)) -> Shard(0) radnom", "column 31: found 'radnom', expected random, mean, a comma and another output, or the end"},
      {"a::b(x: Shard(0)) -> Shard(0);", "column 30: found ';', expected random, mean, a comma and another output, or the end"},
      {"a::b() -> Partial", "no argument is Shard(...) or Partial; expected at least one"},
      {"a::b(x: Replicate) -> Partial", "no argument is Shard(...) or Partial; expected at least one"},
      {"a::b(x: Partial) -> Shard(0)", "an output is Shard(...) and no argument is; expected one to take the rows from"},
      {"a::b(x: Partial, n: rows) -> Partial", "'rows' without an argument that is Shard(...); expected one to take the rows from"},
      {"a::b(x: Shard(0)) -> Shard(any)", "an output is Shard(any) and no argument is; expected one that says which dimension"},
      {"a::b(x: Shard(0)) -> Partial, Shard(0) mean", "'mean' beside an output that is Shard(...); expected Partial outputs only"},
      {"a::b(x: Partial) -> Partial mean", "'mean' without an argument that is Shard(...); expected one whose rows it is the mean of"},
  };
  for (const auto& [text, error] : table) {
    const ParsedRule parsed = parse_rule(text);
    EXPECT_FALSE(parsed.rule) << text;
    EXPECT_EQ(parsed.error, error) << text;
  }
}

TEST(RuleText, ErrorsFitOnALine) {
  EXPECT_EQ(parse_rule(std::string("a::b(\0)", 7)).error, "column 6: found '\\x00', expected an argument's name");
  EXPECT_EQ(parse_rule("a::b(\x1b[31m)").error, "column 6: found '\\x1b', expected an argument's name");
  EXPECT_EQ(parse_rule("a::b(\xff)").error, "column 6: found '\\xff', expected an argument's name");  // the report is UTF-8
  EXPECT_LT(parse_rule("a::b(x: " + std::string(100'000, 'y') + ")").error.size(), 200U);
  EXPECT_LT(parse_rule(std::string(100'000, ':')).error.size(), 200U);
}

TEST(RuleText, LinesAreCounted) {
  const ParsedRules parsed = parse_rules("\xef\xbb\xbf# mine\r\na::b(x: Shard(0)) -> Shard(0)\r\n\r\nnonsense\na::c(x: Partial) -> Partial", "my.rules");
  ASSERT_EQ(parsed.rules.size(), 2U);
  EXPECT_EQ(parsed.rules[0].where, "my.rules:2");
  EXPECT_EQ(parsed.rules[1].where, "my.rules:5");
  EXPECT_EQ(parse_rule(parsed.rules[1].text).rule->name, "a::c");
  ASSERT_EQ(parsed.errors.size(), 1U);
  EXPECT_EQ(parsed.errors[0], "my.rules:4: column 1: 'nonsense' is no operator's name; expected one such as mylib::op or mylib::op.overload; the line is left out");
}

TEST(RuleText, ManyErrorsAreCountedAndNotSaid) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "bad\n";
  const ParsedRules parsed = parse_rules(text + "a::b(x: Shard(0)) -> Shard(0)\n", "f");
  EXPECT_EQ(parsed.rules.size(), 1U);
  ASSERT_EQ(parsed.errors.size(), kRuleErrorsSaid + 1);
  EXPECT_TRUE(parsed.errors[4].starts_with("f:5: "));
  EXPECT_EQ(parsed.errors.back(), "f: and 95 more lines that are no rules");
}

TEST(RuleText, AMillionLinesEndSoon) {
  std::string bad, rules;
  for (int i = 0; i < 1'000'000; ++i) {
    bad += "bad\n";
    rules += "a::b(x: Shard(0)) -> Shard(0)\n";
  }
  EXPECT_LE(parse_rules(bad, "f").errors.size(), kRuleErrorsSaid + 1);
  const ParsedRules parsed = parse_rules(rules, "f");
  EXPECT_EQ(parsed.rules.size(), kRulesAtMost);
  ASSERT_EQ(parsed.errors.size(), 1U);
  EXPECT_EQ(parsed.errors[0], "f:10001: more than 10000 rules; those from here on are left out");
}

class RuleFile : public ::testing::Test {
 protected:
  RuleFile() {
    char name[] = "/tmp/koila-rules-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~RuleFile() override {
    unlink(path().c_str());
    rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/rules"; }
  std::string error() const {
    const ParsedRules parsed = read_rules(path());
    EXPECT_TRUE(parsed.rules.empty());
    EXPECT_EQ(parsed.errors.size(), 1U);
    return parsed.errors.empty() ? "" : parsed.errors[0];
  }

  std::string folder_;
};

TEST_F(RuleFile, IsRead) {
  std::ofstream(path()) << "a::b(x: Shard(0)) -> Shard(0)";
  const ParsedRules parsed = read_rules(path());
  EXPECT_TRUE(parsed.errors.empty());
  ASSERT_EQ(parsed.rules.size(), 1U);
  EXPECT_EQ(parsed.rules[0].where, path() + ":1");
}

TEST_F(RuleFile, EmptyIsNoError) {
  std::ofstream(path()) << "";
  EXPECT_TRUE(read_rules(path()).errors.empty());
}

TEST_F(RuleFile, ThatIsNotThere) { EXPECT_EQ(error(), "KOILA_RULES=" + path() + " cannot be read: No such file or directory; using no rules of yours"); }

TEST_F(RuleFile, IsNoFolder) {
  EXPECT_EQ(read_rules(folder_).errors.at(0), "KOILA_RULES=" + folder_ + " cannot be read: it is not a regular file; using no rules of yours");
}

TEST_F(RuleFile, IsNoPipeThatNobodyWritesTo) {
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  alarm(20);  // a read that waits would wait for ever
  EXPECT_EQ(error(), "KOILA_RULES=" + path() + " cannot be read: it is not a regular file; using no rules of yours");
  alarm(0);
}

TEST_F(RuleFile, ThatIsTooLargeIsNotRead) {
  std::ofstream(path()) << "";
  ASSERT_EQ(truncate(path().c_str(), 1LL << 40), 0);
  EXPECT_EQ(error(), "KOILA_RULES=" + path() + " cannot be read: it is larger than 64 MiB; using no rules of yours");
}

std::vector<std::string> heard;
void hear(const char* rule, const char* where) { heard.push_back(std::string(where) + " " + rule); }

TEST(RuleBook, TellsWhatCameBeforeAndAfter) {
  heard.clear();
  RuleBook book;
  book.add_all(std::vector<RuleLine>{{"one", "f:1"}, {"two", "f:2"}});
  EXPECT_TRUE(book.add({"three", "g:1"}));
  book.set_reader(&hear);
  EXPECT_EQ(heard, (std::vector<std::string>{"f:1 one", "f:2 two", "g:1 three"}));
  EXPECT_TRUE(book.add({"four", "g:2"}));
  EXPECT_TRUE(book.add({"three", "g:1"}));  // the same library again
  EXPECT_EQ(heard.size(), 4U);
  EXPECT_EQ(heard.back(), "g:2 four");
  book.set_reader(nullptr);
}

TEST(RuleBook, IsFullAtSomeTime) {
  RuleBook book;
  book.add_all(std::vector<RuleLine>(kRulesAtMost, {"rule", "f:1"}));
  EXPECT_FALSE(book.add({"another", "f:2"}));
}

}  // namespace
}  // namespace koila
