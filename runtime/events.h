// What happened in the process, for the report. Bounded: a run of any length keeps the first entries of each list and counts the rest.
#ifndef KOILA_RUNTIME_EVENTS_H_
#define KOILA_RUNTIME_EVENTS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/abi.h"

namespace koila {

class RecordWriter;

constexpr std::size_t kMaxOomEvents = 1000;
constexpr std::size_t kMaxRegions = 1000;
constexpr std::size_t kMaxFullBatchOps = 200;
constexpr std::size_t kMaxNotes = 100;

struct OomEvent {
  int device = KOILA_CPU;
  int phase = KOILA_FORWARD;
  std::string op;
  std::int64_t requested_bytes = 0;
  std::int64_t live_bytes = 0;
  std::int64_t budget_bytes = 0;
  int outcome = KOILA_RESCUED;
  std::string reason;
  std::int64_t micro_batch = 0;
  std::int64_t batch = 0;
  int rung = 0;
  double seconds = 0;  // of all that are counted here
  std::int64_t count = 1;  // like ones that followed (same place, size, outcome and micro-batch)
  double at = 0;           // seconds since the process met PyTorch; of the first
  std::int64_t step = 0;   // steps that had ended by then

  bool is_like(const OomEvent& other) const;
};

// An operator that ran at full batch because no rule splits it.
struct FullBatchOp {
  std::int64_t count = 0;
  std::int64_t bytes = 0;  // the most in one call
};

struct RegionTotals {
  std::int64_t count = 0;
  std::int64_t runs = 0;
  std::int64_t forward_only = 0;
  std::int64_t halvings = 0;
  double seconds = 0;
};

// What a rung of the ladder did: the rescues it made, and the refusals at its foot.
struct RungTotals {
  std::int64_t count = 0;
  double seconds = 0;
};

struct EventList {
  std::int64_t steps = 0;
  std::int64_t rescues = 0;
  std::int64_t refusals = 0;
  std::map<int, RungTotals> rungs;  // by enum koila_rung; 0: refused
  std::vector<OomEvent> oom_events;
  std::vector<koila_region_event> regions;
  koila_region_event last_region = {};
  RegionTotals region_totals;
  std::map<std::string, FullBatchOp> full_batch;
  std::vector<std::string> notes;
};

// A step that has just ended.
struct EndedStep {
  std::int64_t number = 0;   // from 1
  std::int64_t rescues = 0;  // in it
  std::int64_t batch = 0;    // of the last region in it; 0: none
  std::int64_t micro_batch = 0;
};

// Thread-safe.
class Events {
 public:
  // Whether it is the first of its kind, and so worth a line in the log. `step` is filled in.
  bool add_oom(OomEvent event);
  void add_region(const koila_region_event& event);
  EndedStep add_step();
  void add_full_batch(const std::string& op, std::int64_t bytes);
  void add_note(const std::string& note);

  EventList snapshot() const;
  // That have ended.
  std::int64_t steps() const;

  // What was added so far is written there, and from now on each thing as it is added. The writer must live as long as this.
  void write_to(RecordWriter* record);
  // The last word.
  void end_record();

 private:
  void write_oom(std::size_t index);
  void write_page();

  mutable std::mutex mutex_;
  EventList list_;
  std::int64_t rescues_before_ = 0;  // the step that is under way
  std::int64_t regions_before_ = 0;
  RecordWriter* record_ = nullptr;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_EVENTS_H_
