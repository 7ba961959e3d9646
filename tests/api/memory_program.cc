// What a LibTorch program asks koila about memory: one scenario a run, "name value" a line. tests/api/test_memory.py runs it with koila preloaded, and linked.
#include <koila/torch.h>

#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using torch::Tensor;

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kRows = 96, kWidth = 40, kHidden = 72;

void say(const std::string& name, std::int64_t value) { std::printf("%s %lld\n", name.c_str(), static_cast<long long>(value)); }

template <class Tensors>
std::int64_t bytes_of(const Tensors& tensors) {
  std::int64_t sum = 0;
  for (const Tensor& t : tensors) sum += t.defined() ? static_cast<std::int64_t>(t.nbytes()) : 0;
  return sum;
}

// Beyond any budget here.
bool runs_out(std::int64_t bytes = 64 * kMiB) {
  try {
    torch::empty({bytes}, torch::kByte);
    return false;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  }
}

// What koila says of each category, and what the program itself knows.
void categories(torch::Device device) {
  torch::nn::Sequential model(torch::nn::Linear(kWidth, kHidden), torch::nn::ReLU(), torch::nn::Linear(kHidden, kWidth));
  model->to(device);
  torch::optim::Adam optimizer(model->parameters());
  for (int step = 0; step < 3; ++step) {
    const Tensor x = torch::randn({kRows, kWidth}, device), y = torch::randn({kRows, kWidth}, device);
    optimizer.zero_grad();
    const Tensor loss = torch::mse_loss(model->forward(x), y);
    const koila::Memory forward = koila::memory(device);
    loss.backward();
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad());
    if (step == 2) {
      const koila::Memory backward = koila::memory(device);
      const std::int64_t parameters = koila::count(model).parameters.bytes;
      say("parameters", backward.by_category->parameters - parameters);
      say("gradients", backward.by_category->gradients - bytes_of(gradients));
      say("optimizer state", backward.by_category->optimizer_state - 2 * parameters);
      say("inputs", forward.by_category->inputs - bytes_of(std::vector<Tensor>{x, y}));
      // What the ReLU gives, what the second layer gives, and the loss, whose memory is more than its one number.
      say("activations", forward.by_category->activations - (4 * kRows * (kHidden + kWidth) + static_cast<std::int64_t>(loss.storage().nbytes())));
      say("all", backward.by_category->total() - *backward.live);
    }
    optimizer.step();
  }
}

// Tracks within and across each other, of real tensors.
void tracks(torch::Device device) {
  const auto megabytes = [&](std::int64_t n) { return torch::empty({n * kMiB}, torch::TensorOptions(torch::kByte).device(device)); };
  megabytes(9);
  const koila::ScopedTrack outer(device);
  const Tensor kept = megabytes(1);
  megabytes(4);
  auto across = std::make_unique<koila::ScopedTrack>(device);
  {
    koila::ScopedTrack inner(device);
    megabytes(2);
    say("inner", *inner.peak() - *inner.at_begin());
    inner.stop();
    megabytes(3);
    say("inner stopped", *inner.peak() - *inner.at_begin());
  }
  koila::reset_peak(device);
  say("across", *across->peak() - *across->at_begin());
  across.reset();
  say("outer", *outer.peak() - *outer.at_begin());
  say("growth", *outer.growth());
}

void budgets() {
  const auto budget = [] { return *koila::memory(torch::kCPU).budget / kMiB; };
  say("before", budget());
  auto first = std::make_unique<koila::ScopedBudget>(torch::kCPU, 100 * kMiB);
  say("first", budget());
  auto second = std::make_unique<koila::ScopedBudget>(torch::kCPU, 50 * kMiB);
  say("second", budget());
  say("runs out", runs_out(60 * kMiB));
  auto third = std::make_unique<koila::ScopedBudget>(torch::kCPU, 200 * kMiB);
  second.reset();
  say("without the second", budget());
  say("fits", !runs_out(60 * kMiB));
  koila::batch(1, [&](std::int64_t) { say("in a batch", budget()); }, koila::BatchOptions().with_cpu_memory(30 * kMiB));
  first.reset();
  say("third", budget());
  std::thread([&] { third.reset(); }).join();
  say("after", budget());
  const koila::ScopedBudget last(torch::kCPU, 70 * kMiB);
  const pid_t child = fork();
  if (child == 0) _exit(static_cast<int>(budget()));
  int status = 0;
  waitpid(child, &status, 0);
  say("in the child", WEXITSTATUS(status));
}

