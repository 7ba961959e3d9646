#include "runtime/record/writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <mutex>

#include "runtime/record/process.h"
#include "runtime/record/record.h"

namespace koila {

using namespace record;

namespace {

// "" when a record may take the place of what is at `path`.
std::string what_stands_at(const std::string& path) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0) return "";
  if (!S_ISREG(status.st_mode)) return "there is something else than a file";
  if (status.st_size == 0) return "";
  const auto owner = owner_of(path);
  if (!owner) return "there is a file that is no record";
  if (owner->pid != getpid() && is_alive(owner->pid, owner->birth)) return "there is the record of process " + std::to_string(owner->pid) + ", which is running";
  return "";
}

template <class T, std::size_t N, class From, class To>
void rewrite(File& file, List<T, N>& list, const From* from, std::size_t count, To to) {
  if (!file.has_room(&list.extent, sizeof list.extent)) return;
  const typename List<T, N>::Extent next{1 - list.now().place, std::min(count, N)};
  for (std::size_t i = 0; i < next.count; ++i) {
    Checked<T>& entry = list.of[next.place][i];
    if (!file.has_room(&entry, sizeof entry)) return;
    entry.write(to(from[i]));
  }
  list.extent.write(next);
}

}  // namespace

template <class T>
void RecordWriter::Sink<T>::append(const T& entry) {
  if (!file_->has_room(&series_->entries.extent, sizeof series_->entries.extent)) return;
  auto extent = series_->entries.now();
  if (extent.count >= kMaxSamples) return;
  Checked<T>& to = series_->entries.of[extent.place][extent.count];
  if (!file_->has_room(&to, sizeof to)) return;
  to.write(entry);
  ++extent.count;
  series_->entries.extent.write(extent);
}

template <class T>
void RecordWriter::Sink<T>::replace(const T* entries, std::size_t count) {
  rewrite(*file_, series_->entries, entries, count, [](const T& entry) { return entry; });
}

template <class T>
void RecordWriter::Sink<T>::pending(const T* entries, std::size_t count) {
  Pending<T> pending;
  pending.count = std::min(count, kPending);
  std::copy_n(entries, pending.count, pending.of);
  if (file_->has_room(&series_->pending, sizeof series_->pending)) series_->pending.write(pending);
}

RecordWriter::RecordWriter(std::string path, std::unique_ptr<File> file, const RunClock& clock)
    : path_(std::move(path)), file_(std::move(file)), clock_(clock), base_(*reinterpret_cast<Base*>(file_->data())) {
  steps_.open(file_.get(), &base_.steps);
}

std::unique_ptr<RecordWriter> RecordWriter::open(const std::string& path, const ReportData& identity, const RunClock& clock, std::string& problem) {
  problem = what_stands_at(path);
  if (!problem.empty()) return nullptr;
  std::unique_ptr<File> file = File::create(path, kBaseBytes, bytes_with(kPlaces), problem);
  if (file == nullptr) return nullptr;
  std::unique_ptr<RecordWriter> writer(new RecordWriter(path, std::move(file), clock));
  writer->begin(identity);
  // Seen from here on, and whole.
  if (!writer->file_->publish(problem)) return nullptr;
  return writer;
}

void RecordWriter::begin(const ReportData& identity) {
  identify(identity);
  write_page({});
  Prefix prefix = {{}, kVersion, kBaseBytes, kSectionBytes};
  std::copy(std::begin(kMagic), std::end(kMagic), prefix.magic);
  if (has_room(base_.prefix)) base_.prefix = prefix;
}

void RecordWriter::identify(const ReportData& identity) {
  Identity to;
  to.pid = identity.pid;
  to.birth = birth_of(identity.pid);
  to.started = clock_.started();
  to.mode = identity.mode;
  to.microbatch = identity.microbatch;
  to.host = identity.host;
  to.command = identity.command;
  to.torch_version = identity.torch_version;
  write(base_.identity, to);
}

void RecordWriter::write_page(const EventList& events) {
  Page page;
  page.seconds = clock_.now();
  page.state = state_;
  page.full = file_->is_full() ? 1 : 0;
  page.steps = events.steps;
  page.rescues = events.rescues;
  page.refusals = events.refusals;
  page.region_totals = events.region_totals;
  page.last_region = events.last_region;
  for (const auto& [rung, totals] : events.rungs) {
    const auto number = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(rung)));
    if (number < kRungs) page.rungs[number] = totals;
  }
  write(base_.page, page);
}

void RecordWriter::write_end(const EventList& events) {
  state_ = kEnded;
  write_page(events);
}

void RecordWriter::write_oom(std::size_t index, const OomEvent& event) {
  if (index >= kMaxOomEvents || !has_room(base_.oom_events.of[index])) return;
  Oom to;
  to.device = event.device;
  to.phase = event.phase;
  to.outcome = event.outcome;
  to.rung = event.rung;
  to.requested_bytes = event.requested_bytes;
  to.live_bytes = event.live_bytes;
  to.budget_bytes = event.budget_bytes;
  to.micro_batch = event.micro_batch;
  to.batch = event.batch;
  to.count = event.count;
  to.step = event.step;
  to.seconds = event.seconds;
  to.at = event.at;
  to.op = event.op;
  to.reason = event.reason;
  base_.oom_events.of[index].write(to);
}

