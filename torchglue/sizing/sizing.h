// How many rows at a time, and how much memory that took: the steps under way, and their policies.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/flat_hash_map.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/size_policy.h"

namespace koila {

// Rows to try first, when nothing is known: the largest power of two below the batch; KOILA_MICROBATCH wins when it is smaller than the batch.
int64_t first_micro_batch(int64_t batch);

// A policy for steps of `batch` rows on that device, by the configuration.
std::shared_ptr<SizePolicy> make_policy(int64_t batch, c10::Device device);

// Rows that run alongside the program until something is known, see Note [Lazy from the first step].
inline constexpr int64_t kLazyRows = 2;

// The same for steps that are to be sized from their first rows.
std::shared_ptr<SizePolicy> make_probing_policy(int64_t batch, c10::Device device);

// Bytes that may still be allocated on the device, as far as anybody knows: of the budget, and on a CUDA device of what is free and cached.
std::optional<int64_t> available_bytes(c10::Device device);

// Note [Steps under way]
// What a step needs is measured against what was there when it began: at the first operator of a step that is known, and at the first
// out-of-memory of one that is not, once its activations are gone. It ends with the outermost backward pass; without one when a like step begins.
// Boundaries do not count into it: they can be moved, or let go. They get what micro-batches leave (see Note [Rows or boundaries], runtime/size_policy.h).
//
// Thread contract: the owner of the step, or the engine's thread that works for it.
class StepSizes {
 public:
  // A step of the policy's kind begins. Rows at a time; the batch: it is to run whole.
  int64_t begin(const std::shared_ptr<SizePolicy>& policy, c10::Device device);

  // A step of that kind has run out of memory, and goes on in micro-batches, its activations gone. Rows at a time, fewer than the batch; those in
  // use, when a part of it runs in micro-batches already.
  int64_t split(const std::shared_ptr<SizePolicy>& policy, c10::Device device);

  // Whether a seed whose first call has this key belongs to the step of that kind that is under way, which has `times` of them; notes it. Every one
  // does in a step with gradients that runs whole: it goes on to its backward pass.
  bool goes_on(const SizePolicy& policy, uint64_t key, int times, bool with_gradients);
  bool runs_whole(const SizePolicy& policy);

  // Bytes that the step over so many rows has taken so far, at its peak and now. 0: none is under way.
  struct Taken {
    int64_t peak = 0, now = 0;
  };
  Taken taken(int64_t batch);
  // Bytes that were available when it began; nothing when that is not known.
  std::optional<int64_t> available_to(int64_t batch);

  // Steps over so many rows that are under way. Null: none is, or its size is not for a policy to choose.
  std::shared_ptr<SizePolicy> policy_of(int64_t batch);

  // Some rows of a step, from here to finish(). `first`: it brings what stays from pass to pass.
  class Pass {
   public:
    Pass(StepSizes& sizes, int64_t batch, int64_t rows, bool first);
    void finish();

   private:
    StepSizes& sizes_;
    int64_t batch_, rows_;
    bool first_;
    int64_t before_ = 0;
  };

  // What is done on the device while it lives is none of the step's: its peak is not noted.
  class Aside {
   public:
    Aside(StepSizes& sizes, c10::Device device);
    ~Aside();
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

   private:
    int device_number_;
  };

  // The peak since it was marked last goes to every step on the device, and is marked anew. Whenever boundaries come and go: they do not count.
  void mark(int device_number);

  // A part of such a step began.
  void add_region(int64_t batch);
  // A part of it is over: so many operators, whose results are so many bytes at the full batch.
  void add_work(int64_t batch, int64_t operators, int64_t bytes);
  // Rows of a micro-batch of such a step below which boundaries are rather done without; 0: not known.
  int64_t enough_rows(int64_t batch);
  // Bytes that boundaries may take beside the micro-batches of the step that began last; nothing when that is not known.
  std::optional<int64_t> room_for_boundaries(int device_number);

  // A pass over so many rows of such steps ran out of memory.
  void failed(int64_t batch, int64_t rows);

  // The outermost backward pass is over, and with it every step.
  void end();

 private:
  struct UnderWay {
    std::shared_ptr<SizePolicy> policy;
    c10::Device device;
    int device_number;
    bool whole;
    int64_t base;   // bytes of tensors when it began
    std::optional<int64_t> available;
    int64_t peak;   // as far as the marked peak has been asked for
    std::chrono::steady_clock::time_point began;
    ska::flat_hash_map<uint64_t, int> seeds;
    int regions = 0;
    bool ran_out = false;
    int64_t told = 0;  // refusals when it began
    int64_t pass_peak = 0;   // since the last pass began
    int64_t in_memory = 0;   // boundaries, when the peak was marked last
    int64_t boundaries = 0;  // the most there were, wherever they lay
    int64_t operators = 0, bytes = 0;
  };

  UnderWay* find(const SizePolicy& policy);
  UnderWay* find(int64_t batch);
  static void finish(UnderWay& step);
  static bool is_refused(const UnderWay& step);
  static int64_t enough_rows(const UnderWay& step);

  std::vector<UnderWay> steps_;
};

}  // namespace koila
