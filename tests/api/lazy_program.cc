// Three training steps of a small network (smooth: a rounding must not turn a ReLU on), its batch named with koila::lazy or not, and what came out of them, as floats in a file. tests/api/test_lazy_api.py runs it
// with and without koila. C++17, as many LibTorch programs are.
//
//     lazy_program HOW FILE
//
// HOW: plain, inputs, both, by_hand (300 rows at a time), elsewhere (both, on a thread that koila does not watch).
#include <koila/lazy.h>

#include <ATen/ATen.h>

#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::int64_t kRows = 1000, kIn = 32, kWidth = 640, kClasses = 10;

void write(std::FILE* file, const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().contiguous();
  std::fwrite(values.const_data_ptr<float>(), sizeof(float), static_cast<std::size_t>(values.numel()), file);
}

void train(const std::string& how, std::FILE* file) {
  at::manual_seed(0);
  const auto parameter = [](at::IntArrayRef sizes) { return at::randn(sizes).mul_(0.05).requires_grad_(); };
  const std::vector<at::Tensor> w{parameter({kWidth, kIn}), parameter({kWidth, kWidth}), parameter({kClasses, kWidth})};
  for (int step = 0; step < 3; ++step) {
    at::Tensor x = at::randn({kRows, kIn}), y = at::randint(kClasses, {kRows});
    if (how == "inputs") x = koila::lazy(x);
    if (how == "both" || how == "elsewhere") {
      const auto named = koila::lazy(std::array<at::Tensor, 2>{x, y});
      x = named[0];
      y = named[1];
    }
    if (how == "by_hand") x = koila::lazy(x, koila::LazyOptions().with_micro_batch(300));
    const at::Tensor hidden = at::tanh(at::linear(at::tanh(at::linear(x, w[0])), w[1]));
    const at::Tensor loss = at::cross_entropy_loss(at::linear(hidden, w[2]), y);
    loss.backward();
    write(file, loss);
    for (const at::Tensor& p : w) {
      write(file, p.grad());
      p.data().sub_(p.grad(), 0.1);
      p.mutable_grad().reset();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::FILE* file = std::fopen(argv[2], "wb");
  if (file == nullptr) return 2;
  int status = 0;
  const auto run = [&] {
    try {
      train(argv[1], file);
    } catch (const c10::OutOfMemoryError&) {
      std::puts("out of memory");
      status = 3;
    }
  };
  if (std::string(argv[1]) == "elsewhere") {
    std::thread(run).join();
  } else {
    run();
  }
  std::fclose(file);
  return status;
}
