// Programs that do one thing with CUDA memory, for test_ledger.py and test_budget.py; each prints what the test then holds against the simulation.
//
//   scenarios NAME [ARGUMENT...]
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "koila/koila.h"
#include "tests/cuda/sim/control.h"

namespace {

constexpr std::size_t kMi = 1 << 20;
constexpr int kPinnedPlace = -2, kManagedPlace = -3;  // as runtime/abi.h numbers them
std::vector<std::string> arguments;

std::size_t number(std::size_t i, std::size_t otherwise) {
  return i < arguments.size() ? static_cast<std::size_t>(std::atoll(arguments[i].c_str())) : otherwise;
}

// Of the preload, as a program reaches it.
template <class F>
F* of_koila(F*, const char* name) {
  auto* found = reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) std::fprintf(stderr, "no %s\n", name), std::exit(1);
  return found;
}
#define KOILA(name) of_koila(&name, #name)

__attribute__((noinline)) void* allocate(std::size_t bytes) {
  void* p = nullptr;
  return cudaMalloc(&p, bytes) == cudaSuccess ? p : nullptr;
}

__attribute__((noinline)) void release(void* p) { cudaFree(p); }

void check(bool good, const char* what) {
  if (good) return;
  std::printf("failed: %s\n", what);
  std::fflush(stdout);
  std::_Exit(1);
}

enum Kind { kDevice, kPool, kManaged, kPinned, kKinds };

cudaError_t take(Kind kind, void** p, std::size_t bytes) {
  switch (kind) {
    case kDevice: return cudaMalloc(p, bytes);
    case kPool: return cudaMallocAsync(p, bytes, nullptr);
    case kManaged: return cudaMallocManaged(p, bytes, cudaMemAttachGlobal);
    default: return cudaMallocHost(p, bytes);
  }
}

cudaError_t give(Kind kind, void* p) {
  switch (kind) {
    case kPool: return cudaFreeAsync(p, nullptr);
    case kPinned: return cudaFreeHost(p);
    default: return cudaFree(p);
  }
}

struct Held {
  Kind kind;
  void* p;
  std::size_t bytes;
};

// stress CALLS THREADS: random allocations and frees of all kinds, some of them by another thread than the one that allocated; at checkpoints, with
// every thread standing still, the account must be the simulation's.
void stress() {
  const std::size_t calls = number(0, 1'000'000), threads = number(1, 8), rounds = 10;
  const auto live = KOILA(koila_live_bytes);
  std::vector<Held> shelf;  // to be given back by whoever comes
  std::mutex shelf_lock;
  std::size_t failed = 0;
  std::atomic<std::size_t> refused{0}, done{0};
  int round = 0;
  std::barrier checkpoint(static_cast<std::ptrdiff_t>(threads), [&]() noexcept {
    const auto host = static_cast<std::int64_t>(sim_pinned()), managed = static_cast<std::int64_t>(sim_managed(0));
    const auto device = static_cast<std::int64_t>(sim_used(0));
    if (live(0) != device || live(kPinnedPlace) != host || live(kManagedPlace) != managed) ++failed;
    if (round < 3 || live(0) != device)
      std::fprintf(stderr, "round %d: %" PRId64 " of %" PRId64 ", pinned %" PRId64 " of %" PRId64 ", managed %" PRId64 " of %" PRId64 "\n",
                   round, live(0), device, live(kPinnedPlace), host, live(kManagedPlace), managed);
    ++round;
  });

  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Held> mine;
    for (std::size_t r = 0; r < rounds; ++r) {
      for (std::size_t i = 0; i < calls / threads / rounds; ++i) {
        const unsigned dice = random() % 16;
        if (dice < 8) {
          Held held{static_cast<Kind>(random() % kKinds), nullptr, 512 * (1 + random() % 2048)};
          if (take(held.kind, &held.p, held.bytes) == cudaSuccess) mine.push_back(held);
          else ++refused;
        } else if (!mine.empty()) {
          std::swap(mine[random() % mine.size()], mine.back());
          if (dice == 8) {
            const std::lock_guard lock(shelf_lock);
            shelf.push_back(mine.back());
          } else {
            check(give(mine.back().kind, mine.back().p) == cudaSuccess, "free");
          }
          mine.pop_back();
        }
        if (dice == 9) {
          Held held{};
          {
            const std::lock_guard lock(shelf_lock);
            if (shelf.empty()) continue;
            held = shelf.back();
            shelf.pop_back();
          }
          check(give(held.kind, held.p) == cudaSuccess, "free of another thread's");
        }
        ++done;
      }
      checkpoint.arrive_and_wait();
    }
    for (const Held& held : mine) give(held.kind, held.p);
  };
  std::vector<std::thread> all;
  for (unsigned t = 0; t < threads; ++t) all.emplace_back(work, t);
  for (std::thread& thread : all) thread.join();
  for (const Held& held : shelf) give(held.kind, held.p);
  std::printf("%zu checkpoints of %zu wrong; live %" PRId64 ", %" PRId64 ", %" PRId64 "; really %zu; refused %s\n", failed, rounds, live(0),
              live(kPinnedPlace), live(kManagedPlace), sim_used(0), refused > 0 ? "some" : "none");
}

