// The process's one runtime: configuration, ledger, injection, events and the report at exit.
//
// Nothing exists before start(). Once made it lives until the process ends, for torch allocates and frees to the very end.
#ifndef KOILA_RUNTIME_RUNTIME_H_
#define KOILA_RUNTIME_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "runtime/config.h"
#include "runtime/events.h"
#include "runtime/inject.h"
#include "runtime/ledger.h"
#include "runtime/report.h"

namespace koila {

class Runtime {
 public:
  // Takes the configuration from the environment and opens the log, once. False when koila is to stay out of this process.
  static bool start();

  // Null before start() and in a process that koila stays out of.
  static Runtime* get() { return runtime_.load(std::memory_order_acquire); }

  // The adapter is in place: from here on there is a report to write, at exit, and state to renew in the child of a fork.
  void attached(const std::string& torch_version);

  const koila_settings& settings() const { return settings_; }
  Ledger& ledger() { return ledger_; }
  Injector& injector() { return injector_; }

  // 0 when the bytes are counted live; 1 over the budget, 2 made to fail. A device out of range is not accounted for: 0.
  int reserve(int device, std::int64_t bytes) {
    if (!is_device(device)) return 0;
    Account& account = ledger_.of(device);
    if (injector_.fails(device, account.count_request())) return 2;
    return account.try_reserve(bytes) ? 0 : 1;
  }

  void release(int device, std::int64_t bytes) {
    if (is_device(device)) ledger_.of(device).release(bytes);
  }

  // Whether reserve() is what decides over memory on `device`: the CPU's, once attached.
  bool accounts_for(int device) const { return attached_ && device == KOILA_CPU; }

  void on_oom(const OomEvent& event);
  Events& events() { return *events_; }

  ReportData report_data() const;

 private:
  explicit Runtime(Config config);

  void write_reports() const;
  void start_anew_after_fork();

  static std::atomic<Runtime*> runtime_;

  Config config_;
  koila_settings settings_ = {};
  std::string spill_dir_;
  std::string torch_version_;
  Ledger ledger_;
  Injector injector_;
  Events* events_ = new Events;  // replaced in the child of a fork, where its lock may be held for ever
  bool attached_ = false;
  bool forked_ = false;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_RUNTIME_H_
