// The collector over the tests' own CUPTI. It starts once a process, so each case is a process of its own: a death test that exits with 0.
#include "shim/cupti/collector.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <thread>

#include "runtime/cabi.h"
#include "runtime/runtime.h"
#include "shim/cupti/types.h"

namespace koila::cupti {
namespace {

// Loaded before anybody asks for that name: a sanitizer's dlopen does not look where this program would.
void* const library = dlopen(FAKE_CUPTI, RTLD_NOW);

template <class F>
F* fake(const char* name) {
  return library != nullptr ? reinterpret_cast<F*>(dlsym(library, name)) : nullptr;
}

void record(Operation operation, std::uint64_t address, std::uint64_t bytes, const char* source, int memory = kDevice) {
  MemoryRecord r{};
  r.kind = kKindMemory2;
  r.operation = operation;
  r.memory = memory;
  r.address = address;
  r.bytes = bytes;
  r.source = source;
  fake<void(const MemoryRecord*)>("fake_cupti_record")(&r);
}
void deliver() { fake<void()>("fake_cupti_deliver")(); }

void expect(bool good, const char* what) {
  if (good) return;
  std::cerr << "not so: " << what << "; the note is: " << describe() << std::endl;
  _exit(1);
}

// What happens in a process under KOILA_CUPTI=1, and what it wrote to stderr.
void in_process(const char* mode, const std::function<void()>& body, const char* said) {
  EXPECT_EXIT(
      {
        setenv("KOILA_CUPTI", "1", 1);
        setenv("KOILA_REPORT", "off", 1);
        setenv("FAKE_CUPTI", mode, 1);
        start_runtime();
        Runtime::get()->keep_books();
        start();
        start();
        body();
        std::cerr << "end" << std::endl;
        std::exit(0);
      },
      testing::ExitedWithCode(0), said);
}

TEST(CuptiCollector, TellsWhatNoHookSaw) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  in_process("", [] {
    static char block;
    record(kAllocation, reinterpret_cast<std::uint64_t>(&block), 1 << 20, "/wheel/lib/libc10_cuda.so");
    record(kAllocation, 0x1000, 3 << 20, "/wheel/lib/libcublas.so.13");
    record(kAllocation, 0x2000, 9 << 20, "/somewhere/libkoila.so");
    record(kAllocation, 0x3000, 5 << 20, nullptr, /*pageable*/ 1);
    record(kAllocation, 0x4000, 2 << 20, "/wheel/lib/libcublas.so.13");
    record(kRelease, 0x4000, 2 << 20, "/wheel/lib/libcublas.so.13");
    expect(describe() == "by CUPTI: nothing was reported", "nothing comes before it is delivered");
    deliver();
    seen(&block);  // the hook speaks later than CUPTI
    expect(describe() == "by CUPTI: 3.0 MiB on cuda:0 not seen by the hooks: cublas 3.0 MiB", "cublas alone has unseen memory");
    expect(fake<int()>("fake_cupti_source_asked")() == 1, "the source was asked for");
  }, "^end");
}

TEST(CuptiCollector, IsAskedByTheHooksNowAndThen) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  in_process("", [] {
    record(kAllocation, 0x1000, 1 << 20, "libcudnn.so.9");
    for (int i = 0; i < 1000; ++i) poll();
    expect(fake<int()>("fake_cupti_flushes")() == 1, "a thousand hooks in a moment ask once");
    expect(describe().find("cudnn 1.0 MiB") != std::string::npos, "what is asked for comes");
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    poll();
    expect(fake<int()>("fake_cupti_flushes")() == 2, "later they ask again");
  }, "^end");
}

TEST(CuptiCollector, AsksForNothingAtExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("KOILA_REPORT", "off", 1);
        start_runtime();
        Runtime::get()->keep_books();
        // Runs after the collector's own handler, as a destructor that frees CUDA memory would.
        std::atexit([] {
          const int before = fake<int()>("fake_cupti_flushes")();
          poll();
          const auto notes = Runtime::get()->events().snapshot().notes;
          const bool good = before == 0 && fake<int()>("fake_cupti_flushes")() == 0 && notes.size() == 1 && notes[0].find("cufft 1.0 MiB") != std::string::npos;
          if (!good) _exit(1);
        });
        start();
        record(kAllocation, 0x1000, 1 << 20, "libcufft.so.12");
        deliver();
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(CuptiCollector, SaysOnceWhyNot) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto off = [] { expect(describe().empty(), "there is nothing to tell"); };
  in_process("subscribed", off, "^koila: .*KOILA_CUPTI has no effect: a profiler uses CUPTI in this process already\nend");
  in_process("no_device", off, "^koila: .*KOILA_CUPTI has no effect: CUPTI_ERROR_NOT_INITIALIZED\nend");
  in_process("no_memory2", [&] {
    off();
    expect(fake<int()>("fake_cupti_held")() == 0, "CUPTI is left to others");
  }, "^koila: .*KOILA_CUPTI has no effect: CUPTI_ERROR_INVALID_KIND\nend");
}

TEST(CuptiCollector, IsOffInTheChildOfAFork) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  in_process("", [] {
    const pid_t child = fork();
    if (child == 0) {
      poll();
      _exit(describe().empty() && fake<int()>("fake_cupti_flushes")() == 0 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child asks nothing");
    expect(!describe().empty(), "the parent goes on");
  }, "^end");
}

}  // namespace
}  // namespace koila::cupti
