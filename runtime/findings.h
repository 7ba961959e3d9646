// What was found out about the program: facts of how it trains, and what adds up. For the report's advice.
#ifndef KOILA_RUNTIME_FINDINGS_H_
#define KOILA_RUNTIME_FINDINGS_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/report/data.h"

namespace koila {

constexpr std::size_t kMaxLeaks = 20;

// Thread-safe.
class Findings {
 public:
  // enum koila_fact: counts are added up, of bytes the most is kept. What is none of them is left out.
  void add_fact(int fact, std::int64_t value);
  // Takes the place of one of the same device, category, op and where; a holder that was known stays known. No bytes and no nodes: it adds up no
  // more, and is taken off. Of too many the largest stay.
  void add_leak(const Leak& leak);

  ProgramFacts facts() const;
  std::vector<Leak> leaks() const;  // the largest first

 private:
  mutable std::mutex mutex_;
  ProgramFacts facts_;
  std::vector<Leak> leaks_;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_FINDINGS_H_
