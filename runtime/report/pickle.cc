// PyTorch's snapshot format, as torch/csrc/cuda/memory_snapshot.cpp writes it. What reads it: torch/cuda/_memory_viz.py, and the viewer
// (torch/utils/viz/MemoryViz.js), whose unpickler knows only some opcodes: those used here are among them.
//
// The writer is our own: PyTorch's is out of reach here (runtime/ has no torch), and Debian packages no library for it.
#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "runtime/report/report.h"

namespace koila {
namespace {

// Protocol 2. Values are written one after another; those of a dict in turn with their keys.
class Pickler {
 public:
  Pickler() { bytes_ = "\x80\x02"; }

  std::string finish() { return std::move(bytes_) + '.'; }

  void integer(std::int64_t value) {
    if (value >= 0 && value < 1 << 8) op('K', value, 1);
    else if (value >= 0 && value < 1 << 16) op('M', value, 2);
    else if (value >= INT32_MIN && value <= INT32_MAX) op('J', value, 4);
    else op('\x8a', 8, 1), little_endian(value, 8);
  }
  void boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }

  // Written out at its first use only.
  void text(const std::string& value) {
    if (const auto found = texts_.find(value); found != texts_.end()) return get(found->second);
    // Python takes UTF-8 only, and the names of files may be any bytes; the library knows how to repair them.
    using Json = nlohmann::json;
    const std::string repaired = Json::parse(Json(value).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
    op('X', static_cast<std::int64_t>(repaired.size()), 4);
    bytes_ += repaired;
    texts_.emplace(value, put());
  }

  void begin_dict() { bytes_ += "}("; }
  void end_dict() { bytes_ += 'u'; }
  void item(const char* key, std::int64_t value) {
    text(key);
    integer(value);
  }
  void item(const char* key, const std::string& value) {
    text(key);
    text(value);
  }

  // next() goes before each element. They are not added all at once: the viewer's unpickler spreads each batch over a call's arguments.
  class List {
   public:
    explicit List(Pickler& pickler) : pickler_(pickler) { pickler_.bytes_ += "]("; }
    void next() {
      if (++count_ % 1000 == 0) pickler_.bytes_ += "e(";
    }
    void end() { pickler_.bytes_ += 'e'; }

   private:
    Pickler& pickler_;
    std::size_t count_ = 0;
  };

  void pair(std::int64_t first, std::int64_t second) {
    integer(first);
    integer(second);
    bytes_ += '\x86';
  }

  // The value just written can be had again by its number.
  std::int64_t put() {
    if (memo_ < 1 << 8) op('q', memo_, 1);
    else op('r', memo_, 4);
    return memo_++;
  }
  void get(std::int64_t number) {
    if (number < 1 << 8) op('h', number, 1);
    else op('j', number, 4);
  }

 private:
  void op(char code, std::int64_t argument, int bytes) {
    bytes_ += code;
    little_endian(argument, bytes);
  }
  void little_endian(std::int64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(static_cast<std::uint64_t>(value) >> 8 * i & 0xff);
  }

  std::string bytes_;
  std::unordered_map<std::string, std::int64_t> texts_;
  std::int64_t memo_ = 0;
};

std::uint64_t end_of(std::uint64_t address, std::int64_t bytes) { return address + static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0)); }

// A block that came or went; `made` says of which kind it is.
struct Change {
  bool alloc;
  std::uint64_t address;
  std::int64_t bytes;
  std::int64_t microseconds;
  const TraceEvent* made;
};

// A device's changes, each free after its alloc. Of what was made before the trace begins, or before the part of it that was kept, the
// alloc is put at its begin: only so is the height of the viewer's timeline right. A block that comes where one is has had its free missed.
std::vector<Change> changes_of(const ReportData& data, int device) {
  std::vector<Change> before, changes;
  std::unordered_map<std::uint64_t, Change> alive;
  std::int64_t begin = -1;
  for (const TraceEvent& event : data.trace) {
    if (event.device != device) continue;
    if (begin < 0) begin = event.microseconds;
    const auto found = alive.find(event.address);
    if (event.alloc) {
      if (found != alive.end()) changes.push_back({false, event.address, found->second.bytes, event.microseconds, found->second.made});
      changes.push_back({true, event.address, event.bytes, event.microseconds, &event});
      alive[event.address] = changes.back();
    } else if (found != alive.end()) {
      changes.push_back({false, event.address, found->second.bytes, event.microseconds, found->second.made});
      alive.erase(found);
    } else {
      before.push_back({true, event.address, event.bytes, begin, &event});
      changes.push_back({false, event.address, event.bytes, event.microseconds, &event});
    }
  }
  before.insert(before.end(), changes.begin(), changes.end());
  return before;
}

// A range of addresses in which tensors are, or were while the trace lasted.
struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

