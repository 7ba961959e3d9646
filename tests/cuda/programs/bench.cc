// Times a cudaMalloc and the cudaFree of it, pair by pair: bench THREADS PAIRS. Prints the median, the 99th percentile and the mean in nanoseconds.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

double now() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void pairs(std::vector<float>& times, std::size_t bytes) {
  for (float& time : times) {
    void* p = nullptr;
    const double begin = now();
    if (cudaMalloc(&p, bytes) != cudaSuccess || cudaFree(p) != cudaSuccess) std::abort();
    time = static_cast<float>(now() - begin);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 1;
  const int length = argc > 2 ? std::atoi(argv[2]) : 100'000;
  std::vector<std::vector<float>> times(static_cast<std::size_t>(count), std::vector<float>(static_cast<std::size_t>(length)));
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      // A device's blocks are seldom its only ones: some two hundred more per thread.
      for (int i = 0; i < 200; ++i) {
        void* p = nullptr;
        if (cudaMalloc(&p, 4096) != cudaSuccess) std::abort();
      }
      ++ready;
      while (ready < count) std::this_thread::yield();
      pairs(times[static_cast<std::size_t>(t)], std::size_t{1} << 20);
    });
  }
  for (std::thread& thread : threads) thread.join();

  std::vector<float> all;
  for (const auto& mine : times) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  double sum = 0;
  for (const float time : all) sum += static_cast<double>(time);
  std::printf("%.1f %.1f %.1f\n", static_cast<double>(all[all.size() / 2]), static_cast<double>(all[all.size() * 99 / 100]),
              sum / static_cast<double>(all.size()));
  return 0;
}
