#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "torchglue/plan/infer.h"
#include "torchglue/plan/on_tape.h"

namespace koila {

namespace {

// Goes back over the tape from what somebody needs.
class Needed {
 public:
  Needed(const Tape& tape, const Plan& plan) : tape_(tape), plan_(plan), ops_(tape.ops().size(), 0), values_(tape.values().size(), 0) {
    for (TapeValueId v = 0; v < tape.values().size(); ++v) {
      if (is_as_it_is(plan, v)) stays_.insert(tape.values()[v].group);
      if (is_held(v) && is_concerned(v)) need(v);
    }
    for (const Bridge& bridge : tape.bridges()) {
      for (const Bridge::End& end : bridge.ends) {
        if (!is_as_it_is(plan, end.value) && !bridge.alive.expired()) need(end.value);
      }
    }
    if (tape.pending() == nullptr) return;
    for (const TapeRef& ref : tape.pending()->refs) {
      if (!plan.placements[ref.value].is_replicate()) need(ref.value);
      read_now_.insert(ref.value);
    }
  }

  std::vector<char> ops() {
    do {
      go_back();
    } while (need_views_without_memory());
    return std::move(ops_);
  }

 private:
  bool is_held(TapeValueId v) const { return !tape_.values()[v].is_capture() && !is_seed(plan_, v) && plan_.descends[v] && tape_.is_current(v) && tape_.values()[v].held_elsewhere(); }

  // What descends from split values without being split has its value already; only its graph must be made anew.
  bool is_concerned(TapeValueId v) const { return !plan_.placements[v].is_replicate() || tape_.values()[v].differentiable(); }

  void need(TapeValueId v) {
    values_[v] = 1;
    groups_.insert(tape_.values()[v].group);
  }

  void go_back() {
    auto groups = groups_;  // those that are still to be written to, as seen from an operator
    const auto& ops = tape_.ops();
    for (size_t i = ops.size(); i-- > 0;) {
      for (TapeValueId out : ops[i].outputs) {
        if (out != kNoTapeValue && is_seed(plan_, out)) groups.erase(tape_.values()[out].group);  // it is as it is, whatever was written to it before
        if (out == kNoTapeValue || !plan_.descends[out] || is_seed(plan_, out)) continue;
        if (values_[out] || (ops[i].in_place && groups.count(tape_.values()[out].group))) ops_[i] = 1;
      }
      if (!ops_[i]) continue;
      for (const TapeRef& ref : ops[i].refs) {
        values_[ref.value] = 1;
        groups.insert(tape_.values()[ref.value].group);
      }
    }
  }

  // A view has no value any more when that which it looks at gives up its memory to the region, though it is not split itself. True: one was not needed so far.
  bool need_views_without_memory() {
    ska::flat_hash_set<uint32_t> emptied;
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (!ops_[i]) continue;
      for (TapeValueId out : tape_.ops()[i].outputs) {
        if (out != kNoTapeValue && !plan_.placements[out].is_replicate() && !is_seed(plan_, out)) emptied.insert(tape_.values()[out].group);
      }
    }
    bool more = false;
    for (TapeValueId v = 0; v < values_.size(); ++v) {
      const uint32_t group = tape_.values()[v].group;
      if (values_[v] || !emptied.count(group) || !(is_held(v) || read_now_.count(v)) || stays(group)) continue;
      need(v);
      more = true;
    }
    return more;
  }

  // Its memory is left as it is: see Staying.
  bool stays(uint32_t group) const { return stays_.count(group) > 0 || tape_.pinned(group) || tape_.on_capture(group); }

  const Tape& tape_;
  const Plan& plan_;
  std::vector<char> ops_, values_;
  ska::flat_hash_set<uint32_t> groups_;       // of what is needed at the end
  ska::flat_hash_set<uint32_t> stays_;        // groups of what is as it is
  ska::flat_hash_set<TapeValueId> read_now_;  // by the call in flight
};

}  // namespace

std::vector<char> needed_ops(const Tape& tape, const Plan& plan) { return Needed(tape, plan).ops(); }

}  // namespace koila
