// How many rows of the batch a kind of step takes at a time: one policy for each kind.
#ifndef KOILA_RUNTIME_SIZE_POLICY_H_
#define KOILA_RUNTIME_SIZE_POLICY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace koila {

// Note [Memory model]
// A step in micro-batches of m rows needs, beyond what is there when it begins, about
//
//   need(m) = standing + own(m)          own(m) = a + b m
//
// bytes: what stays from one pass to the next whatever their size (gradients that are summed up, values between stages), and what one pass
// has at its peak. Passes of two sizes tell a and b; as long as there is one, all of own(m) counts as growing with m,
// which is too much for more rows. A step may need more outside of its passes (operators that run whole while the first micro-batches of several stages
// stand by); what that is more is added, and counts as growing with m until steps of two sizes tell better.
// The largest m that fits is then made smaller for as long as the passes stay as many: 100 rows at 60 a time run as 50 and 50. Need is a line only
// nearly (kernels change their algorithm with the size, allocators round), so a margin is left, and what fails is remembered.
//
// Note [Sizes that failed]
// A size that ran out with so much available is not tried again with that much or less: the limits of the model are where it erred. Conditions
// that nobody measures change as well, so a failure is forgotten in time: after 256 steps, and after four times as many each time it comes again.
//
// Note [The fastest size]
// On the CPU the largest micro-batch is often not the fastest: a smaller one stays in the caches. So half of the best size so far is tried for a few
// steps, and taken when it is faster by more than a twentieth; once for each size that memory allows. That makes the sizes, and with them the rounding, depend on the
// clock, so it is done only where it is asked for. Without it no figure in seconds has a say in any size: those that a cache brings are only handed on.

// Note [Rows or boundaries]
// What the stages of a step leave to one another counts into no need: it can lie elsewhere, or be made again, at a price. So the rows of a micro-batch come first, as far as more of them
// make a difference: enough() of them are taken where they fit at all, and boundaries get what these leave. More rows than that are taken where all boundaries fit beside them. Both bounds
// grow with what is available, and so does the size.

class SizePolicy {
 public:
  enum class Way : std::uint8_t {
    kModel,
    kPow2,   // powers of two: twice as many rows when need(2 m) fits, half when they do not
    kFixed,  // as many as were asked for; only ever fewer
  };
  struct Options {
    Way way = Way::kModel;
    bool timed = false;      // see Note [The fastest size]
    double margin = 0.03;    // of what is available
  };

  // What a step of some rows at a time needed.
  struct Observation {
    std::int64_t rows = 0;
    std::int64_t bytes = 0;     // 0: not known
    double seconds = 0;         // the fastest of late; 0: too few steps to tell
  };
  struct Failure {
    std::int64_t rows = 0;
    std::int64_t available = 0;
    std::int64_t until = 0;  // step
    std::int64_t lasts = 0;  // steps
  };

  // For steps of `batch` rows (from 1). `first`: rows at a time until something is known.
  SizePolicy(std::int64_t batch, std::int64_t first, Options options);

  std::int64_t batch() const { return batch_; }
  std::int64_t rows() const { return rows_; }
  // Whether need(m) is known for some m.
  bool knows() const { return !needs_.empty(); }
  // Whether it is for two sizes, so that a and b can be told apart.
  bool knows_slope() const { return needs_.size() > 1; }

  // A step begins with so many bytes available (none: nobody knows, or there is no limit; there is none any more where the last failure knew of one). Rows at a time, 1 to batch();
  // batch(): it fits as a whole.
  std::int64_t begin(std::optional<std::int64_t> available);

  // The step under way was handed back to the program with its error, or it came through in micro-batches. Who was refused may have made room, and what was refused in
  // micro-batches may fit whole: the next one begins whole; where that is refused too, the one after it in micro-batches again, and so on in turn.
  void refused() { ++refusals_; }
  void came_through() { refusals_ = 0; }
  bool begins_whole() const { return refusals_ % 2 != 0; }

  // Somebody who knows better has chosen: rows at a time from here on, as if begin() had said so.
  void use(std::int64_t rows);