void snapshots() {
  const koila::Snapshot before = koila::snapshot(torch::kCPU);
  const Tensor a = torch::zeros({2 * kMiB}, torch::kByte), b = torch::zeros({2 * kMiB}, torch::kByte), c = torch::ones({1000});
  const koila::Snapshot difference = koila::snapshot(torch::kCPU) - before;
  std::ostringstream text;
  text << difference;
  std::printf("%s", text.str().c_str());
  say("all", koila::snapshot(torch::kCPU).bytes() - *koila::memory(torch::kCPU).live);
}

void train(int steps) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(64, 4096), torch::nn::ReLU(), torch::nn::Linear(4096, 1));
  const Tensor x = torch::randn({1024, 64}), y = torch::randn({1024, 1});
  for (int step = 0; step < steps; ++step) {
    model->zero_grad();
    torch::mse_loss(model->forward(x), y).backward();
  }
  std::printf("gradient %.5f\n", model->parameters()[0].grad().norm().item<double>());
}

// What is said of the steps of a program that would die.
void events(const std::string& report) {
  std::vector<koila::Event> heard;  // the subscription's end says that all has been
  {
    auto subscription = koila::on_event(koila::EventKind::kOutOfMemory | koila::EventKind::kStep, [&](const koila::Event& event) { heard.push_back(event); });
    say("subscribed", static_cast<bool>(subscription));
    train(2);
    say("runs out", runs_out(1 << 30));
  }
  for (const koila::Event& e : heard) {
    std::printf("event kind=%d phase=%d device=%s op=%s step=%lld rescues=%lld micro_batch_of=%lld/%lld budget=%lld fits=%d reason=%s\n", static_cast<int>(e.kind),
                static_cast<int>(e.phase), e.device.str().c_str(), e.op.c_str(), static_cast<long long>(e.step), static_cast<long long>(e.rescues),
                static_cast<long long>(e.micro_batch > 0), static_cast<long long>(e.batch), static_cast<long long>(e.budget_bytes),
                e.kind == koila::EventKind::kStep ? e.peak_bytes <= e.budget_bytes && e.peak_bytes >= e.live_bytes : e.live_bytes + e.requested_bytes > e.budget_bytes,
                e.reason.c_str());
  }
  if (!report.empty()) koila::report(report);
}

// Functions that do what they may. Under KOILA_MODE=track every out-of-memory is refused.
void rude_listeners() {
  std::atomic<int> calls{0}, within{0}, last{0};
  std::atomic<bool> on_main{false};
  const auto main_thread = std::this_thread::get_id();
  koila::Subscription own;
  std::mutex own_mutex;
  {
    const std::lock_guard<std::mutex> lock(own_mutex);
    own = koila::on_event(koila::EventKind::kRefusal, [&](const koila::Event&) {
      ++last;
      const std::lock_guard<std::mutex> lock(own_mutex);
      own = koila::Subscription();
    });
  }
  {
    const auto all = koila::on_event(koila::EventKind::kOutOfMemory, [&](const koila::Event& event) {
      ++calls;
      on_main = on_main || std::this_thread::get_id() == main_thread;
      within += runs_out(1 << 30);                                       // runs out of memory itself
      torch::ones({1000}, torch::requires_grad()).sum().backward();      // makes tensors, and a step
      const auto another = koila::on_event(koila::EventKind::kStep, [](const koila::Event&) {});
      const koila::ScopedBudget budget(event.device, 1 << 28);
      const koila::ScopedTrack track(event.device);
      koila::snapshot(event.device);
      koila::report("/tmp/%p.koila-test.txt");
      std::remove(("/tmp/" + std::to_string(getpid()) + ".koila-test.txt").c_str());
      throw std::runtime_error("as it likes");
    });
    for (int i = 0; i < 3; ++i) say("runs out", runs_out(1 << 30));
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([] { runs_out(1 << 30); });
    for (std::thread& thread : threads) thread.join();
  }
  const std::lock_guard<std::mutex> lock(own_mutex);
  say("calls", calls);
  say("ran out within", within);
  say("ended itself after", last);
  say("on the main thread", on_main);
  say("budget after", *koila::memory(torch::kCPU).budget / kMiB);
}

