// Rows of a MiB each through koila::range and chunked, and what was tried: "range 64 32 16" and so on. tests/api/test_batch.py runs it with and
// without koila. C++17, as many LibTorch programs are.
#include <koila/torch.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::int64_t kRows = 32, kColumns = 1 << 18;  // floats

// The rows times two plus one, with as much again in between.
at::Tensor compute(const at::Tensor& rows) { return rows.mul(2).add(1); }

void print(const char* name, std::int64_t rows) { std::printf("%s %lld\n", name, static_cast<long long>(rows)); }

}  // namespace

int main(int argc, char** argv) {
  const c10::InferenceMode inference;
  koila::BatchOptions options;
  if (argc > 1) options.cpu_memory = std::atoll(argv[1]) << 20;

  const at::Tensor input = at::arange(0, kRows, at::kFloat).unsqueeze(1).expand({kRows, kColumns});  // takes no memory
  const at::Tensor result = at::zeros({kRows});
  for (int call = 0; call < 2; ++call) {
    koila::range(0, kRows, kRows, [&](std::int64_t begin, std::int64_t end) {
      print("range", end - begin);
      result.slice(0, begin, end).copy_(compute(input.slice(0, begin, end)).mean(1));
    }, options.with_context("range"));
  }
  koila::chunked(result, kRows, [&](at::Tensor chunk, std::int64_t begin, std::int64_t end) {
    print("chunked", end - begin);
    chunk.sub_(compute(input.slice(0, begin, end)).mean(1));
  }, options.with_context("chunked"));
  std::printf("off by %g\n", result.abs().max().item<double>());
  if (const auto& koila = koila::detail::Abi::get()) print("budget", koila.budget_bytes(-1) >> 20);
  for (const auto& entry : koila::default_size_cache().entries()) std::printf("entry %s %lld\n", entry.where.c_str(), static_cast<long long>(entry.size));
}
