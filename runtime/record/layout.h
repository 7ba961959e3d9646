// What stands where in a record: a Base, and behind it a Section for each place that had memory, in the order of their first.
//
// The file grows by sections, and has holes where nothing was written. A change here is a new kVersion; one that moves anything is told by
// the sizes in Prefix too, so that no koila takes another's record for its own.
#ifndef KOILA_RUNTIME_RECORD_LAYOUT_H_
#define KOILA_RUNTIME_RECORD_LAYOUT_H_

#include <cstdint>
#include <cstring>
#include <string>

#include "runtime/record/checked.h"
#include "runtime/record/file.h"
#include "runtime/report/data.h"
#include "runtime/timeline.h"

namespace koila::record {

constexpr char kMagic[8] = {'k', 'o', 'i', 'l', 'a', '\n', '\x1a', '\0'};
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kRungs = 8;
constexpr std::size_t kMaxSourcesKept = 64;
constexpr std::size_t kMaxLeaksKept = 64;

// Cut where it is too long, and never within a character of UTF-8.
template <std::size_t N>
struct Text {
  static_assert(N % 8 == 0);
  char bytes[N] = {};

  Text() = default;
  Text(const std::string& from) {
    std::size_t n = from.size();
    if (n >= N) {
      n = N - 1;
      while (n > 0 && (static_cast<unsigned char>(from[n]) & 0xc0) == 0x80) --n;
    }
    std::memcpy(bytes, from.data(), n);
  }
  std::string text() const { return {bytes, strnlen(bytes, N)}; }
};

struct Prefix {
  char magic[8];
  std::uint64_t version;
  std::uint64_t base_bytes;
  std::uint64_t section_bytes;
};

struct Identity {
  std::int64_t pid = 0;
  std::uint64_t birth = 0;  // of the process, as /proc counts it: another process of that number has another
  double started = 0;
  std::int64_t mode = 0;
  std::int64_t microbatch = 0;
  Text<256> host;
  Text<2048> command;
  Text<64> torch_version;
};

enum State : std::int64_t { kAtWork = 1, kEnded = 2 };

struct Page {
  double seconds = 0;  // when this was written
  std::int64_t state = kAtWork;
  std::int64_t full = 0;  // 1: there was no room for all of it
  std::int64_t steps = 0;
  std::int64_t rescues = 0;
  std::int64_t refusals = 0;
  RegionTotals region_totals;
  koila_region_event last_region = {};
  RungTotals rungs[kRungs];  // [0]: refused; else by the number of the bit
};

struct Oom {
  std::int64_t device = 0, phase = 0, outcome = 0, rung = 0;
  std::int64_t requested_bytes = 0, live_bytes = 0, budget_bytes = 0, micro_batch = 0, batch = 0, count = 0, step = 0;
  double seconds = 0, at = 0;
  Text<128> op;
  Text<512> reason;
};

struct FullBatch {
  std::int64_t count = 0, bytes = 0;
  Text<128> op;
};

struct Source {
  std::int64_t place = 0, kind = 0;
  std::int64_t live_bytes = 0, peak_bytes = 0, allocations = 0, frees = 0;
  Text<64> library;
};

struct HolderEntry {
  std::int64_t category = 0, bytes = 0, count = 0, step = 0;
  Text<128> op;
  Text<512> where;
};

struct LeakEntry {
  std::int64_t device = 0, category = 0, bytes = 0, bytes_per_step = 0, first_step = 0;
  Text<128> op;
  Text<512> where;
  Text<256> holder;
};

struct Device {
  double seconds = 0;  // when this was written
  std::int64_t device = 0;
  std::int64_t live_bytes = 0, peak_bytes = 0, budget_bytes = 0, allocations = 0, frees = 0;
  std::int64_t outside_bytes = 0, outside_peak_bytes = 0, outside_written_bytes = 0;
  CategoryBytes live_by_category = {}, peak_by_category = {};
  double peak_seconds = 0;
  std::int64_t peak_step = 0;
  std::int64_t failed_allocations = 0, tensor_bytes = 0, tensor_peak_bytes = 0, used_bytes = 0, untracked_bytes = 0;
};

struct Sizes {
  std::int64_t of[kSizeClasses] = {};
};

template <class T>
struct Pending {
  std::uint64_t count = 0;
  T of[kPending];
};

template <class T>
struct SeriesOf {
  Twin<Pending<T>> pending;
  List<T, kMaxSamples> entries;
};

struct Base {
  Prefix prefix;
  Twin<Identity> identity;
  Twin<Page> page;
  Twin<ProgramFacts> facts;
  Table<FullBatch, kMaxFullBatchOps> full_batch;
  Checked<Text<512>> notes[kMaxNotes];
  Checked<koila_region_event> regions[kMaxRegions];
  List<Source, kMaxSourcesKept> sources;
  List<LeakEntry, kMaxLeaksKept> leaks;
  SeriesOf<StepSample> steps;
  Table<Oom, kMaxOomEvents> oom_events;
};

struct Section {
  Twin<Device> device;
  Twin<Sizes> sizes;
  SeriesOf<Sample> timeline;
  List<HolderEntry, kMaxHolders> holders;
};

// In the file each begins with a piece of its own (file.h).
constexpr std::size_t whole_pieces(std::size_t bytes) { return (bytes + kPieceBytes - 1) / kPieceBytes * kPieceBytes; }
constexpr std::size_t kBaseBytes = whole_pieces(sizeof(Base));
constexpr std::size_t kSectionBytes = whole_pieces(sizeof(Section));
constexpr std::size_t bytes_with(std::size_t sections) { return kBaseBytes + sections * kSectionBytes; }
static_assert(bytes_with(kPlaces) < 16 << 20);

}  // namespace koila::record

#endif  // KOILA_RUNTIME_RECORD_LAYOUT_H_
