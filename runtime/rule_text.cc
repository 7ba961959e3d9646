#include "runtime/rule_text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace koila {
namespace {

constexpr std::size_t kFileBytesAtMost = 64U << 20;

// What was wrong; travels up the parser, and no further.
struct Malformed {
  std::string text;
};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// A piece of the user's text, fit for one line of a log.
std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 40;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + (text.size() > kShown ? "...'" : "'");
}

// Words and signs of one rule, from left to right. A view into the text.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text.substr(0, text.find('#'))) { skip_blanks(); }

  bool at_end() const { return position_ == text_.size(); }

  bool take(std::string_view sign) {
    if (!text_.substr(position_).starts_with(sign)) return false;
    position_ += sign.size();
    skip_blanks();
    return true;
  }

  void expect(std::string_view sign, const char* after) {
    if (!take(sign)) fail(in_quotes(sign) + " after " + after);
  }

  // A name; empty when none stands here.
  std::string_view word() {
    if (at_end() || !is_letter(text_[position_])) return {};
    const std::string_view found = peek();
    position_ += found.size();
    skip_blanks();
    return found;
  }

  std::string_view expect_word(const std::string& what) {
    const std::string_view found = word();
    if (found.empty()) fail(what);
    return found;
  }

  int expect_integer(const std::string& what) {
    const std::string_view rest = text_.substr(position_);
    int value = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc()) fail(what);
    position_ += static_cast<std::size_t>(end - rest.data());
    skip_blanks();
    return value;
  }

  // The operator's name has no blanks in it.
  std::string_view operator_name() {
    std::size_t end = position_;
    while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]) || text_[end] == ':' || text_[end] == '.')) ++end;
    const std::string_view found = text_.substr(position_, end - position_);
    position_ = end;
    skip_blanks();
    return found;
  }

  std::size_t column() const { return position_ + 1; }

  [[noreturn]] void fail(const std::string& expected) const {
    const std::string met = at_end() ? "the rule ends" : "found " + in_quotes(peek());
    throw Malformed{"column " + std::to_string(column()) + ": " + met + ", expected " + expected};
  }

 private:
  void skip_blanks() {
    while (position_ < text_.size() && is_blank(text_[position_])) ++position_;
  }

  // The word that stands here, or the one sign.
  std::string_view peek() const {
    std::size_t end = position_;
    while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
    return text_.substr(position_, std::max<std::size_t>(end - position_, 1));
  }

  std::string_view text_;
  std::size_t position_ = 0;
};

bool is_name(std::string_view text) {
  return !text.empty() && is_letter(text[0]) && std::all_of(text.begin(), text.end(), [](char c) { return is_letter(c) || is_digit(c); });
}

// "mylib.functions.Fused": names between dots.
bool is_function(std::string_view full) {
  if (full.find('.') == std::string_view::npos) return false;
  for (std::size_t dot = 0; dot != std::string_view::npos;) {
    dot = full.find('.');
    if (!is_name(full.substr(0, dot))) return false;
    full.remove_prefix(dot == std::string_view::npos ? full.size() : dot + 1);
  }
  return true;
}

// "mylib::op" or "mylib::op.overload", or the name that Python has for an autograd.Function.
void read_operator(Scanner& scanner, RuleText& rule) {
  const std::size_t column = scanner.column();
  const std::string_view full = scanner.operator_name();
  if (is_function(full)) {
    rule.name = operator_of_function(full);
    return;
  }
  const std::size_t colons = full.find("::");
  const std::size_t dot = full.find('.', colons == std::string_view::npos ? 0 : colons);
  const bool overloaded = dot != std::string_view::npos;
  if (colons == std::string_view::npos || !is_name(full.substr(0, colons)) || !is_name(full.substr(colons + 2, dot - colons - 2)) ||
      (overloaded && !is_name(full.substr(dot + 1)))) {
    if (full.empty()) scanner.fail("an operator such as mylib::op");
    throw Malformed{"column " + std::to_string(column) + ": " + in_quotes(full) + " is no operator's name; expected one such as mylib::op or mylib::op.overload"};
  }
  rule.name = full.substr(0, dot);
  if (overloaded) rule.overload = full.substr(dot + 1);
}

