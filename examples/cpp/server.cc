// Scores for requests of very different sizes, one after the other, by a process that does not end when memory runs out. docs/cpp.md runs it.
//
// A request is a line, a name and a number of rows; their features are drawn here. The answers come in the order of the requests.

#include <torch/torch.h>

#include <koila/torch.h>

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <iostream>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

namespace {

constexpr int64_t kFeatures = 64, kClasses = 10, kRowsAtOnce = 16384;

struct Request {
  std::string name;
  int64_t rows = 0;
};

// Requests from the thread that reads them to the one that answers.
class Queue {
 public:
  void push(Request request) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(request));
    changed_.notify_one();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_one();
  }
  // Nothing when it is closed and empty.
  std::optional<Request> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
    if (waiting_.empty()) return std::nullopt;
    Request next = std::move(waiting_.front());
    waiting_.pop_front();
    return next;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> waiting_;
  bool closed_ = false;
};

void read_requests(Queue& queue) {
  for (std::string line; std::getline(std::cin, line);) {
    Request request;
    if (std::istringstream(line) >> request.name >> request.rows && request.rows > 0) {
      queue.push(std::move(request));
    } else {
      std::cerr << "not a request: " << line << '\n';
    }
  }
  queue.close();
}

void answer(torch::nn::Sequential& model, const Request& request, koila::SizeCache& sizes) {
  const torch::Tensor features = torch::rand({request.rows, kFeatures}), scores = torch::empty({request.rows, kClasses});
  // What fits is remembered for all requests, whatever their size; after twenty that went through, more is tried.
  const auto options = koila::BatchOptions().with_cache(sizes).with_grow_after(20);
  const int64_t chunk_rows = koila::chunked(scores, kRowsAtOnce, [&](at::Tensor chunk, int64_t begin, int64_t end) {
    chunk.copy_(model->forward(features.slice(0, begin, end)));
  }, options);
  std::printf("%s: %lld rows, mean score %.4f, at most %lld rows at once\n", request.name.c_str(), static_cast<long long>(request.rows),
              scores.mean().item<double>(), static_cast<long long>(chunk_rows));
}

}  // namespace

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(kFeatures, 1024), torch::nn::ReLU(), torch::nn::Linear(1024, kClasses));
  const torch::NoGradGuard no_grad;
  koila::SizeCache sizes(koila::SizeCache::By::kFunction);

  Queue queue;
  std::thread reader(read_requests, std::ref(queue));
  while (const auto request = queue.pop()) {
    try {
      answer(model, *request, sizes);
    } catch (const std::exception& error) {
      // One request that cannot be answered is no reason not to answer the next.
      if (koila::ran_out_of_memory(error)) {
        std::printf("%s: no room for %lld rows\n", request->name.c_str(), static_cast<long long>(request->rows));
      } else {
        std::printf("%s: %s\n", request->name.c_str(), error.what());
      }
    }
    std::fflush(stdout);
  }
  reader.join();
}
