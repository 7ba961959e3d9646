#include "runtime/runtime.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/bytes.h"
#include "runtime/log.h"
#include "runtime/rule_book.h"
#include "runtime/state_lacks.h"
#include "runtime/surroundings.h"

namespace koila {
std::atomic<Runtime*> Runtime::runtime_{nullptr};

Runtime::Runtime(Config config) : config_(std::move(config)), tensor_book_(new TensorBook(config_.wants_snapshot())) {
  device_memory_->set_watcher([](int place) { get()->on_sample(place); });
}

bool Runtime::start() {
  ParsedConfig parsed = parse_config(koila_environment());
  if (parsed.config.mode == KOILA_MODE_OFF) return false;
  for (ReportTarget& target : parsed.config.reports) target.path = absolute_path(target.path);
  parsed.config.log_file = absolute_path(parsed.config.log_file);
  parsed.config.record = absolute_path(parsed.config.record);
  log::open(parsed.config.log_level, parsed.config.log_file);
  const std::string spill_dir = find_spill_dir(parsed);
  const std::int64_t cpu_budget = find_cpu_budget(parsed);
  const ParsedRules rules = find_rules(parsed);
  for (const ConfigProblem& problem : parsed.problems) log::write(problem.level, problem.text);
  if (parsed.config.strict && parsed.has_errors()) {
    log::write(KOILA_LOG_WARN, "koila stays out of this process: KOILA_STRICT is set, and the configuration has errors");
    return false;
  }

  // Leaked on purpose: tensors outlive every exit handler.
  auto* runtime = new Runtime(std::move(parsed.config));
  runtime->spill_dir_ = spill_dir;
  runtime->cache_ = absolute_path(expand_path(runtime->config_.cache));
  runtime->budgets_.set(KOILA_CPU, cpu_budget);
  runtime->injector_.set(runtime->config_.inject, runtime->ledger_);

  rule_book().add_all(rules.rules);
  for (const std::string& error : rules.errors) runtime->events_->add_note(error);

  koila_settings& settings = runtime->settings_;
  settings.mode = runtime->config_.mode;
  settings.microbatch = runtime->config_.microbatch;
  settings.cpu_budget_bytes = runtime->ledger_.of(KOILA_CPU).budget();
  settings.log_level = runtime->config_.log_level;
  settings.verify = runtime->config_.verify;
  settings.spill_dir = runtime->spill_dir_.c_str();
  settings.policy = runtime->config_.policy;
  settings.ladder = runtime->config_.ladder;
  settings.cache = runtime->cache_.c_str();
  settings.stacks = runtime->config_.stacks ? 1 : 0;
  runtime_.store(runtime, std::memory_order_release);
  return true;
}

void Runtime::attached(const std::string& torch_version) {
  torch_version_ = torch_version;
  attached_ = true;
  keep_books();
  // One that used CUDA before has its books open already.
  if (RecordWriter* record = this->record()) record->identify(identity());
}

void Runtime::keep_books() {
  std::call_once(books_, [this] {
    ends_with_report_ = true;
    std::atexit([] { get()->at_exit(); });
    pthread_atfork(
        [] {
          get()->budgets_.lock();
          get()->peak_tracks_.lock();
        },
        [] {
          get()->peak_tracks_.unlock();
          get()->budgets_.unlock();
        },
        [] { get()->start_anew_after_fork(); });
    is_worker_ = is_spawned_worker(read_arguments());
    if (!is_worker_) open_record();
  });
}

void Runtime::take_sample(int device, std::int64_t live) {
  // It is called where memory is given and taken: what goes wrong here goes no further.
  try {
    Timeline& timeline = (*timelines_)[device - kFirstPlace];
    const bool begins = timeline.add({clock_.coarse_now(), live, tensor_book_->live(device)});
    if (RecordWriter* record = this->record(); begins && record != nullptr) write_device(*record, device);
  } catch (...) {
  }
}

void Runtime::set_configured_budget(int device, std::int64_t total) {
  const MemoryBudget* found = nullptr;
  for (const DeviceBudget& entry : config_.device_memory) {
    if (entry.device == device || (!entry.device && found == nullptr)) found = &entry.budget;
  }
  std::optional<std::int64_t> bytes;
  if (found != nullptr) bytes = found->kind == MemoryBudget::Kind::kShare ? static_cast<std::int64_t>(found->share * static_cast<double>(total)) : found->bytes;
  if (!budgets_.configure(device, bytes) || !bytes) return;
  if (*bytes > 0) log::write(KOILA_LOG_INFO, "budget for " + device_name(device) + ": " + format_bytes(*bytes));
  else log::write(KOILA_LOG_WARN, "KOILA_DEVICE_MEMORY: the memory of " + device_name(device) + " cannot be read; using no budget");
}

void Runtime::on_tensors(int device, std::int64_t change) {
  if (device < 0 || !is_device(device)) return;
  if (change >= 0) tensors_[device].try_reserve(change);
  else tensors_[device].release(-change);
}

bool Runtime::counts_tensors(int device) const {
  if (!attached_ || device < KOILA_CPU || !is_device(device)) return false;
  return device == KOILA_CPU || tensors_[device].allocations() > 0 || ledger_.of(device).allocations() == 0;
}

// What was alive when the first listener came is alive when the last is called.
EventFeed& Runtime::event_feed() {
  std::call_once(feed_ends_, [] { std::atexit([] { get()->event_feed_->stop(); }); });
  return *event_feed_;
}

void Runtime::on_outside(int device, std::int64_t change) {
  if (device < kFirstPlace || device >= kCudaDevices) return;
  Account& account = outside_[device - kFirstPlace];
  if (change >= 0) {
    account.try_reserve(change);
    written_outside_[device - kFirstPlace].fetch_add(change, std::memory_order_relaxed);
  } else {
    account.release(-change);
  }
}

void Runtime::start_anew_after_fork() {
  // Another thread of the parent may have held the locks of the log and of the events when it forked: both are left behind.
  // So is the parent's record, which is the parent's alone to write.
  record_.store(nullptr, std::memory_order_release);
  record_was_tried_.store(false);
  lists_written_.store(0);
  for (WrittenPeak& written : written_peak_) written.seconds.store(-1);
  ended_ = false;
  clock_ = RunClock();
  timelines_ = new Timelines;
  steps_ = new StepSeries;
  events_ = new Events;
  event_feed_ = new EventFeed;
  findings_ = new Findings;
  peak_tracks_.unlock();
  budgets_.unlock();
  rule_book().start_anew_after_fork();
  log::open(config_.log_level, config_.log_file);
  device_memory_ = new DeviceMemory(ledger_, device_memory_);
  device_memory_->set_watcher([](int place) { get()->on_sample(place); });
  tensor_book_ = new TensorBook(config_.wants_snapshot(), tensor_book_);
  leak_watch_ = new LeakWatch(*tensor_book_, *findings_);
  ledger_.start_anew_after_fork();
  injector_.restart(ledger_);
  forked_ = true;
}

void Runtime::on_oom(OomEvent event) {
  open_record();
  event.at = clock_.now();
  if (is_about_state(event.reason))
    event.reason = with_what_state_lacks(event, tensor_book_->live(event.device)[KOILA_PARAMETERS], tensor_book_->made_by_update(event.device));
  const bool first = events_->add_oom(event);
  write_devices();
  // What came through at the second try is no news to who does not ask.
  const int level = !first ? KOILA_LOG_DEBUG : event.outcome == KOILA_RESCUED && event.rung == KOILA_RUNG_RETRY ? KOILA_LOG_INFO : KOILA_LOG_WARN;
  if (log::enabled(level)) log::write(level, describe(event));
  const int kind = event.outcome == KOILA_RESCUED ? KOILA_EVENT_RESCUE : KOILA_EVENT_REFUSAL;
  if (!event_feed_->wants(kind)) return;
  FeedEvent told;
  told.figures.kind = kind;
  told.figures.device = event.device;
  told.figures.phase = event.phase;
  told.figures.requested_bytes = event.requested_bytes;
  told.figures.live_bytes = event.live_bytes;
  told.figures.budget_bytes = event.budget_bytes;
  told.figures.micro_batch = event.micro_batch;
  told.figures.batch = event.batch;
  told.figures.step = events_->steps();
  told.op = std::move(event.op);
  told.reason = std::move(event.reason);
  event_feed_->post(std::move(told));
}

void Runtime::on_step() {
  open_record();
  const EndedStep ended = events_->add_step();
  StepSample step;
  step.seconds = clock_.now();
  step.step = ended.number;
  step.batch = ended.batch;
  step.micro_batch = ended.micro_batch;
  step.rescues = ended.rescues;
  for (int device = KOILA_CPU; device < kCudaDevices; ++device) {
    Account& account = tensors(device);
    if (account.step_peak() > step.peak_bytes) {
      step.device = device;
      step.peak_bytes = account.step_peak();
      step.live_bytes = account.live();
    }
    account.begin_step();
  }
  steps_->add(step);
  tensor_book_->end_step();
  leak_watch_->step_over(ended.number);
  write_devices();
  if (!event_feed_->wants(KOILA_EVENT_STEP)) return;
  FeedEvent told;
  told.figures.kind = KOILA_EVENT_STEP;
  told.figures.device = step.device;
  told.figures.phase = KOILA_BACKWARD;
  told.figures.live_bytes = step.live_bytes;
  told.figures.peak_bytes = step.peak_bytes;
  told.figures.budget_bytes = ledger_.of(step.device).budget();
  told.figures.micro_batch = step.micro_batch;
  told.figures.batch = step.batch;
  told.figures.step = step.step;
  told.figures.rescues = step.rescues;
  event_feed_->post(std::move(told));
}

}  // namespace koila
