// What the runtime writes of the run: the record as it goes, the reports at its end, and the file to send in where a check found it wrong.
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/log.h"
#include "runtime/printable.h"
#include "runtime/record/record.h"
#include "runtime/runtime.h"
#include "runtime/secrets.h"
#include "runtime/surroundings.h"
#include "runtime/whole_file.h"

namespace koila {

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

bool Runtime::is_in_use(int device) const {
  const Account& account = ledger_.of(device);
  return account.requests() > 0 || account.run_peak() > 0 || account.budget() > 0;
}

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
