#include "runtime/runtime.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/bytes.h"
#include "runtime/log.h"
#include "runtime/printable.h"
#include "runtime/record/record.h"
#include "runtime/rule_book.h"
#include "runtime/secrets.h"
#include "runtime/state_lacks.h"
#include "runtime/surroundings.h"
#include "runtime/whole_file.h"

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

void Runtime::open_record() {
  if (!config_.keeps_record || record_was_tried_.exchange(true)) return;
  const bool is_named = !config_.record.empty();
  std::string problem;
  try {
    std::string path = expand_path(config_.record);
    if (!is_named) {
      problem = prepare_record_folder();
      path = record_folder() + "/" + std::to_string(getpid()) + ".koila";
      // Somebody has put it there, and it may be no mishap.
      if (const std::string usual = record_folder_problem(); !usual.empty() && problem.empty() && !forked_ && !is_worker_)
        log::write(KOILA_LOG_WARN, usual + "; the record of this run is kept in " + record_folder());
    }
    if (problem.empty()) {
      if (!is_named) prune_records();
      // Leaked on purpose, like all that it is given to.
      RecordWriter* record = RecordWriter::open(path, identity(), clock_, problem).release();
      if (record != nullptr) {
        events_->write_to(record);
        steps_->write_to(record->steps());
        record_.store(record, std::memory_order_release);
        write_devices();
        return;
      }
      problem = "cannot write " + path + ": " + problem;
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  // Nobody asked for the one in the folder, and a child of a fork does what its parent was asked to.
  const bool is_worth_a_line = is_named || !record_folder_problem().empty();
  const int level = is_worth_a_line && !forked_ && !is_worker_ ? KOILA_LOG_WARN : KOILA_LOG_INFO;
  log::write(level, "no record of this run is kept" + std::string(is_named ? " (KOILA_RECORD): " : ": ") + problem);
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

// The file lies beside the record, or beside a report where no record is kept. Without either no file is written.
void Runtime::on_mismatch(const std::string& json) {
  if (mismatch_told_.exchange(true)) return;
  std::string path;
  if (const RecordWriter* record = this->record()) path = record->path();
  for (const ReportTarget& target : config_.reports) {
    if (path.empty() && !target.path.empty()) path = expand_path(target.path);
  }
  if (path.empty()) {
    log::write(KOILA_LOG_WARN, "a check found this step wrong, which is a bug of koila or of a rule of yours; no file to send in is kept, for there is no record and no report");
    return;
  }
  path += ".mismatch.json";
  const std::string text = "{\"koila\": \"" KOILA_VERSION "\", \"torch\": \"" + printable(torch_version_) + "\", \"mismatch\": " + without_controls(json) + "}\n";
  const int error = write_whole_file(path, text);
  log::write(KOILA_LOG_WARN, error == 0 ? "a check found this step wrong; please report it as a bug of koila, with " + path + ", which has no data of yours in it"
                                        : "a check found this step wrong; cannot write " + path + ": " + file_problem(error));
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

void Runtime::write_device(RecordWriter& record, int device) {
  if (SeriesSink<Sample>* sink = record.timeline_of(device); sink != nullptr) (*timelines_)[device - kFirstPlace].write_to(sink);
  record.write_device(figures_of(device));
  write_peak(record, device);
}

// What is alive at a peak is much to write: once a second, or where there is another peak at the end of a step.
void Runtime::write_peak(RecordWriter& record, int device) {
  WrittenPeak& written = written_peak_[device - kFirstPlace];
  const double now = clock_.coarse_now();
  if (written.seconds.load() >= 0 && now < written.seconds.load() + 1) return;
  const TensorBook::Peak peak = tensor_book_->peak(device);
  if (peak.holders.empty()) return;
  written.seconds.store(now);
  written.bytes.store(peak.bytes);
  record.write_holders(device, peak.holders);
}

// Whatever of the devices is not written as it happens.
void Runtime::write_devices() {
  RecordWriter* record = this->record();
  if (record == nullptr) return;
  bool used_cuda = false;
  for (int device = kFirstPlace; device < kCudaDevices; ++device) {
    if (!is_in_use(device)) continue;
    // Another peak, or the last word on it.
    if (WrittenPeak& written = written_peak_[device - kFirstPlace]; written.bytes.load() != tensor_book_->peak(device, false).bytes) written.seconds.store(-1);
    write_device(*record, device);
    used_cuda = used_cuda || device != KOILA_CPU;
  }
  record->write_facts(facts());
  // These are many, and come by the second.
  const double now = clock_.coarse_now();
  if (lists_written_.load() > 0 && now < lists_written_.load() + 1) return;
  lists_written_.store(now);
  if (const std::vector<Leak> leaks = findings_->leaks(); !leaks.empty()) record->write_leaks(leaks);
  if (!used_cuda) return;
  record->write_sources(device_memory_->sources());
  for (int device = kFirstPlace; device < kCudaDevices; ++device) {
    if (device != KOILA_CPU && ledger_.of(device).requests() > 0) record->write_sizes(device, device_memory_->sizes(device));
  }
}

bool Runtime::is_in_use(int device) const { return ledger_.of(device).requests() > 0 || ledger_.of(device).budget() > 0; }

ProgramFacts Runtime::facts() const {
  ProgramFacts facts = findings_->facts();
  facts.size_cache = config_.cache.empty() ? 0 : 1;
  return facts;
}

ReportData Runtime::identity() const {
  ReportData data;
  data.mode = config_.mode;
  data.microbatch = config_.microbatch;
  data.pid = getpid();
  data.host = expand_path("%h");
  data.command = masked_command(read_arguments());
  data.torch_version = torch_version_;
  data.started = clock_.started();
  return data;
}

// All but lists.
DeviceFigures Runtime::figures_of(int device) {
  const Account& account = ledger_.of(device);
  DeviceFigures figures;
  figures.device = device;
  figures.live_bytes = account.live();
  figures.peak_bytes = account.run_peak();
  figures.budget_bytes = account.budget();
  figures.allocations = account.allocations();
  figures.frees = account.frees();
  figures.failed_allocations = pressure(device);
  figures.outside_bytes = outside_[device - kFirstPlace].live();
  figures.outside_peak_bytes = outside_[device - kFirstPlace].run_peak();
  figures.outside_written_bytes = written_outside_[device - kFirstPlace].load(std::memory_order_relaxed);
  figures.live_by_category = tensor_book_->live(device);
  const TensorBook::Peak peak = tensor_book_->peak(device, /*with_holders=*/false);
  if (peak.bytes > 0) {
    figures.peak_by_category = peak.by_category;
    figures.peak_step = peak.step;
    figures.peak_seconds = clock_.seconds_at(peak.at);
  }
  if (device >= 0) {
    figures.tensor_bytes = tensors_[device].live();
    figures.tensor_peak_bytes = tensors_[device].run_peak();
    figures.used_bytes = used_[device - kFirstPlace].load(std::memory_order_relaxed);
    figures.untracked_bytes = untracked_[device - kFirstPlace].load(std::memory_order_relaxed);
  }
  return figures;
}

ReportData Runtime::report_data(RunEnd end, bool every_block) {
  ReportData data = identity();
  data.seconds = clock_.now();
  data.end = end;
  for (int device = kFirstPlace; device < kCudaDevices; ++device) {
    if (!is_in_use(device)) continue;
    DeviceFigures figures = figures_of(device);
    figures.holders = tensor_book_->peak(device).holders;
    if (device != KOILA_CPU) figures.sizes = device_memory_->sizes(device);
    figures.timeline = (*timelines_)[device - kFirstPlace].snapshot();
    show_peak(figures);
    data.devices.push_back(std::move(figures));
  }
  data.sources = device_memory_->sources();
  data.events = events_->snapshot();
  data.leaks = findings_->leaks();
  data.facts = facts();
  data.steps = steps_->snapshot();
  if (every_block) {
    data.blocks = tensor_book_->blocks();
    data.trace = tensor_book_->trace(clock_.begin());
  }
  return data;
}

void Runtime::at_exit() {
  if (ended_.exchange(true)) return;
  write_reports();
  RecordWriter* record = this->record();
  if (record == nullptr) return;
  try {
    lists_written_.store(0);
    for (WrittenPeak& written : written_peak_) written.seconds.store(-1);
    write_devices();
    events_->end_record();
    if (config_.record.empty()) record->remove();
  } catch (...) {
  }
}

void Runtime::write_reports() {
  try {
    const ReportData data = report_data(RunEnd::kExited, config_.wants_snapshot());
    const bool did_something = data.events.steps > 0 || !data.events.oom_events.empty();
    // A data loader's workers would each add a report of nothing, and overwrite the program's.
    if ((forked_ || is_worker_) && !did_something) return;
    for (const ReportTarget& target : config_.reports) {
      if (target.kind == ReportTarget::Kind::kStderr && !data.is_worth_a_line()) continue;
      const std::string problem = write_report(target, data);
      if (!problem.empty()) log::write(KOILA_LOG_ERROR, problem);
    }
  } catch (...) {
    // The program has done its work: no report is better than a crash after it.
  }
}

}  // namespace koila