// While a listener is at work, and with one more than the child should have.
void in_a_fork() {
  std::atomic<bool> in_call{false}, go_on{false};
  auto* calls = new std::atomic<int>(0);
  auto subscription = std::make_unique<koila::Subscription>(koila::on_event(koila::EventKind::kRefusal, [&](const koila::Event&) {
    ++*calls;
    in_call = true;
    while (!go_on) std::this_thread::yield();
  }));
  runs_out(1 << 30);
  while (!in_call) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    *calls = 0;
    runs_out(1 << 30);
    subscription.reset();
    int own = 0;
    {
      const auto here = koila::on_event(koila::EventKind::kRefusal, [&](const koila::Event&) { ++own; });
      runs_out(1 << 30);
    }
    _exit(*calls == 0 && own == 1 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  say("child", status);
  go_on = true;
  subscription.reset();
  say("calls", *calls);
}

// A subscription that ends after main, and is told all.
void with_a_static() {
  static int calls = 0;
  static const struct Says {
    ~Says() { say("calls", calls); }
  } says;
  static const auto subscription = koila::on_event(koila::EventKind::kRefusal, [](const koila::Event&) { ++calls; });
  for (int i = 0; i < 5; ++i) runs_out(1 << 30);
}

// One that never ends, in a call that never returns, with more that wait.
void without_an_end() {
  static std::atomic<bool> in_call{false};
  auto* leaked = new koila::Subscription(koila::on_event(koila::EventKind::kRefusal, [](const koila::Event&) {
    in_call = true;
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }));
  for (int i = 0; i < 5; ++i) runs_out(1 << 30);
  while (!in_call) std::this_thread::yield();
  say("subscribed", static_cast<bool>(*leaked));
}

// Where koila is there and does nothing.
void stays_out() {
  say("loaded", koila::loaded());
  say("known", koila::memory(torch::kCPU).live.has_value() || koila::ScopedTrack(torch::kCPU).peak().has_value());
  say("subscribed", static_cast<bool>(koila::on_event(koila::EventKind::kStep, [](const koila::Event&) {})));
  const std::function<void()> impossible[] = {[] { koila::ScopedBudget budget(torch::kCPU, 1); }, [] { koila::snapshot(torch::kCPU); }};
  for (const auto& call : impossible) {
    try {
      call();
    } catch (const c10::Error& error) {
      std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "";
  const std::string argument = argc > 2 ? argv[2] : "";
  const torch::Device device = argument == "cuda" ? torch::Device(torch::kCUDA, 0) : torch::Device(torch::kCPU);
  std::printf("version %s\n", koila::version().c_str());
  if (scenario == "categories") categories(device);
  else if (scenario == "tracks") tracks(device);
  else if (scenario == "budgets") budgets();
  else if (scenario == "snapshots") snapshots();
  else if (scenario == "events") events(argument);
  else if (scenario == "rude_listeners") rude_listeners();
  else if (scenario == "in_a_fork") in_a_fork();
  else if (scenario == "with_a_static") with_a_static();
  else if (scenario == "without_an_end") without_an_end();
  else if (scenario == "stays_out") stays_out();
  else if (scenario == "train") train(2);
  else return 2;
  std::fflush(stdout);
  return 0;
}
