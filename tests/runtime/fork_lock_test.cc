#include "runtime/fork_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace koila {
namespace {

ForkLock first, second;
int halves[2];  // equal whenever `first` is not held

// The exit code of a child of this process, 1 when it waits for ever.
template <class F>
int in_child(F&& f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(f());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

TEST(ForkLock, IsFreeInTheChildAndWhatItGuardsIsWhole) {
  std::atomic<bool> held{false};
  std::thread holder([&] {
    const std::lock_guard lock(first);
    ++halves[0];
    held = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ++halves[1];
  });
  while (!held) std::this_thread::yield();
  EXPECT_EQ(in_child([] {
              const std::lock_guard lock(first);
              return halves[0] == halves[1] ? 0 : 2;
            }),
            0);
  holder.join();
  EXPECT_TRUE(first.try_lock());  // and in the parent
  first.unlock();
}

TEST(ForkLock, ManyThreadsTakeThemInTheirOwnOrder) {
  std::atomic<bool> over{false};
  const auto churn = [&over](ForkLock& a, ForkLock& b) {
    while (!over) {
      const std::lock_guard outer(a);
      const std::lock_guard inner(b);
    }
  };
  std::thread one(churn, std::ref(first), std::ref(second));
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(in_child([] {
                const std::lock_guard lock(second);
                const std::lock_guard other(first);
                return 0;
              }),
              0);
  }
  over = true;
  one.join();
}

TEST(ForkLock, OneThatIsMadeInTheChildIsTakenThereToo) {
  EXPECT_EQ(in_child([] {
              static ForkLock* late = new ForkLock;
              const int code = in_child([] {
                const std::lock_guard lock(*late);
                return 3;
              });
              return code == 3 && late->try_lock() ? 0 : 2;
            }),
            0);
}

}  // namespace
}  // namespace koila