// Behind "Shard": "(0)", "(-1)", "(any)", "(any but -1, 0)".
PlacementText read_shard(Scanner& scanner) {
  PlacementText placement;
  scanner.expect("(", "Shard");
  if (scanner.take("any")) {
    placement.kind = PlacementText::Kind::kShardAny;
    if (scanner.take("but")) {
      do placement.except.push_back(scanner.expect_integer("a dimension after 'but'"));
      while (scanner.take(","));
    }
  } else {
    placement.kind = PlacementText::Kind::kShard;
    placement.dim = scanner.expect_integer("a dimension or 'any' within Shard(...)");
  }
  scanner.expect(")", "Shard's dimension");
  return placement;
}

// The placement that a word begins, or nothing when it begins none.
std::optional<PlacementText> read_placement(std::string_view word, Scanner& scanner) {
  if (word == "Replicate") return PlacementText{PlacementText::Kind::kReplicate, 0, {}};
  if (word == "Partial") return PlacementText{PlacementText::Kind::kPartial, 0, {}};
  if (word == "Shard") return read_shard(scanner);
  return std::nullopt;
}

void read_argument(Scanner& scanner, RuleText& rule) {
  const std::string name(scanner.expect_word("an argument's name"));
  std::optional<int> element;
  if (scanner.take("[")) {
    element = scanner.expect_integer("an element's number within [...]");
    scanner.expect("]", "the element's number");
  }
  scanner.expect(":", "an argument's name");
  const Scanner before = scanner;
  const std::string_view word = scanner.word();
  if (word == "rows") {
    const auto same = [&](const RowsText& other) { return other.argument == name && (other.element == element || !other.element || !element); };
    if (rule.find(name) != nullptr || std::any_of(rule.rows.begin(), rule.rows.end(), same)) throw Malformed{"argument " + in_quotes(name) + " stands there twice"};
    rule.rows.push_back({name, element});
    return;
  }
  const auto placement = read_placement(word, scanner);
  if (!placement) before.fail("Replicate, Shard(...), Partial or rows");
  if (element) throw Malformed{"an element such as " + in_quotes(name + "[" + std::to_string(*element) + "]") + " can only be rows; a list's placement holds for every element"};
  const auto same = [&](const RowsText& other) { return other.argument == name; };
  if (rule.find(name) != nullptr || std::any_of(rule.rows.begin(), rule.rows.end(), same)) throw Malformed{"argument " + in_quotes(name) + " stands there twice"};
  rule.arguments.push_back({name, *placement});
}

void read_output(Scanner& scanner, RuleText& rule) {
  const Scanner before = scanner;
  const auto placement = read_placement(scanner.word(), scanner);
  if (!placement || placement->kind == PlacementText::Kind::kReplicate) before.fail("Shard(...) or Partial, for each tensor that comes out");
  if (placement->kind == PlacementText::Kind::kShard && placement->dim < 0) before.fail("an output's dimension counted from the front, or any: Shard(0), Shard(any)");
  if (!placement->except.empty()) before.fail("Shard(any): 'but' belongs to an argument");
  rule.outputs.push_back(*placement);
}

void read_flag(Scanner& scanner, RuleText& rule) {
  const Scanner before = scanner;
  const std::string_view word = scanner.word();
  if (word == "random") rule.random = true;
  else if (word == "mean") rule.mean = true;
  else before.fail("random, mean, a comma and another output, or the end");
}

