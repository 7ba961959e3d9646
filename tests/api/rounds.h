// Ways to do the same, timed against one another: each once in turn. For scripts/bench_batch.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

using Ways = std::vector<std::pair<std::string, std::function<void()>>>;

// Prints their names, and a line for each round: microseconds of each.
inline void time_in_turn(const Ways& ways, int rounds) {
  for (std::size_t i = 0; i < ways.size(); ++i) std::printf("%s%s", i > 0 ? ";" : "", ways[i].first.c_str());
  std::printf("\n");
  for (int round = -10; round < rounds; ++round) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      ways[i].second();
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      if (round >= 0) std::printf("%s%.3f", i > 0 ? ";" : "", took.count());
    }
    if (round >= 0) std::printf("\n");
  }
}
