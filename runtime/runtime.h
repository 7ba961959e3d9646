// The process's one runtime: configuration, ledger, injection, events and the report at exit.
//
// Nothing exists before start(). Once made it lives until the process ends, for torch allocates and frees to the very end.
#ifndef KOILA_RUNTIME_RUNTIME_H_
#define KOILA_RUNTIME_RUNTIME_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "runtime/budgets.h"
#include "runtime/config.h"
#include "runtime/device_memory.h"
#include "runtime/event_feed.h"
#include "runtime/events.h"
#include "runtime/findings.h"
#include "runtime/inject.h"
#include "runtime/leak_watch.h"
#include "runtime/ledger.h"
#include "runtime/peak_tracks.h"
#include "runtime/record/writer.h"
#include "runtime/report/report.h"
#include "runtime/run_clock.h"
#include "runtime/tensor_book.h"
#include "runtime/timeline.h"

namespace koila {

class Runtime {
 public:
  // Takes the configuration from the environment and opens the log, once. False when koila is to stay out of this process.
  static bool start();

  // Null before start() and in a process that koila stays out of.
  static Runtime* get() { return runtime_.load(std::memory_order_acquire); }

  // The adapter is in place.
  void attached(const std::string& torch_version);

  // There is something to account for: from here on there is a report to write, at exit, and state to renew in the child of a fork.
  void keep_books();

  // A CUDA device that is in use for the first time, with so many bytes of memory: its budget comes into force. `total` is asked once.
  template <typename F>
  void meet_device(int device, F&& total) {
    if (!is_device(device) || device < 0 || budgets_.settled(device)) return;
    set_configured_budget(device, total());
  }

  // The program's own word stands against the configuration's whether the device has been met or not.
  Budgets& budgets() { return budgets_; }

  const koila_settings& settings() const { return settings_; }
  bool wants_cupti() const { return config_.cupti; }
  Ledger& ledger() { return ledger_; }
  Injector& injector() { return injector_; }

  // 0 when the bytes are counted live; 1 over the budget, 2 made to fail. A device out of range is not accounted for: 0.
  int reserve(int device, std::int64_t bytes) {
    if (!is_device(device)) return 0;
    Account& account = ledger_.of(device);
    if (injector_.fails(device, account.count_request())) return 2;
    return account.try_reserve(bytes) ? 0 : 1;
  }

  // The same for memory that CUDA gives, see Account::hold.
  int hold(int device, std::int64_t bytes) {
    return device_memory_->hold(device, bytes, [&](std::int64_t request) { return injector_.fails(device, request); });
  }

  void release(int device, std::int64_t bytes) {
    if (!is_device(device)) return;
    ledger_.of(device).release(bytes);
    on_sample(device);
  }

  // At an end without exit handlers: what they would do, once.
  void process_ends() {
    if (ends_with_report_) at_exit();
  }

  // The live bytes of a device changed, and the account of its tensors with them; for its timeline. Two comparisons, where it is nothing to note.
  // (So reserve() is too early: what the memory is for is not known yet.) `device` must be one of is_device.
  void on_sample(int device) {
    // Of a CUDA device that has tensors these are followed: the caching allocator's own memory hardly changes after the first steps.
    const std::int64_t tensors = device >= 0 ? tensors_[device].live() : 0;
    const std::int64_t live = tensors > 0 ? tensors : ledger_.of(device).live();
    if ((*timelines_)[device - kFirstPlace].due(live)) take_sample(device, live);
  }

  // Whether reserve() is what decides over memory on `device`: the CPU's, once attached; a CUDA device's always.
  bool accounts_for(int device) const { return device >= 0 ? is_device(device) : attached_ && device == KOILA_CPU; }

  DeviceMemory& device_memory() { return *device_memory_; }

  // An allocation on a device failed, over the budget or by CUDA's word: PyTorch will empty its cache and ask again.
  void on_pressure(int device) {
    if (is_device(device)) pressure_[device - kFirstPlace].fetch_add(1, std::memory_order_relaxed);
  }
  std::int64_t pressure(int device) const { return is_device(device) ? pressure_[device - kFirstPlace].load(std::memory_order_relaxed) : 0; }