  // Until a need is known each step begins with so many rows, from which somebody tells how many more they may be, and says so by use(). Not any
  // more once a pass has failed.
  void probe(std::int64_t rows);
  bool probing() const { return probe_ > 0 && !knows(); }

  // A pass over `rows` rows had its peak at `bytes` beyond what was there when the step began, `standing` of which had been there when the
  // pass began. Not for a step's first pass, in which what stays comes into being.
  void passed(std::int64_t rows, std::int64_t bytes, std::int64_t standing);

  // A pass over `rows` rows ran out of memory. Rows at a time from here on: fewer, but 1.
  std::int64_t failed(std::int64_t rows);

  // The step that is about to end had boundaries of so many bytes at most; below so many rows at a time it is slow for the sake of its calls. 0 bytes: it has no stages.
  void stages(std::int64_t bytes, std::int64_t enough);
  // 0: not known.
  std::int64_t enough() const { return enough_; }

  // The step is over. It had its peak at `bytes` beyond what was there when it began, or since a pass failed last. `in_parts`: it ran in several
  // parts with other things between; if passes failed, its peak may have been before, and is not known before the next step.
  void end(std::int64_t bytes, double seconds, bool in_parts = false);

  // No size for its speed from here on.
  void stop_timing() { options_.timed = false; }
  // Whether choices() are sizes that the clock has settled.
  bool timed() const { return options_.timed; }

  // need(m), if it is known.
  std::optional<std::int64_t> need(std::int64_t rows) const;
  // The same without what a step needs outside of its passes.
  std::optional<std::int64_t> need_of_pass(std::int64_t rows) const;

  // For a cache.
  std::vector<Observation> observations() const;
  const std::vector<Failure>& failures() const { return failures_; }
  // The size that steps settled on, by what was available, in coarse steps (runtime/size_cache.h).
  const std::map<std::int64_t, std::int64_t>& choices() const { return choices_; }
  // What another process has learned. Where it had settled on a size, the first step takes it.
  void restore(const std::vector<Observation>& observations, const std::vector<Failure>& failures, std::map<std::int64_t, std::int64_t> choices);

 private:
  using ByRows = std::map<std::int64_t, std::int64_t>;
  struct Times {
    double last[5] = {};
    int count = 0;
    void add(double seconds);
    double best() const;
  };

  static std::int64_t line(const ByRows& points, std::int64_t rows, std::int64_t at_none);
  static void put(ByRows& points, std::int64_t rows, std::int64_t bytes);
  std::int64_t evened(std::int64_t rows) const;
  std::int64_t passes(std::int64_t rows) const { return (batch_ + rows - 1) / rows; }
  bool has_failed(std::int64_t rows, std::int64_t available) const;
  bool fits(std::int64_t rows, std::int64_t available, double margin, std::int64_t beside = 0) const;
  std::int64_t largest(std::int64_t available, double margin, std::int64_t beside = 0) const;
  std::int64_t chosen(std::int64_t available, double margin) const;
  std::int64_t by_memory(std::int64_t available);
  std::int64_t by_time(std::int64_t most);
  void settle();

  std::int64_t batch_;
  std::int64_t rows_;   // in use
  std::int64_t most_;   // that memory allows, as last decided
  std::int64_t probe_ = 0;  // rows; 0: none
  Options options_;
  std::optional<std::int64_t> available_;  // when the step began
  std::int64_t step_ = 0;
  bool failed_ = false;   // in this step
  int refusals_ = 0;      // in a row
  bool limited_ = false;  // the last failure was of what was known to be available
  bool unsure_ = false;   // how much the last step needed
  std::int64_t standing_ = 0;
  std::int64_t boundaries_ = 0;  // bytes
  std::int64_t enough_ = 0;      // rows
  ByRows needs_;   // bytes of a pass, with what stands
  ByRows excess_;  // bytes of a step that are more
  std::map<std::int64_t, Times> times_;  // by rows
  ByRows fastest_;                       // rows, by the most that memory allows: where the search is over
  std::vector<Failure> failures_;
  std::map<std::int64_t, std::int64_t> choices_;
  bool restored_ = false;  // and no step since
};

}  // namespace koila

#endif  // KOILA_RUNTIME_SIZE_POLICY_H_
