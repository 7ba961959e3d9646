#include "runtime/report/page.h"

#include <algorithm>
#include <cstddef>

#include "runtime/printable.h"

namespace koila {
namespace {

constexpr const char* kPrefix = "koila: ";
constexpr std::size_t kNarrowest = 40;  // a terminal that says it is narrower is not believed

bool starts_a_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

std::size_t width(const std::string& text) { return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_a_character)); }

// Whether the blank at `at` stands between a number and its unit.
bool is_before_unit(const std::string& text, std::size_t at) {
  if (at == 0 || at >= text.size() || text[at - 1] < '0' || text[at - 1] > '9') return false;
  const std::string word = text.substr(at + 1, text.find_first_of(" ,;:)", at + 1) - at - 1);
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "ms", "s", "min", "h"};
  return std::find(std::begin(kUnits), std::end(kUnits), word) != std::end(kUnits);
}

// Lines of at most `columns` characters; a word that is longer is broken.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines(1);
  std::size_t used = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = std::min(text.find(' ', begin), text.size());
    if (is_before_unit(text, end)) end = std::min(text.find(' ', end + 1), text.size());
    const std::string word = text.substr(begin, end - begin);
    const std::size_t wide = width(word);
    if (used > 0 && used + 1 + wide > columns) {
      lines.emplace_back();
      used = 0;
    }
    if (used > 0) lines.back() += ' ', ++used;
    for (const char c : word) {
      if (used == columns && starts_a_character(c)) {
        lines.emplace_back();
        used = 0;
      }
      lines.back() += c;
      if (starts_a_character(c)) ++used;
    }
    begin = end + 1;
  }
  return lines;
}

const char* code_of(Tone tone) {
  switch (tone) {
    case Tone::kTitle: return "\x1b[1m";
    case Tone::kGood: return "\x1b[32m";
    case Tone::kBad: return "\x1b[31m";
    case Tone::kNote: return "\x1b[36m";
    case Tone::kPlain: break;
  }
  return "";
}

}  // namespace

// Names and reasons come from the program: none of them may move the cursor, or end the line.
void Page::add(const std::string& line, int rank, Tone tone, int indent) { entries_.push_back({printable(line), rank, tone, indent}); }

std::string Page::text(const TextStyle& style) const {
  const std::size_t columns = std::max(style.columns > 0 ? static_cast<std::size_t>(style.columns) : std::size_t{kTextColumns}, kNarrowest);
  struct Block {
    const Entry* entry;
    std::vector<std::string> lines;
  };
  std::vector<Block> blocks;
  std::size_t total = 0;
  const auto add = [&](const Entry& entry) {
    // What is wrapped goes on two columns further in.
    const std::size_t margin = std::string(kPrefix).size() + 2 * static_cast<std::size_t>(entry.indent) + 2;
    std::vector<std::string> lines = wrapped(entry.line, columns - margin + 2);
    if (lines.size() > 1) lines = wrapped(entry.line, columns - margin);
    total += lines.size();
    blocks.push_back({&entry, std::move(lines)});
  };
  for (const Entry& entry : entries_) add(entry);

  Entry rest{"", 0, Tone::kPlain, 1};
  std::size_t dropped = 0;
  while (total + (dropped > 0 ? 1 : 0) > kTextLines) {
    const auto last = std::max_element(blocks.rbegin(), blocks.rend(), [](const Block& a, const Block& b) { return a.entry->rank < b.entry->rank; });
    if (last->entry->rank == 0) break;
    total -= last->lines.size();
    ++dropped;
    blocks.erase(std::next(last).base());
  }
  if (dropped > 0) {
    rest.line = "(" + std::to_string(dropped) + " more in KOILA_REPORT=run.json or run.html)";
    blocks.insert(blocks.end() - (blocks.empty() || blocks.back().entry->rank > 0 ? 0 : 1), {&rest, {rest.line}});
  }

  std::string text;
  for (const Block& block : blocks) {
    const std::string colour = style.colour ? code_of(block.entry->tone) : "";
    for (std::size_t i = 0; i < block.lines.size(); ++i) {
      text += kPrefix + std::string(2 * static_cast<std::size_t>(block.entry->indent) + (i > 0 ? 2 : 0), ' ');
      text += colour + block.lines[i] + (colour.empty() ? "\n" : "\x1b[0m\n");
    }
  }
  return text;
}

}  // namespace koila
