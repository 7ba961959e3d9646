// The placement rules that users wrote, kept until an adapter reads them: KOILA_RULES is read, and libraries with KOILA_RULE in them are loaded,
// before torch as well as after.
#ifndef KOILA_RUNTIME_RULE_BOOK_H_
#define KOILA_RUNTIME_RULE_BOOK_H_

#include <mutex>
#include <vector>

#include "runtime/rule_text.h"

namespace koila {

// Thread-safe. Holds kRulesAtMost rules.
class RuleBook {
 public:
  using Reader = void (*)(const char* rule, const char* where);

  // False when it is full. The same rule from the same place counts once.
  bool add(RuleLine line);
  void add_all(std::vector<RuleLine> lines);

  // Reads to `reader` what there is, and from now on what comes, in order. It must not come back here.
  void set_reader(Reader reader);

  void start_anew_after_fork();

 private:
  void put(RuleLine line);

  std::mutex mutex_;
  std::vector<RuleLine> lines_;
  Reader reader_ = nullptr;
};

// The process's one. There from the first call: static initialisation of a library may be what calls first, before this one's.
RuleBook& rule_book();

}  // namespace koila

#endif  // KOILA_RUNTIME_RULE_BOOK_H_