// peak SEED: one thread; after each call live and peak are the simulation's.
void peak() {
  const auto live = KOILA(koila_live_bytes), highest = KOILA(koila_peak_bytes);
  std::mt19937 random(static_cast<unsigned>(number(0, 1)));
  std::vector<void*> held;
  sim_set_capacity(0, 64 * kMi);
  std::size_t failed = 0;
  for (int i = 0; i < 50'000; ++i) {
    if (random() % 5 < 3) {
      void* p = allocate(512 * (1 + random() % 4096));
      if (p != nullptr) held.push_back(p);
      else ++failed;
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      check(cudaFree(held.back()) == cudaSuccess, "free");
      held.pop_back();
    }
    check(i < 1 || (live(0) == static_cast<std::int64_t>(sim_used(0)) && highest(0) == static_cast<std::int64_t>(sim_peak(0))), "exact");
    if (failed % 100 == 99)
      for (; held.size() > 5; held.pop_back()) cudaFree(held.back());
  }
  std::printf("peak %zu, failures %s\n", sim_peak(0), failed > 0 ? "some" : "none");
}

// A failure of eight GiB and one of nine: neither is in the peak.
void failure() {
  void* p = allocate(3 * kMi);
  sim_fail("cudaMalloc", 1, 1, cudaErrorMemoryAllocation);
  check(allocate(100 * kMi) == nullptr, "made to fail");
  check(allocate(std::size_t{9} << 30) == nullptr, "too much");
  const int last = cudaGetLastError();
  std::printf("last error %d, then %d\n", last, cudaGetLastError());
  cudaFree(p);
}

// A child of fork() starts anew: what it gets and gives is its own, what it has of its parent's is nobody's.
void child_of_fork() {
  const auto live = KOILA(koila_live_bytes);
  release(allocate(512));  // the child calls from places that its parent has called from
  void* p = allocate(3 * kMi);
  std::printf("parent: %" PRId64 "\n", live(0));
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    std::printf("child: %" PRId64 "\n", live(0));
    void* mine = allocate(5 * kMi);
    std::printf("child's own: %" PRId64 "\n", live(0));
    release(p);
    std::printf("child, without its parent's: %" PRId64 "\n", live(0));
    release(mine);
    std::printf("child: %" PRId64 "\n", live(0));
    if (!arguments.empty()) KOILA(koila_write_report)(arguments[0].c_str());
    std::fflush(stdout);
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::printf("parent: %" PRId64 ", child ended with %d\n", live(0), status);
  cudaFree(p);
}

// fork while other threads hold whatever locks there are.
void fork_in_threads() {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      while (!done) cudaFree(allocate(512));
    });
  int bad = 0;
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      // Not CUDA's own functions: the simulation's locks may be held for ever. koila's must not be.
      alarm(10);
      std::_Exit(KOILA(koila_live_bytes)(0) == 0 && KOILA(koila_write_report)("/nonexistent/report.txt") == 1 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) ++bad;
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  std::printf("%d children went wrong\n", bad);
}

