// What koila::batch, range and chunked cost over the loop by hand, on the work of toma's own benchmark: 128 x 256 x 256 floats filled with one,
// 32 rows at a time. Prints a line for each round: microseconds of each, in the order of the first line. scripts/bench_batch.
#include <koila/batch.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdlib>

#include "tests/api/rounds.h"

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
  constexpr std::int64_t kRows = 128, kStep = 32;
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const at::Tensor tensor = at::zeros({kRows, 256, 256});
  const auto fill_chunk = [](at::Tensor chunk, std::int64_t, std::int64_t) { chunk.fill_(1.0); };
  const auto fill_rows = [&](std::int64_t begin, std::int64_t end) { tensor.narrow(0, begin, end - begin).fill_(1.0); };

  const Ways ways = {
      {"loop by hand", [&] { for (std::int64_t at = 0; at < kRows; at += kStep) fill_rows(at, std::min(at + kStep, kRows)); }},
      {"koila::range", [&] { koila::range(0, kRows, kStep, fill_rows); }},
      {"koila::chunked", [&] { koila::chunked(tensor, kStep, fill_chunk); }},
      {"koila::chunked, no cache", [&] { koila::explicit_::chunked(koila::no_size_cache(), tensor, kStep, fill_chunk); }},
      {"one call by hand", [&] { fill_rows(0, kRows); }},
      {"koila::batch", [&] { koila::batch(kRows, [&](std::int64_t rows) { fill_rows(0, rows); }); }},
      // The cost itself: a call that does nothing.
      {"koila::batch of nothing", [] { koila::batch(kRows, [](std::int64_t) {}); }},
      {"koila::batch of nothing, no cache", [] { koila::explicit_::batch(koila::no_size_cache(), kRows, [](std::int64_t) {}); }},
  };
  time_in_turn(ways, rounds);
}