// What is well written and still means nothing.
void check(const RuleText& rule) {
  using Kind = PlacementText::Kind;
  const auto argument = [&](auto f) { return std::any_of(rule.arguments.begin(), rule.arguments.end(), [&](const ArgumentText& a) { return f(a.placement); }); };
  const auto output = [&](auto f) { return std::any_of(rule.outputs.begin(), rule.outputs.end(), f); };
  const bool shards = argument([](const PlacementText& p) { return p.is_shard(); });
  if (!shards && !argument([](const PlacementText& p) { return p.kind == Kind::kPartial; })) throw Malformed{"no argument is Shard(...) or Partial; expected at least one"};
  if (!shards && output([](const PlacementText& p) { return p.is_shard(); })) throw Malformed{"an output is Shard(...) and no argument is; expected one to take the rows from"};
  if (!shards && !rule.rows.empty()) throw Malformed{"'rows' without an argument that is Shard(...); expected one to take the rows from"};
  if (output([](const PlacementText& p) { return p.kind == Kind::kShardAny; }) && !argument([](const PlacementText& p) { return p.kind == Kind::kShardAny; }))
    throw Malformed{"an output is Shard(any) and no argument is; expected one that says which dimension"};
  if (rule.mean && output([](const PlacementText& p) { return p.is_shard(); })) throw Malformed{"'mean' beside an output that is Shard(...); expected Partial outputs only"};
  if (rule.mean && !shards) throw Malformed{"'mean' without an argument that is Shard(...); expected one whose rows it is the mean of"};
}

RuleText read_rule(Scanner& scanner) {
  RuleText rule;
  read_operator(scanner, rule);
  scanner.expect("(", "the operator's name");
  if (!scanner.take(")")) {
    do read_argument(scanner, rule);
    while (scanner.take(","));
    scanner.expect(")", "the arguments");
  }
  scanner.expect("->", "the arguments");
  do read_output(scanner, rule);
  while (scanner.take(","));
  while (!scanner.at_end()) read_flag(scanner, rule);
  check(rule);
  return rule;
}

// The whole of a regular file, or what went wrong. A pipe or a terminal would keep the program waiting.
std::pair<std::string, std::string> contents_of(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (file < 0) return {"", std::strerror(errno)};
  std::string text, problem;
  struct stat status;
  if (fstat(file, &status) != 0) problem = std::strerror(errno);
  else if (!S_ISREG(status.st_mode)) problem = "it is not a regular file";
  else if (static_cast<std::size_t>(status.st_size) > kFileBytesAtMost) problem = "it is larger than 64 MiB";
  char buffer[1 << 16];
  while (problem.empty() && text.size() <= kFileBytesAtMost) {
    const ssize_t n = read(file, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) problem = std::strerror(errno);
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  close(file);
  return {std::move(text), std::move(problem)};
}

}  // namespace

const ArgumentText* RuleText::find(std::string_view argument) const {
  const auto found = std::find_if(arguments.begin(), arguments.end(), [&](const ArgumentText& a) { return a.name == argument; });
  return found == arguments.end() ? nullptr : &*found;
}

std::string operator_of_function(std::string_view function) {
  std::string name = "koila_function::";
  for (const char c : function) {
    if (c == '.') name += "__";
    else name += c;
  }
  return name;
}

ParsedRule parse_rule(std::string_view text) {
  Scanner scanner(text);
  if (scanner.at_end()) return {};
  try {
    return {read_rule(scanner), ""};
  } catch (const Malformed& problem) {
    return {std::nullopt, problem.text};
  }
}

ParsedRules parse_rules(std::string_view text, const std::string& file) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  ParsedRules parsed;
  std::size_t unsaid = 0;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const ParsedRule one = parse_rule(line);
    const auto where = [&] { return file + ":" + std::to_string(number); };
    if (one.rule && parsed.rules.size() == kRulesAtMost) {
      parsed.errors.push_back(where() + ": more than " + std::to_string(kRulesAtMost) + " rules; those from here on are left out");
      break;
    }
    if (one.rule) {
      parsed.rules.push_back({std::string(line), where()});
    } else if (!one.error.empty()) {
      if (parsed.errors.size() < kRuleErrorsSaid) parsed.errors.push_back(where() + ": " + one.error + "; the line is left out");
      else if (++unsaid == kRulesAtMost) break;  // no file of rules
    }
  }
  if (unsaid > 0) parsed.errors.push_back(file + ": and " + std::to_string(unsaid) + " more lines that are no rules" + (text.empty() ? "" : "; what follows them is not read"));
  return parsed;
}

ParsedRules read_rules(const std::string& path) {
  const auto [text, problem] = contents_of(path);
  if (problem.empty()) return parse_rules(text, path);
  ParsedRules parsed;
  parsed.errors.push_back("KOILA_RULES=" + path + " cannot be read: " + problem + "; using no rules of yours");
  return parsed;
}

}  // namespace koila
