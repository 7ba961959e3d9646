// A C++ LibTorch program as small as can be: one backward, and one before main.
#include <ATen/ATen.h>

#include <cstdio>

namespace {

float gradient() {
  at::Tensor x = at::ones({3}).requires_grad_();
  (x * 2).sum().backward();
  return x.grad()[0].item<float>();
}

const float before_main = gradient();

}  // namespace

int main() {
  std::printf("%g %g\n", before_main, gradient());
  return 0;
}
