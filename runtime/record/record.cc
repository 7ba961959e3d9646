#include "runtime/record/record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>

#include "runtime/printable.h"
#include "runtime/quiet_write.h"
#include "runtime/record/layout.h"
#include "runtime/record/process.h"
#include "runtime/report/sane.h"

namespace koila {

using namespace record;

namespace {

// A copy of a file's bytes, of whole sections; sections behind the last are none.
struct Copy {
  std::unique_ptr<std::uint64_t[]> words;
  std::size_t sections = 0;

  const Base& base() const { return *reinterpret_cast<const Base*>(words.get()); }
  const Section& section(std::size_t i) const {
    return *reinterpret_cast<const Section*>(reinterpret_cast<const char*>(words.get()) + bytes_with(i));
  }
};

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : file_(quiet_open(path.c_str(), O_RDONLY | O_NONBLOCK)) {}
  ~Descriptor() {
    if (file_ >= 0) close(file_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

bool read_whole(int file, void* to, std::size_t bytes) {
  char* at = static_cast<char*>(to);
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = pread(file, at + done, bytes - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

// What is wrong with the file, "" when nothing is.
std::string problem_of(const Prefix& prefix) {
  if (!std::equal(std::begin(kMagic), std::end(kMagic), prefix.magic)) return "is no record of koila's";
  if (prefix.version > kVersion) {
    return "was written by a newer koila (layout " + std::to_string(prefix.version) + ", this one reads " + std::to_string(kVersion) + ")";
  }
  if (prefix.version != kVersion || prefix.base_bytes != kBaseBytes || prefix.section_bytes != kSectionBytes) {
    return "was written by another koila than this one (" KOILA_VERSION ")";
  }
  return "";
}

std::string load(const std::string& path, Copy& copy) {
  const Descriptor file(path);
  const auto failed = [] { return std::string("cannot be read: ") + std::strerror(errno); };
  struct stat status = {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) return failed();
  if (!S_ISREG(status.st_mode)) return "is not a regular file";
  const auto size = static_cast<std::size_t>(status.st_size);
  Prefix prefix = {};
  if (size < sizeof prefix || !read_whole(file.get(), &prefix, sizeof prefix)) return "is no record of koila's: too short";
  if (const std::string problem = problem_of(prefix); !problem.empty()) return problem;
  if (size < kBaseBytes || (size - kBaseBytes) % kSectionBytes != 0 || size > bytes_with(kPlaces)) {
    return "is not whole: " + std::to_string(size) + " bytes, expected " + std::to_string(kBaseBytes) + " and a multiple of " + std::to_string(kSectionBytes);
  }
  copy.sections = (size - kBaseBytes) / kSectionBytes;
  copy.words.reset(new std::uint64_t[size / sizeof(std::uint64_t)]);
  return read_whole(file.get(), copy.words.get(), size) ? "" : "cannot be read: it became shorter meanwhile";
}

// One that was, or none.
bool is_rung(std::int64_t rung) { return rung == 0 || rung == KOILA_RUNG_RETRY || rung == KOILA_RUNG_SPLIT || rung == KOILA_RUNG_OFFLOAD; }

bool is_place(std::int64_t device) { return device >= kFirstPlace && device < kCudaDevices; }

// Turns a copy into the data of a report, and counts what is not whole, or makes no sense.
class Reader {
 public:
  int damaged() const { return damaged_; }

  // Nothing when there is no identity in it.
  std::optional<ReportData> read(const Copy& copy) {
    const Base& base = copy.base();
    const Identity* identity = base.identity.read();
    if (identity == nullptr || !good(identity->started) || identity->pid <= 0) return std::nullopt;
    const bool alive = is_alive(identity->pid, identity->birth);
    being_written_ = alive;
    ReportData data;
    if (identity->mode >= KOILA_MODE_OFF && identity->mode <= KOILA_MODE_LAZY) data.mode = static_cast<int>(identity->mode);
    else ++damaged_;
    data.microbatch = identity->microbatch;
    data.pid = identity->pid;
    data.host = identity->host.text();
    data.command = identity->command.text();
    data.torch_version = identity->torch_version.text();
    data.started = identity->started;
    read_page(base, data);
    read_events(base, data.events);
    if (const ProgramFacts* facts = latest(base.facts)) data.facts = *facts;
    read_list(base.sources, [&](const Source& s) { return add(data.sources, s); });
    read_list(base.leaks, [&](const LeakEntry& l) { return add(data.leaks, l); });
    data.steps = read_series(base.steps, [](const StepSample& s) { return is_device(s.device) && good(s.seconds) && s.step > 0; },
                             [](const StepSample& a, const StepSample& b) { return a.step < b.step; });
    for (const StepSample& step : data.steps) seen(step.seconds);
    for (std::size_t i = 0; i < copy.sections; ++i) read_section(copy.section(i), data.devices);
    std::sort(data.devices.begin(), data.devices.end(), [](const DeviceFigures& a, const DeviceFigures& b) { return a.device < b.device; });

    data.seconds = last_;
    if (ended_) {
      data.end = RunEnd::kExited;
    } else if (alive) {
      data.end = RunEnd::kRunning;
      data.seconds = std::max(last_, static_cast<double>(time(nullptr)) - data.started);
    } else {
      data.end = RunEnd::kCutOff;
    }
    make_sane(data);
    return data;
  }

  bool full() const { return full_; }

 private:
  static bool good(double seconds) { return std::isfinite(seconds) && seconds >= 0; }
  void seen(double seconds) { last_ = std::max(last_, seconds); }

  template <class T>
  const T* latest(const Twin<T>& twin) {
    const T* found = twin.read();
    // The half that is being written over looks damaged, and is none of the reader's.
    if ((found == nullptr && !twin.is_blank()) || (twin.is_damaged() && !being_written_)) ++damaged_;
    return found;
  }

  void read_page(const Base& base, ReportData& data) {
    const Page* page = latest(base.page);
    if (page == nullptr || !good(page->seconds)) return;
    seen(page->seconds);
    ended_ = page->state == kEnded;
    full_ = page->full != 0;
    EventList& events = data.events;
    events.steps = page->steps;
    events.rescues = page->rescues;
    events.refusals = page->refusals;
    events.region_totals = page->region_totals;
    if (is_device(page->last_region.device)) events.last_region = page->last_region;
    else ++damaged_;
    for (std::size_t i = 0; i < kRungs; ++i) {
      if (page->rungs[i].count > 0 && (i == 0 || is_rung(1 << (i - 1)))) events.rungs[i == 0 ? 0 : 1 << (i - 1)] = page->rungs[i];
    }
  }

  void read_events(const Base& base, EventList& events) {
    read_table(base.oom_events.of, [&](const Oom& from) {
      const bool is_named = from.phase >= KOILA_FORWARD && from.phase <= KOILA_NO_GRAD && (from.outcome == KOILA_RESCUED || from.outcome == KOILA_REFUSED) && is_rung(from.rung);
      if (!is_place(from.device) || !is_named || !good(from.seconds) || !good(from.at)) return false;
      OomEvent event;
      event.device = static_cast<int>(from.device);
      event.phase = static_cast<int>(from.phase);
      event.op = from.op.text();
      event.requested_bytes = from.requested_bytes;
      event.live_bytes = from.live_bytes;
      event.budget_bytes = from.budget_bytes;
      event.outcome = static_cast<int>(from.outcome);
      event.reason = from.reason.text();
      event.micro_batch = from.micro_batch;
      event.batch = from.batch;
      event.rung = static_cast<int>(from.rung);
      event.seconds = from.seconds;
      event.count = from.count;
      event.at = from.at;
      event.step = from.step;
      seen(event.at);
      events.oom_events.push_back(std::move(event));
      return true;
    });
    read_table(base.full_batch.of, [&](const FullBatch& from) {
      events.full_batch[from.op.text()] = {from.count, from.bytes};
      return true;
    });
    read_checked(base.regions, [&](const koila_region_event& region) {
      if (!is_device(region.device) || !good(region.seconds)) return false;
      events.regions.push_back(region);
      return true;
    });
    read_checked(base.notes, [&](const Text<512>& note) {
      events.notes.push_back(note.text());
      return true;
    });
  }

  // Entries come one behind the other: the first that was never written is the end.
  template <class T, std::size_t N, class F>
  void read_table(const Twin<T> (&table)[N], F use) {
    for (std::size_t i = 0; i < N && !table[i].is_blank(); ++i) {
      const T* found = latest(table[i]);
      if (found != nullptr && !use(*found)) ++damaged_;
    }
  }

  template <class T, std::size_t N, class F>
  void read_checked(const Checked<T> (&entries)[N], F use) {
    for (std::size_t i = 0; i < N && !entries[i].is_blank(); ++i) {
      if (!entries[i].is_whole() || !use(entries[i].value)) ++damaged_;
    }
  }

  template <class T, std::size_t N, class F>
  void read_list(const List<T, N>& list, F use) {
    if (latest(list.extent) == nullptr) return;
    const auto extent = list.now();
    for (std::size_t i = 0; i < extent.count; ++i) {
      const Checked<T>& entry = list.of[extent.place][i];
      if (!entry.is_whole() || !use(entry.value)) ++damaged_;
    }
  }

  template <class T, class Good, class Before>
  std::vector<T> read_series(const SeriesOf<T>& series, Good is_good, Before before) {
    std::vector<T> entries;
    const auto use = [&](const T& entry) {
      if (!is_good(entry) || (!entries.empty() && before(entry, entries.back()))) return false;
      entries.push_back(entry);
      return true;
    };
    read_list(series.entries, use);
    const Pending<T>* pending = latest(series.pending);
    for (std::size_t i = 0; pending != nullptr && i < std::min<std::size_t>(pending->count, kPending); ++i) {
      // What was moved among the entries already stands here as well, until the next.
      if (entries.empty() || before(entries.back(), pending->of[i])) use(pending->of[i]);
    }
    return entries;
  }

  static bool add(std::vector<SourceFigures>& all, const Source& from) {
    if (!is_place(from.place) || from.kind < 0 || from.kind >= kMemoryKinds) return false;
    all.push_back({static_cast<int>(from.place), static_cast<MemoryKind>(from.kind), from.library.text(), from.live_bytes, from.peak_bytes,
                   from.allocations, from.frees});
    return true;
  }

  static bool is_category(std::int64_t category) { return category >= 0 && category < KOILA_CATEGORIES; }

  static bool add(std::vector<Leak>& all, const LeakEntry& from) {
    if (!is_place(from.device) || !is_category(from.category)) return false;
    all.push_back({static_cast<int>(from.device), static_cast<int>(from.category), from.op.text(), from.where.text(), from.holder.text(), from.bytes,
                   from.bytes_per_step, from.first_step});
    return true;
  }

  void read_section(const Section& section, std::vector<DeviceFigures>& devices) {
    const Device* from = latest(section.device);
    if (from == nullptr) return;
    const auto is_same = [&](const DeviceFigures& other) { return other.device == from->device; };
    if (!is_place(from->device) || !good(from->seconds) || std::any_of(devices.begin(), devices.end(), is_same)) {
      ++damaged_;
      return;
    }
    seen(from->seconds);
    DeviceFigures to;
    to.device = static_cast<int>(from->device);
    to.live_bytes = from->live_bytes;
    to.peak_bytes = from->peak_bytes;
    to.budget_bytes = from->budget_bytes;
    to.allocations = from->allocations;
    to.frees = from->frees;
    to.outside_bytes = from->outside_bytes;
    to.outside_peak_bytes = from->outside_peak_bytes;
    to.outside_written_bytes = from->outside_written_bytes;
    to.live_by_category = from->live_by_category;
    to.peak_by_category = from->peak_by_category;
    to.peak_seconds = from->peak_seconds;
    to.peak_step = from->peak_step;
    to.failed_allocations = from->failed_allocations;
    to.tensor_bytes = from->tensor_bytes;
    to.tensor_peak_bytes = from->tensor_peak_bytes;
    to.used_bytes = from->used_bytes;
    to.untracked_bytes = from->untracked_bytes;
    if (const Sizes* sizes = latest(section.sizes)) to.sizes.assign(std::begin(sizes->of), std::end(sizes->of));
    to.timeline = read_series(section.timeline, [](const Sample& s) { return good(s.seconds); },
                              [](const Sample& a, const Sample& b) { return a.seconds < b.seconds; });
    // What was live and when it was most are written with the figures, and now and then: the timeline knows better.
    for (const Sample& sample : to.timeline) {
      seen(sample.seconds);
      to.peak_bytes = std::max(to.peak_bytes, sample.live_bytes);
    }
    if (!to.timeline.empty() && to.timeline.back().seconds > from->seconds) to.live_bytes = to.timeline.back().live_bytes;
    show_peak(to);
    read_list(section.holders, [&](const HolderEntry& h) {
      if (!is_category(h.category)) return false;
      to.holders.push_back({static_cast<int>(h.category), h.op.text(), h.where.text(), h.bytes, h.count, h.step});
      return true;
    });
    devices.push_back(std::move(to));
  }

  bool being_written_ = false;
  int damaged_ = 0;
  bool ended_ = false;
  bool full_ = false;
  double last_ = 0;  // that anything was written
};

ReadRecord read_once(const std::string& path, bool& worth_another_try) {
  const std::string name = "the record " + printable(path) + " ";
  Copy copy;
  if (const std::string problem = load(path, copy); !problem.empty()) return {std::nullopt, name + problem};
  Reader reader;
  std::optional<ReportData> data = reader.read(copy);
  if (!data) return {std::nullopt, name + "is damaged: it does not say whose it is"};
  worth_another_try = reader.damaged() > 0 && data->end == RunEnd::kRunning;
  std::string problem;
  if (reader.damaged() > 0) problem = name + "is damaged: " + std::to_string(reader.damaged()) + " of its entries are left out, or older than they were";
  else if (reader.full()) problem = name + "is not complete: there was no room on the disk for all of it";
  return {std::move(data), problem};
}

}  // namespace

ReadRecord read_record(const std::string& path) {
  try {
    ReadRecord read;
    // An entry that is written over while it is read is no damage.
    for (int tries = 0; tries < 5; ++tries) {
      bool worth_another_try = false;
      read = read_once(path, worth_another_try);
      if (!worth_another_try) break;
      usleep(1000);
    }
    return read;
  } catch (const std::bad_alloc&) {
    return {std::nullopt, "out of memory"};
  }
}

std::optional<RecordOwner> owner_of(const std::string& path) {
  struct Head {
    Prefix prefix;
    Twin<Identity> identity;
  };
  static_assert(offsetof(Base, identity) == offsetof(Head, identity));
  // Looked at before it is opened: what a process has mapped may be a device.
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  const Descriptor file(path);
  if (file.get() < 0) return std::nullopt;
  const auto head = std::make_unique<Head>();
  if (!read_whole(file.get(), head.get(), sizeof *head)) return std::nullopt;
  if (!std::equal(std::begin(kMagic), std::end(kMagic), head->prefix.magic)) return std::nullopt;
  const Identity* identity = problem_of(head->prefix).empty() ? head->identity.read() : nullptr;
  if (identity == nullptr) return RecordOwner{};
  return RecordOwner{identity->pid, identity->birth};
}

}  // namespace koila
