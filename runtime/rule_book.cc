#include "runtime/rule_book.h"

#include <algorithm>
#include <new>
#include <utility>

namespace koila {

void RuleBook::put(RuleLine line) {
  lines_.push_back(std::move(line));
  if (reader_ != nullptr) reader_(lines_.back().text.c_str(), lines_.back().where.c_str());
}

bool RuleBook::add(RuleLine line) {
  const std::lock_guard lock(mutex_);
  const auto same = [&](const RuleLine& other) { return other.text == line.text && other.where == line.where; };
  if (std::any_of(lines_.begin(), lines_.end(), same)) return true;
  if (lines_.size() >= kRulesAtMost) return false;
  put(std::move(line));
  return true;
}

void RuleBook::add_all(std::vector<RuleLine> lines) {
  const std::lock_guard lock(mutex_);
  for (RuleLine& line : lines) {
    if (lines_.size() < kRulesAtMost) put(std::move(line));
  }
}

void RuleBook::set_reader(Reader reader) {
  const std::lock_guard lock(mutex_);
  reader_ = reader;
  if (reader == nullptr) return;
  for (const RuleLine& line : lines_) reader(line.text.c_str(), line.where.c_str());
}

void RuleBook::start_anew_after_fork() { new (&mutex_) std::mutex; }  // another thread may have held it

RuleBook& rule_book() {
  static auto* book = new RuleBook;  // never destroyed: threads may outlive static destruction
  return *book;
}

}  // namespace koila