void RecordWriter::write_region(std::size_t index, const koila_region_event& event) {
  if (index < kMaxRegions) write(base_.regions[index], event);
}

void RecordWriter::write_full_batch(const std::string& op, const FullBatchOp& entry) {
  const std::size_t index = full_batch_.try_emplace(op, full_batch_.size()).first->second;
  if (index < kMaxFullBatchOps) write(base_.full_batch.of[index], FullBatch{entry.count, entry.bytes, op});
}

void RecordWriter::write_note(std::size_t index, const std::string& note) {
  if (index < kMaxNotes) write(base_.notes[index], Text<512>(note));
}

Section* RecordWriter::section_of(int device) {
  std::atomic<Section*>& section = section_[device - kFirstPlace];
  if (Section* found = section.load(std::memory_order_acquire); found != nullptr) return found;
  const std::lock_guard lock(lock_);
  if (section.load(std::memory_order_relaxed) != nullptr) return section.load(std::memory_order_relaxed);
  if (!file_->grow(bytes_with(sections_ + 1))) return nullptr;
  auto* made = reinterpret_cast<Section*>(file_->data() + bytes_with(sections_));
  ++sections_;
  if (!file_->has_room(made, kPieceBytes)) return nullptr;
  Device first;
  first.device = device;
  made->device.write(first);
  timelines_[device - kFirstPlace].open(file_.get(), &made->timeline);
  section.store(made, std::memory_order_release);
  return made;
}

void RecordWriter::write_device(const DeviceFigures& figures) {
  if (!is_device(figures.device)) return;
  Section* section = section_of(figures.device);
  if (section == nullptr) return;
  Device to;
  to.seconds = clock_.now();
  to.device = figures.device;
  to.live_bytes = figures.live_bytes;
  to.peak_bytes = figures.peak_bytes;
  to.budget_bytes = figures.budget_bytes;
  to.allocations = figures.allocations;
  to.frees = figures.frees;
  to.outside_bytes = figures.outside_bytes;
  to.outside_peak_bytes = figures.outside_peak_bytes;
  to.outside_written_bytes = figures.outside_written_bytes;
  to.live_by_category = figures.live_by_category;
  to.peak_by_category = figures.peak_by_category;
  to.peak_seconds = figures.peak_seconds;
  to.peak_step = figures.peak_step;
  to.failed_allocations = figures.failed_allocations;
  to.tensor_bytes = figures.tensor_bytes;
  to.tensor_peak_bytes = figures.tensor_peak_bytes;
  to.used_bytes = figures.used_bytes;
  to.untracked_bytes = figures.untracked_bytes;
  const std::lock_guard lock(lock_);
  write(section->device, to);
}

void RecordWriter::write_sizes(int device, const std::vector<std::int64_t>& sizes) {
  Section* section = is_device(device) ? section_of(device) : nullptr;
  if (section == nullptr) return;
  Sizes to;
  std::copy_n(sizes.begin(), std::min<std::size_t>(sizes.size(), kSizeClasses), to.of);
  const std::lock_guard lock(lock_);
  write(section->sizes, to);
}

void RecordWriter::write_holders(int device, const std::vector<Holder>& holders) {
  Section* section = is_device(device) ? section_of(device) : nullptr;
  if (section == nullptr) return;
  const std::lock_guard lock(lock_);
  rewrite(*file_, section->holders, holders.data(), holders.size(), [](const Holder& from) {
    return HolderEntry{from.category, from.bytes, from.count, from.step, from.op, from.where};
  });
}

void RecordWriter::write_sources(const std::vector<SourceFigures>& sources) {
  const std::lock_guard lock(lock_);
  rewrite(*file_, base_.sources, sources.data(), sources.size(), [](const SourceFigures& from) {
    return Source{from.place, static_cast<std::int64_t>(from.kind), from.live_bytes, from.peak_bytes, from.allocations, from.frees, from.library};
  });
}

void RecordWriter::write_leaks(const std::vector<Leak>& leaks) {
  const std::lock_guard lock(lock_);
  rewrite(*file_, base_.leaks, leaks.data(), leaks.size(), [](const Leak& from) {
    return LeakEntry{from.device, from.category, from.bytes, from.bytes_per_step, from.first_step, from.op, from.where, from.holder};
  });
}

void RecordWriter::write_facts(const ProgramFacts& facts) {
  const std::lock_guard lock(lock_);
  write(base_.facts, facts);
}

SeriesSink<Sample>* RecordWriter::timeline_of(int device) {
  return is_device(device) && section_of(device) != nullptr ? &timelines_[device - kFirstPlace] : nullptr;
}

}  // namespace koila