// Nothing of PyTorch's segments is known here (on the CPU there are none), and the viewer wants one around each block at any time: what lies no
// further apart than the smallest segment of PyTorch's allocator is taken for one.
std::vector<Range> ranges_of(const std::vector<const LiveBlock*>& blocks, const std::vector<Change>& changes) {
  constexpr std::uint64_t kGap = 2 << 20;
  std::vector<Range> all, ranges;
  for (const LiveBlock* block : blocks) all.push_back({block->address, end_of(block->address, block->bytes)});
  for (const Change& change : changes) all.push_back({change.address, end_of(change.address, change.bytes)});
  std::sort(all.begin(), all.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (const Range& range : all) {
    if (range.begin == range.end) continue;
    if (!ranges.empty() && range.begin <= ranges.back().end + kGap) ranges.back().end = std::max(ranges.back().end, range.end);
    else ranges.push_back(range);
  }
  return ranges;
}

class Snapshot {
 public:
  explicit Snapshot(const ReportData& data) : data_(data) {
    // CUDA devices by their numbers, and the CPU after the last of them.
    int last = -1;
    for (const DeviceFigures& device : data.devices) last = std::max(last, device.device);
    for (const LiveBlock& block : data.blocks) last = std::max(last, block.device);
    for (const TraceEvent& event : data.trace) last = std::max(last, event.device);
    for (int device = 0; device <= last; ++device) places_.push_back(device);
    places_.push_back(KOILA_CPU);
    for (const int device : places_) changes_.push_back(changes_of(data, device));
  }

  std::string pickled() {
    out_.begin_dict();
    out_.text("segments");
    Pickler::List segments(out_);
    for (std::size_t i = 0; i < places_.size(); ++i) write_segments(i, segments);
    segments.end();

    out_.text("device_traces");
    Pickler::List traces(out_);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      traces.next();
      write_trace(i);
    }
    traces.end();

    out_.text("allocator_settings");
    out_.begin_dict();
    out_.text("expandable_segments");
    out_.boolean(data_.facts.expandable_segments > 0);
    out_.end_dict();
    out_.end_dict();
    return out_.finish();
  }

 private:
  void write_segments(std::size_t index, Pickler::List& segments) {
    std::vector<const LiveBlock*> blocks;
    for (const LiveBlock& block : data_.blocks)
      if (block.device == places_[index] && block.bytes > 0) blocks.push_back(&block);
    std::sort(blocks.begin(), blocks.end(), [](const LiveBlock* a, const LiveBlock* b) { return a->address < b->address; });

    auto block = blocks.begin();
    for (const Range& range : ranges_of(blocks, changes_[index])) {
      std::int64_t live = 0;
      std::uint64_t taken = range.begin;
      std::vector<const LiveBlock*> inside;
      for (; block != blocks.end() && (*block)->address < range.end; ++block) {
        if ((*block)->address < taken) continue;  // no two blocks are at one place: the tensor's memory was noted twice
        taken = end_of((*block)->address, (*block)->bytes);
        live += (*block)->bytes;
        inside.push_back(*block);
      }
      segments.next();
      write_segment(index, range, live, inside);
    }
  }

  void write_segment(std::size_t index, const Range& range, std::int64_t live, const std::vector<const LiveBlock*>& inside) {
    const auto size = static_cast<std::int64_t>(range.end - range.begin);
    out_.begin_dict();
    out_.item("device", static_cast<std::int64_t>(index));
    out_.item("address", static_cast<std::int64_t>(range.begin));
    out_.item("total_size", size);
    out_.item("allocated_size", live);
    out_.item("active_size", live);
    out_.item("requested_size", live);
    out_.item("stream", 0);
    out_.item("segment_type", std::string(size > 2 << 20 ? "large" : "small"));
    out_.text("segment_pool_id");
    out_.pair(0, 0);
    out_.text("is_expandable");
    out_.boolean(false);
    out_.text("frames");
    write_no_frames();
    out_.text("blocks");
    Pickler::List blocks(out_);
    std::uint64_t at = range.begin;
    for (const LiveBlock* block : inside) {
      if (block->address > at) write_gap(blocks, at, block->address);
      blocks.next();
      write_block(block->address, block->bytes, block->bytes, "active_allocated", block);
      at = end_of(block->address, block->bytes);
    }
    if (at < range.end) write_gap(blocks, at, range.end);
    blocks.end();
    out_.end_dict();
  }

  void write_gap(Pickler::List& blocks, std::uint64_t begin, std::uint64_t end) {
    blocks.next();
    write_block(begin, static_cast<std::int64_t>(end - begin), 0, "inactive", nullptr);
  }

  void write_block(std::uint64_t address, std::int64_t size, std::int64_t requested, const char* state, const LiveBlock* block) {
    out_.begin_dict();
    out_.item("address", static_cast<std::int64_t>(address));
    out_.item("size", size);
    out_.item("requested_size", requested);
    out_.item("state", std::string(state));
    out_.text("frames");
    if (block != nullptr) write_frames(block->category, block->op, block->where);
    else write_no_frames();
    out_.end_dict();
  }

  void write_trace(std::size_t index) {
    const std::vector<Change>& changes = changes_[index];
    std::vector<const OomEvent*> ooms;
    for (const OomEvent& event : data_.events.oom_events) {
      if (event.device == places_[index] && (changes.empty() || microseconds(event) >= changes.front().microseconds)) ooms.push_back(&event);
    }
    std::stable_sort(ooms.begin(), ooms.end(), [](const OomEvent* a, const OomEvent* b) { return a->at < b->at; });

    Pickler::List trace(out_);
    auto oom = ooms.begin();
    for (const Change& change : changes) {
      for (; oom != ooms.end() && microseconds(**oom) < change.microseconds; ++oom) write_oom(trace, **oom);
      if (change.alloc) {
        write_change(trace, "alloc", change);
      } else {  // on one stream both happen at once
        write_change(trace, "free_requested", change);
        write_change(trace, "free_completed", change);
      }
    }
    for (; oom != ooms.end(); ++oom) write_oom(trace, **oom);
    // As PyTorch ends it. The viewer's legend of categories wants one by this name.
    if (!changes.empty()) {
      trace.next();
      begin_event("snapshot", static_cast<std::int64_t>(data_.seconds * 1e6));
      out_.item("addr", 0);
      out_.item("size", 0);
      out_.item("category", std::string("unknown"));
      out_.text("frames");
      write_no_frames();
      out_.end_dict();
    }
    trace.end();
  }

  void write_change(Pickler::List& trace, const char* action, const Change& change) {
    trace.next();
    begin_event(action, change.microseconds);
    out_.item("addr", static_cast<std::int64_t>(change.address));
    out_.item("size", change.bytes);
    out_.item("category", std::string(category_name(change.made->category)));
    out_.text("frames");
    write_frames(change.made->category, change.made->op, change.made->where);
    out_.end_dict();
  }

  void write_oom(Pickler::List& trace, const OomEvent& event) {
    trace.next();
    begin_event("oom", microseconds(event));
    out_.item("device_free", std::max<std::int64_t>(event.budget_bytes - event.live_bytes, 0));
    out_.item("size", event.requested_bytes);
    out_.text("frames");
    write_frames(KOILA_OTHER, event.op, "");
    out_.end_dict();
  }

  void begin_event(const char* action, std::int64_t since_start) {
    out_.begin_dict();
    out_.item("action", std::string(action));
    out_.item("time_us", static_cast<std::int64_t>(data_.started * 1e6) + since_start);
    out_.item("stream", 0);
  }

  static std::int64_t microseconds(const OomEvent& event) { return static_cast<std::int64_t>(event.at * 1e6); }

  // The operator, the program's frames and, outermost, the category: PyTorch's flame graphs then begin with it. Of each kind there is one list.
  void write_frames(int category, const std::string& op, const std::string& where) {
    const auto [known, is_new] = frames_.try_emplace({category, op, where}, 0);
    if (!is_new) return out_.get(known->second);
    Pickler::List frames(out_);
    if (!op.empty()) write_frame(frames, "operator", 0, op);
    for (std::size_t begin = 0; begin < where.size();) {
      const std::size_t end = std::min(where.find('\n', begin), where.size());
      write_place(frames, where.substr(begin, end - begin));
      begin = end + 1;
    }
    write_frame(frames, "category", 0, category_name(category));
    frames.end();
    known->second = out_.put();
  }

  // "train.py:31 in forward".
  void write_place(Pickler::List& frames, const std::string& place) {
    const std::size_t in = place.rfind(" in ");
    const std::size_t colon = in == std::string::npos ? in : place.rfind(':', in);
    std::int64_t line = 0;
    if (colon == std::string::npos || std::from_chars(place.data() + colon + 1, place.data() + in, line).ptr != place.data() + in)
      return write_frame(frames, "", 0, place);
    write_frame(frames, place.substr(0, colon), line, place.substr(in + 4));
  }

  void write_frame(Pickler::List& frames, const std::string& file, std::int64_t line, const std::string& name) {
    frames.next();
    out_.begin_dict();
    out_.item("name", name);
    out_.item("filename", file);
    out_.item("line", line);
    out_.end_dict();
  }

  void write_no_frames() { Pickler::List(out_).end(); }

  const ReportData& data_;
  std::vector<int> places_;  // by PyTorch's index
  std::vector<std::vector<Change>> changes_;
  std::map<std::tuple<int, std::string, std::string>, std::int64_t> frames_;
  Pickler out_;
};

}  // namespace

std::string report_pickle(const ReportData& data) { return Snapshot(data).pickled(); }

}  // namespace koila