  // What the device said it has in use when it was last asked, by anybody on it. 0: never.
  void on_used(int device, std::int64_t bytes) {
    if (!is_device(device)) return;
    used_[device - kFirstPlace].store(bytes, std::memory_order_relaxed);
    const std::int64_t untracked = bytes - ledger_.of(device).live();  // now, for both go on to change
    untracked_[device - kFirstPlace].store(untracked > 0 ? untracked : 0, std::memory_order_relaxed);
  }

  // Tensors in the memory that a caching allocator holds on a device: a change in bytes.
  void on_tensors(int device, std::int64_t change);
  // The account of the tensors on a device: on the CPU there is no cache between them and the memory.
  Account& tensors(int device) { return device >= 0 ? tensors_[device] : ledger_.of(device); }

  // Whether tensors(device) is all that there is: not where koila stays out, nor where PyTorch's allocator has got memory and does not tell for what.
  bool counts_tensors(int device) const;

  PeakTracks& peak_tracks() { return peak_tracks_; }

  // What is kept of a device's tensors outside its memory: a change in bytes.
  void on_outside(int device, std::int64_t change);
  const Account& outside(int device) const { return outside_[device - kFirstPlace]; }

  TensorBook& tensor_book() { return *tensor_book_; }

  // An outermost backward pass is over.
  void on_step();
  void on_oom(OomEvent event);
  // A check found the step wrong: a file to send in, once.
  void on_mismatch(const std::string& json);
  Events& events() { return *events_; }
  EventFeed& event_feed();
  Findings& findings() { return *findings_; }
  LeakWatch& leak_watch() { return *leak_watch_; }

  // Null where none is kept, or not yet. Once there it stays, but not for the child of a fork.
  RecordWriter* record() { return record_.load(std::memory_order_acquire); }

  // `every_block`: with what a snapshot lists.
  ReportData report_data(RunEnd end = RunEnd::kRunning, bool every_block = false);

 private:
  explicit Runtime(Config config);

  using Timelines = std::array<Timeline, kPlaces>;

  void at_exit();  // does nothing the second time
  void write_reports();
  ReportData identity() const;
  bool is_in_use(int device) const;
  ProgramFacts facts() const;
  DeviceFigures figures_of(int device);
  void take_sample(int device, std::int64_t live);
  void open_record();
  void write_device(RecordWriter& record, int device);
  void write_peak(RecordWriter& record, int device);
  void write_devices();
  void set_configured_budget(int device, std::int64_t total);
  void start_anew_after_fork();

  static std::atomic<Runtime*> runtime_;

  Config config_;
  koila_settings settings_ = {};
  std::string spill_dir_;
  std::string cache_;
  std::string torch_version_;
  Ledger ledger_;
  Injector injector_;
  DeviceMemory* device_memory_ = new DeviceMemory(ledger_);  // replaced in the child of a fork, like events_
  TensorBook* tensor_book_;                                          // the same
  Account tensors_[kCudaDevices];
  Account outside_[kPlaces];
  std::atomic<std::int64_t> written_outside_[kPlaces] = {};
  Budgets budgets_{ledger_};
  PeakTracks peak_tracks_;
  std::atomic<std::int64_t> pressure_[kPlaces] = {};
  std::atomic<std::int64_t> used_[kPlaces] = {};
  std::atomic<std::int64_t> untracked_[kPlaces] = {};
  Events* events_ = new Events;  // replaced in the child of a fork, where its lock may be held for ever
  EventFeed* event_feed_ = new EventFeed;  // the same
  Findings* findings_ = new Findings;      // and this
  LeakWatch* leak_watch_ = new LeakWatch(*tensor_book_, *findings_);
  RunClock clock_;
  Timelines* timelines_ = new Timelines;    // and these two
  StepSeries* steps_ = new StepSeries;
  std::atomic<RecordWriter*> record_{nullptr};
  std::atomic<bool> record_was_tried_{false};
  std::atomic<bool> mismatch_told_{false};
  std::atomic<double> lists_written_{0};
  // The peak whose holders were written last, and when.
  struct WrittenPeak {
    std::atomic<std::int64_t> bytes{0};
    std::atomic<double> seconds{-1};
  };
  WrittenPeak written_peak_[kPlaces];
  bool attached_ = false;
  std::atomic<bool> ends_with_report_{false}, ended_{false};
  std::once_flag books_;
  std::once_flag feed_ends_;
  bool is_worker_ = false;  // that Python's multiprocessing started afresh
  bool forked_ = false;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_RUNTIME_H_