// Ends while other threads allocate and free; and frees once more when the report has been written.
void* kept = nullptr;
void busy_exit() {
  std::atexit([] { std::printf("free after the report: %d\n", cudaFree(kept)); });  // before the first call: runs after koila's
  kept = allocate(kMi);
  for (int t = 0; t < 4; ++t)
    std::thread([] {
      for (;;) cudaFree(allocate(kMi));
    }).detach();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// budget: what a device with a budget says of itself.
void info() {
  for (int device = 0; device < static_cast<int>(number(0, 1)); ++device) {
    std::size_t free = 0, total = 0;
    cudaSetDevice(device);
    cudaMemGetInfo(&free, &total);
    std::printf("%zu of %zu MiB free", free / kMi, total / kMi);
    allocate(3 * kMi);
    cudaMemGetInfo(&free, &total);
    std::printf(", then %zu of %zu\n", free / kMi, total / kMi);
  }
}

// fill BYTES: allocates pieces until it fails, then smaller ones down to one byte, and says how many bytes it got.
void fill() {
  std::size_t got = 0;
  for (std::size_t piece = number(0, kMi); piece > 0; piece /= 2)
    while (allocate(piece) != nullptr) got += piece;
  std::printf("got %zu, last error %d\n", got, cudaGetLastError());
}

// The same by many threads at once, who also give back; in the end the budget must be full to the byte.
void fill_in_threads() {
  const auto live = KOILA(koila_live_bytes), highest = KOILA(koila_peak_bytes);
  const auto budget = static_cast<std::int64_t>(number(0, 0));
  std::vector<std::thread> threads;
  std::atomic<bool> over{false};
  for (unsigned t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<void*> held;
      for (int i = 0; i < 20'000; ++i) {
        if (void* p = allocate(1 + random() % 5000)) held.push_back(p);
        if (live(0) > budget) over = true;
        if (random() % 3 == 0 && !held.empty()) {
          cudaFree(held.back());
          held.pop_back();
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  while (allocate(1) != nullptr) {
  }
  std::printf("live %" PRId64 ", peak %" PRId64 ", %s\n", live(0), highest(0), over ? "overrun" : "never over");
}

// A budget that changes while the program runs.
void change() {
  const auto set = KOILA(koila_set_budget);
  std::printf("before the first call: %d\n", set(0, std::int64_t{64} << 20));
  std::size_t free_at_first = 0, total_at_first = 0;
  cudaMemGetInfo(&free_at_first, &total_at_first);
  std::printf("then: %zu MiB\n", total_at_first / kMi);
  void* p = allocate(10 * kMi);
  std::size_t free = 0, total = 0;
  const auto say = [&](std::int64_t budget) {
    const int error = set(0, budget);
    cudaMemGetInfo(&free, &total);
    void* q = allocate(kMi);
    std::printf("budget %" PRId64 " MiB: %d; %zu of %zu MiB free; %s\n", budget >> 20, error, free / kMi, total / kMi,
                q != nullptr ? "fits" : "does not fit");
    cudaFree(q);
  };
  say(12 << 20);
  say(11 << 20);
  say((11 << 20) - 1);
  say(5 << 20);
  say(0);
  say(-1);
  cudaFree(p);
}

template <class F>
F* driver(F*, const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status;
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status);
  return reinterpret_cast<F*>(found);
}

// segments: expandable segments, two MiB each, until there is no more.
void segments() {
  const auto create = driver(&cuMemCreate, "cuMemCreate");
  const auto release = driver(&cuMemRelease, "cuMemRelease");
  const auto info = driver(&cuMemGetInfo, "cuMemGetInfo");
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(number(0, 0))};
  std::vector<CUmemGenericAllocationHandle> handles;
  CUmemGenericAllocationHandle handle = 0;
  CUresult error;
  while ((error = create(&handle, 2 * kMi, &prop, 0)) == CUDA_SUCCESS && handles.size() < 100) handles.push_back(handle);
  std::size_t free = 0, total = 0;
  info(&free, &total);
  std::printf("%zu segments, error %d, last error %d, current device %zu of %zu MiB free\n", handles.size(), error, cudaGetLastError(),
              free / kMi, total / kMi);
  for (const auto h : handles) release(h);
}

// requests N: allocates N times, one MiB each, and again at once where it failed, as a caching allocator does.
void requests() {
  for (std::size_t i = 0; i < number(0, 6); ++i) {
    void* p = allocate(kMi);
    std::printf("%s", p != nullptr ? "+" : allocate(kMi) != nullptr ? "r" : "x");
  }
  std::printf(" last error %d\n", cudaGetLastError());
}

const std::map<std::string, std::function<void()>> scenarios = {
    {"stress", stress},       {"peak", peak},           {"failure", failure}, {"fork", child_of_fork}, {"fork_in_threads", fork_in_threads},
    {"busy_exit", busy_exit}, {"info", info},           {"fill", fill},       {"fill_in_threads", fill_in_threads},
    {"change", change},       {"segments", segments},   {"requests", requests},
};

}  // namespace

int main(int argc, char** argv) {
  arguments.assign(argv + 2, argv + argc);
  scenarios.at(argv[1])();
  return 0;
}
