#include "tool/command_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string_view>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "runtime/edit_distance.h"
#include "runtime/printable.h"
#include "tool/files.h"

namespace koila::tool {
namespace {

class Formatter : public CLI::Formatter {
 public:
  explicit Formatter(std::string usage) : usage_(std::move(usage)) {}
  std::string make_usage(const CLI::App*, std::string) const override { return "Usage: " + usage_ + "\n"; }

 private:
  std::string usage_;
};

// At most one empty line at a time, where a group of options is left out, and an end to the last.
std::string tidy(std::string help) {
  for (std::size_t at; (at = help.find("\n\n\n")) != std::string::npos;) help.erase(at, 1);
  return help.ends_with("\n") ? help : help + "\n";
}

Words option_names(const CLI::App& app) {
  Words names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

int unknown_option(const CLI::App& app, const std::string& word) {
  const std::string near = nearest(word.substr(0, word.find('=')), option_names(app));
  return fail("no option " + word + (near.empty() ? "." : "; did you mean " + near + "?") + " See " + app.get_name() + " --help");
}

// CLI11's words for an option whose value is missing, or no number: "--batch-env: 1 required NAME missing", "Could not convert: --steps = abc".
std::string told(const CLI::ParseError& error) {
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) return text.substr(0, text.find(':')) + " wants a value";
  const std::size_t option = text.find("--"), value = text.find(" = ");
  if (dynamic_cast<const CLI::ConversionError*>(&error) == nullptr || option == std::string::npos || value == std::string::npos || value < option) return text;
  return text.substr(option, value - option) + " " + text.substr(value + 3) + " is not understood: want a number";
}

}  // namespace

std::string nearest(const std::string& name, const Words& names) {
  std::string best;
  int least = std::max(2, static_cast<int>(name.size()) / 3) + 1;
  for (const std::string& candidate : names) {
    if (const int distance = edit_distance(name, candidate); distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::optional<int> parse(CLI::App& app, const std::string& usage, const Words& words, Words* program) {
  const auto formatter = std::make_shared<Formatter>(usage);
  formatter->column_width(30);
  app.formatter(formatter);
  if (words.size() == 1 && words[0] == kListOptions) {
    for (const std::string& name : option_names(app)) std::puts(name.c_str());
    return kDone;
  }
  Words own = words;
  Words behind;
  bool has_mark = false;
  if (program != nullptr) {
    app.prefix_command();
    // CLI11 would drop the mark, which also may be the program's.
    const auto mark = std::find(words.begin(), words.end(), "--");
    has_mark = mark != words.end();
    own.assign(words.begin(), mark);
    if (has_mark) behind.assign(mark + 1, words.end());
  }
  std::reverse(own.begin(), own.end());  // as CLI11 wants them
  try {
    app.parse(own);
  } catch (const CLI::CallForHelp&) {
    std::fputs(tidy(app.help()).c_str(), stdout);
    return kDone;
  } catch (const CLI::ExtrasError&) {
    const Words extra = app.remaining();
    if (!extra.empty() && extra[0].starts_with("-")) return unknown_option(app, extra[0]);
    return fail(std::string("one word too many: ") + (extra.empty() ? "" : extra[0]) + ". See " + app.get_name() + " --help");
  } catch (const CLI::ParseError& error) {
    return fail(told(error) + ". See " + app.get_name() + " --help");
  }
  if (program == nullptr) return std::nullopt;
  *program = app.remaining();
  if (!program->empty() && program->front().starts_with("-")) return unknown_option(app, program->front());
  if (!program->empty() && has_mark) program->push_back("--");
  program->insert(program->end(), behind.begin(), behind.end());
  return std::nullopt;
}

void say(const std::string& line) { std::fprintf(stderr, "koila: %s\n", printable(line).c_str()); }

int fail(const std::string& line) {
  const bool colour = wants_colour(STDERR_FILENO);
  std::fprintf(stderr, "koila: %serror:%s %s\n", colour ? "\033[31m" : "", colour ? "\033[0m" : "", printable(line).c_str());
  return kWrongUse;
}

bool wants_colour(int file) { return isatty(file) != 0 && variable("NO_COLOR").empty() && variable("TERM") != "dumb"; }

}  // namespace koila::tool
