// What koila::step costs over the same step by hand: all rows at once, in one pass over micro-batches, in two (as GradCache does it). Prints a line for each round:
// microseconds of each, in the order of the first line. scripts/bench_batch.
#include <koila/step.h>

#include <ATen/ATen.h>

#include <cstdlib>
#include <vector>

#include "tests/api/rounds.h"

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 100;
  constexpr std::int64_t kRows = 256, kSize = 64, kWidth = 512;
  at::set_num_threads(1);
  at::manual_seed(0);
  std::vector<at::Tensor> weights;
  for (int layer = 0; layer < 4; ++layer) weights.push_back((at::randn({kWidth, kWidth}) / 22).requires_grad_());
  const at::Tensor x = at::randn({kRows, kWidth}), y = at::randint(kWidth, {kRows});

  const auto forward = [&](const at::Tensor& rows) {
    at::Tensor h = rows;
    for (const at::Tensor& weight : weights) h = h.mm(weight).relu();
    return h;
  };
  const auto loss = [&](const at::Tensor& outputs, std::int64_t begin, std::int64_t end) { return at::cross_entropy_loss(outputs, y.slice(0, begin, end)); };
  const auto rows = [&](std::int64_t begin) { return x.slice(0, begin, begin + kSize); };
  const auto anew = [&] {
    for (at::Tensor& weight : weights) weight.mutable_grad().reset();
  };
  const auto in_micro_batches = koila::StepOptions().with_micro_batch(kSize);
  const auto in_one_pass = in_micro_batches.with_separable(koila::Separable::kMean);

  time_in_turn({
      {"plain step", [&] { anew(); loss(forward(x), 0, kRows).backward(); }},
      {"koila::step, all rows", [&] { anew(); koila::step(x, forward, loss); }},
      {"one pass by hand", [&] {
        anew();
        for (std::int64_t begin = 0; begin < kRows; begin += kSize) (loss(forward(rows(begin)), begin, begin + kSize) / 4).backward();
      }},
      {"koila::step, one pass", [&] { anew(); koila::step(x, forward, loss, in_one_pass); }},
      {"two passes by hand", [&] {
        anew();
        std::vector<at::Tensor> parts;
        {
          const at::NoGradGuard no_grad;
          for (std::int64_t begin = 0; begin < kRows; begin += kSize) parts.push_back(forward(rows(begin)));
        }
        const at::Tensor outputs = at::cat(parts).requires_grad_();
        loss(outputs, 0, kRows).backward();
        for (std::int64_t begin = 0; begin < kRows; begin += kSize) forward(rows(begin)).backward(outputs.grad().slice(0, begin, begin + kSize));
      }},
      {"koila::step, two passes", [&] { anew(); koila::step(x, forward, loss, in_micro_batches); }},
  }, rounds);
}
