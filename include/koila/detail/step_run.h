// How koila::step runs a step: whole, in one pass, or in two. Not for programs to include; koila/step.h does.
#ifndef KOILA_DETAIL_STEP_RUN_H_
#define KOILA_DETAIL_STEP_RUN_H_

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "koila/detail/forward_watch.h"
#include "koila/detail/memory.h"
#include "koila/detail/step_options.h"
#include "koila/detail/tensors.h"
#include "koila/detail/undo.h"

namespace koila::detail {

// Why a step cannot be run in micro-batches. Never leaves koila::step.
struct StepRefusal {
  std::string reason;
  bool changed = false;  // the second pass was not the first's

  // As the error that the program gets; `ran_out` is what was said when memory ran out, "" when it has not.
  [[noreturn]] void raise(const std::string& ran_out, std::int64_t micro_batch) const {
    const std::string cannot = "cannot run this step in micro-batches";
    if (!ran_out.empty()) C10_THROW_ERROR(OutOfMemoryError, ran_out.substr(0, ran_out.find('\n')) + "\nkoila::step " + cannot + ": " + reason);
    C10_THROW_ERROR(ValueError, "koila::step: " + cannot + " of " + std::to_string(micro_batch) + ": " + reason);
  }
};

// Steps in micro-batches on one device, one at a time. A step may be run inside another's forward.
inline std::recursive_mutex& steps_on(c10::Device device) {
  static std::mutex of_map;
  static auto* const mutexes = new std::map<std::pair<int, int>, std::unique_ptr<std::recursive_mutex>>;  // never destroyed: a thread may outlive the statics
  const std::lock_guard<std::mutex> lock(of_map);
  std::unique_ptr<std::recursive_mutex>& mutex = (*mutexes)[{static_cast<int>(device.type()), device.index()}];
  if (mutex == nullptr) mutex = std::make_unique<std::recursive_mutex>();
  return *mutex;
}

// Calls of koila::step whose rows have been run together and apart: by place, function and context.
class VerifiedCalls {
 public:
  using Call = std::tuple<std::string, int, std::type_index, std::string>;
  static bool contains(const Call& call) {
    const std::lock_guard<std::mutex> lock(all().mutex);
    return all().calls.count(call) > 0;
  }
  static void add(const Call& call) {
    const std::lock_guard<std::mutex> lock(all().mutex);
    all().calls.insert(call);
  }

 private:
  struct All {
    std::mutex mutex;
    std::set<Call> calls;
  };
  static All& all() {
    static All* const all = new All;
    return *all;
  }
};

// By how much two ways of computing the same may differ, as a part of the largest value: rounding stays far below, another mask or mean far above.
inline double tolerance(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16 ? 0.05 : type == at::kFloat ? 1e-3 : 1e-8; }

// One element that says whether they differ by more. The device is not waited for.
inline at::Tensor differ(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return at::ones({}, a.options().dtype(at::kBool));
  if (a.numel() == 0) return at::zeros({}, a.options().dtype(at::kBool));
  if (!a.is_floating_point()) return a.ne(b).any();
  const at::Tensor x = a.to(a.scalar_type() == at::kDouble ? at::kDouble : at::kFloat), y = b.to(x.options());
  const at::Tensor most = at::where(x.isfinite(), x.abs(), at::zeros({}, x.options())).max();
  // Differences between infinities are NaN, and not greater than anything.
  return x.sub(y).abs().gt(most * tolerance(a.scalar_type())).logical_or(x.isfinite().ne(y.isfinite())).any();
}

inline std::string shape_of(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }

// What a loss may be called with.
template <class L, class O, class I>
inline constexpr bool can_call_loss =
    std::is_invocable_v<L&, const O&, std::int64_t, std::int64_t> || std::is_invocable_v<L&, const O&, const I&> || can_call<L, O>;

template <class I, class F, class L>
class StepRun {
 public:
  using Outputs = std::decay_t<decltype(call(std::declval<F&>(), std::declval<const I&>()))>;
  static_assert(Tensors<Outputs>::supported,
                "koila::step: forward returns a tensor, or a std::vector, array, optional, pair, tuple, map or unordered_map of tensors");
  static_assert(can_call_loss<L, Outputs, I>,
                "koila::step(inputs, forward, loss): loss takes what forward returns, as in [&](at::Tensor outputs) { ... }; or (outputs, inputs); or "
                "(outputs, int64_t begin, int64_t end)");
  using Result = StepResult<Outputs>;

  StepRun(const I& inputs, F& forward, L& loss, const StepOptions& options, VerifiedCalls::Call place)
      : inputs_(inputs), forward_(forward), loss_(loss), options_(options), place_(std::move(place)) {
    TORCH_CHECK_VALUE(options.micro_batch >= 0, "koila::step: StepOptions::micro_batch is ", options.micro_batch, "; it is a number of rows, or 0 for all");
    count_rows();
    count_items();
    if (options.sizes.device) device_ = options.sizes.device;
    if (!device_) device_ = current_device();
    generators_.emplace_back(c10::DeviceType::CPU);
    if (device_allocator(device_->type()) != nullptr) generators_.push_back(*device_);
  }

  std::int64_t rows() const { return rows_; }
  c10::Device device() const { return *device_; }

  // With so many rows at a time, or a little fewer, so that all micro-batches are about as large.
  Result run(std::int64_t micro_batch) {
    const std::int64_t passes = rows_ == 0 ? 1 : (rows_ + micro_batch - 1) / micro_batch;
    const std::int64_t size = (rows_ + passes - 1) / passes;
    std::unique_lock<std::recursive_mutex> one_at_a_time;
    if (passes > 1) one_at_a_time = std::unique_lock<std::recursive_mutex>(steps_on(*device_));
    at::autocast::clear_cache();  // of casts whose graph is older than this step
    Attempt attempt(*this);
    Result result = passes == 1 ? run_whole(attempt) : options_.separable == Separable::kNo ? run_in_two_passes(attempt, size) : run_in_one_pass(attempt, size);
    attempt.finish();
    result.micro_batch = size;
    return result;
  }
  // Whether everything is as it was before a run that threw.
  bool undone() const { return undone_; }

 private:
  using Flat = std::vector<at::Tensor>;

  // One run, undone unless it is finished.
  struct Attempt {
    explicit Attempt(StepRun& of)
        : step(of), random(of.generators_), inputs(map_tensors(of.inputs_, [this](const at::Tensor& input) { return stand_in(input); })) {
      step.undone_ = true;
    }
    ~Attempt() {
      if (finished) return;
      try {
        random.restore();
        effects.restore();
        step.undone_ = step.undone_ && effects.complete();
      } catch (const std::exception&) {
        step.undone_ = false;
      }
    }
    Attempt(const Attempt&) = delete;
    Attempt& operator=(const Attempt&) = delete;

    // An input that needs a gradient is stood in for, so that the graph behind it is gone through once, at the end.
    at::Tensor stand_in(const at::Tensor& input) {
      if (!input.defined() || !input.requires_grad()) return input;
      stand_ins.emplace_back(input, input.detach().requires_grad_());
      return stand_ins.back().second;
    }

    void finish() {
      Flat roots, seeds;
      for (auto& [input, leaf] : stand_ins) {
        if (!leaf.grad().defined()) continue;
        roots.push_back(input);
        seeds.push_back(leaf.grad());
      }
      if (!roots.empty()) {
        step.undone_ = false;  // going through a graph takes it apart
        if (!gradients.put_aside(roots, 0).hook.empty()) gradients.add_up();
        torch::autograd::backward(roots, seeds);
      }
      gradients.add_up();
      finished = true;
    }

    StepRun& step;
    const std::uint64_t first_node = at::sequence_number::peek();
    RandomState random;
    Effects effects;
    Gradients gradients;
    std::vector<std::pair<at::Tensor, at::Tensor>> stand_ins;  // before `inputs`, which fills it
    I inputs;
    bool finished = false;
  };

  // The step as it would be written without koila.
  Result run_whole(Attempt& attempt) {
    Result result;
    at::Tensor loss;
    {
      const ForwardWatch watch(attempt.effects);
      Outputs outputs = gathered(call(forward_, attempt.inputs));
      result.outputs = map_tensors(outputs, [](const at::Tensor& output) { return output.defined() ? output.detach() : output; });
      loss = loss_of(outputs, attempt.inputs, 0, rows_);
    }
    const Gradients::Graph graph = attempt.gradients.put_aside({loss}, attempt.first_node);
    undone_ = graph.hook.empty() && graph.older.empty();
    torch::autograd::backward({loss}, {});
    result.loss = loss.detach();
    return result;
  }

  Result run_in_one_pass(Attempt& attempt, std::int64_t size) {
    at::Tensor total, loss;
    bool any = false;
    for (std::int64_t begin = 0; begin < rows_; begin += size) {
      const std::int64_t end = std::min(begin + size, rows_);
      const double weight = weight_of(begin, end);
      std::optional<ForwardWatch> watch(std::in_place, attempt.effects);
      Outputs outputs = gathered(call(forward_, rows_of(attempt.inputs, begin, end)));
      loss = loss_of(outputs, rows_of(attempt.inputs, begin, end), begin, end);
      check(*watch);
      watch.reset();
      if (begin == 0) check_rows(attempt);
      if (weight == 0) continue;  // a mean of nothing is no number
      if (loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16) loss = loss.to(at::kFloat);
      loss = loss * weight;
      total = total.defined() ? total + loss.detach() : loss.detach();
      if (!loss.requires_grad()) continue;
      check(attempt.gradients.put_aside({loss}, attempt.first_node));
      torch::autograd::backward({loss}, {});
      any = true;
    }
    if (!any) torch::autograd::backward({loss}, {});  // PyTorch's own error
    Result result;
    result.loss = total;
    return result;
  }

  Result run_in_two_passes(Attempt& attempt, std::int64_t size) {
    // The outputs of all rows.
    std::vector<RandomState> before;
    Flat full;
    std::vector<bool> needs_gradient;
    Outputs shape;  // a micro-batch's, for its structure
    for (std::int64_t begin = 0; begin < rows_; begin += size) {
      const std::int64_t end = std::min(begin + size, rows_);
      before.emplace_back(generators_);
      Flat parts;
      {
        // The first with a graph, to see what there is to see of it.
        const at::AutoGradMode graph(begin == 0);
        const ForwardWatch watch(attempt.effects);
        Outputs outputs = call(forward_, rows_of(attempt.inputs, begin, end));
        check(watch);
        parts = flat(outputs);
        if (begin == 0) {
          check(Gradients().look(parts, attempt.first_node));
          for (const at::Tensor& part : parts) needs_gradient.push_back(part.defined() && part.requires_grad());
          shape = map_tensors(outputs, [](const at::Tensor&) { return at::Tensor(); });
        }
      }
      const at::NoGradGuard no_grad;
      gather(full, parts, begin, end);
      if (begin == 0) check_rows(attempt);
    }
    at::autocast::clear_cache();  // of casts without a graph, where PyTorch keeps such

    // The loss, and its gradient with respect to them.
    Result result;
    for (std::size_t i = 0; i < full.size(); ++i) full[i].defined() ? void(full[i].requires_grad_(needs_gradient[i])) : void();
    {
      const Outputs outputs = like(shape, full);
      at::Tensor loss;
      {
        const ForwardWatch watch(attempt.effects);
        loss = loss_of(outputs, attempt.inputs, 0, rows_);
      }
      const Gradients::Graph graph = attempt.gradients.put_aside({loss}, attempt.first_node);
      if (!graph.hook.empty()) check(graph);
      undone_ = graph.older.empty();
      torch::autograd::backward({loss}, {});
      result.loss = loss.detach();
      result.outputs = map_tensors(outputs, [](const at::Tensor& output) { return output.defined() ? output.detach() : output; });
    }
    const RandomState after(generators_);

    // Each micro-batch again, to hand its part of that on to the parameters.
    at::Tensor changed;
    for (std::int64_t begin = 0, pass = 0; begin < rows_; begin += size, ++pass) {
      const std::int64_t end = std::min(begin + size, rows_);
      before[pass].restore();
      const Flat parts = flat(call(forward_, rows_of(attempt.inputs, begin, end)));
      Flat roots, seeds;
      for (std::size_t i = 0; i < full.size() && i < parts.size(); ++i) {
        if (!full[i].defined() || !parts[i].defined()) continue;
        if (options_.verify) note_change(changed, parts[i], full[i], begin);
        if (!parts[i].requires_grad() || !full[i].grad().defined()) continue;
        roots.push_back(parts[i]);
        seeds.push_back(full[i].grad().narrow(options_.output_dim, begin, end - begin).to(parts[i].device()));
      }
      if (roots.empty()) continue;
      check(attempt.gradients.put_aside(roots, attempt.first_node));
      torch::autograd::backward(roots, seeds);
    }
    after.restore();
    if (changed.defined() && changed.template item<bool>()) {
      throw StepRefusal{"forward computed something else the second time, for the same rows with the same random numbers. It must not draw from generators of "
                        "its own, or depend on what it did before", /*changed=*/true};
    }
    return result;
  }

  static Flat flat(const Outputs& outputs) {
    Flat tensors;
    each_tensor(outputs, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
    return tensors;
  }
  static Outputs like(const Outputs& shape, const Flat& tensors) {
    std::size_t next = 0;
    return map_tensors(shape, [&](const at::Tensor&) { return tensors[next++]; });
  }

  I rows_of(const I& inputs, std::int64_t begin, std::int64_t end) const {
    return map_tensors(inputs, [&](const at::Tensor& input) { return input.defined() ? input.narrow(options_.dim, begin, end - begin) : input; });
  }

  at::Tensor loss_of(const Outputs& outputs, const I& inputs, std::int64_t begin, std::int64_t end) {
    at::Tensor loss;
    if constexpr (std::is_invocable_v<L&, const Outputs&, std::int64_t, std::int64_t>) {
      loss = loss_(outputs, begin, end);
    } else if constexpr (std::is_invocable_v<L&, const Outputs&, const I&>) {
      loss = loss_(outputs, inputs);
    } else {
      loss = call(loss_, outputs);
    }
    TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1, "koila::step: the loss ", loss.defined() ? "has the shape " + shape_of(loss) : "is undefined",
                      "; it has one element, such as a sum or mean");
    return loss;
  }

  Outputs gathered(Outputs outputs) const {
    if (!options_.gather_on) return outputs;
    return map_tensors(outputs, [&](const at::Tensor& output) { return output.defined() ? output.to(*options_.gather_on) : output; });
  }

  // Copies outputs of the rows [begin, end) to their place.
  void gather(Flat& full, const Flat& parts, std::int64_t begin, std::int64_t end) const {
    if (begin == 0) full.resize(parts.size());
    refuse_unless(parts.size() == full.size(), "forward returned ", full.size(), " tensors for the first rows, and ", parts.size(), " for others");
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor& part = parts[i];
      refuse_unless(begin == 0 || part.defined() == full[i].defined(), "an output is undefined for some rows and defined for others");
      if (!part.defined()) continue;
      const std::int64_t dim = options_.output_dim < 0 ? options_.output_dim + part.dim() : options_.output_dim;
      refuse_unless(dim >= 0 && dim < part.dim() && part.size(dim) == end - begin, "an output of ", end - begin, " rows has the shape ", shape_of(part),
                    ", which does not have as many in dimension ", options_.output_dim,
                    " (StepOptions::output_dim). What is not of single rows belongs into the loss");
      if (begin == 0) {
        std::vector<std::int64_t> sizes = part.sizes().vec();
        sizes[dim] = rows_;
        full[i] = at::empty(sizes, part.options().device(options_.gather_on.value_or(part.device())), part.suggest_memory_format());
      }
      at::Tensor place = full[i].narrow(dim, begin, end - begin);
      refuse_unless(place.sizes() == part.sizes() && full[i].scalar_type() == part.scalar_type(), "an output has the shape ", shape_of(part), " and type ",
                    part.scalar_type(), " for rows ", begin, " to ", end, ", and ", shape_of(place), " and ", full[i].scalar_type(), " as the first ones have it");
      place.copy_(part);
    }
  }

  // The first and last row of a micro-batch, now and as it was gathered.
  void note_change(at::Tensor& changed, const at::Tensor& now, const at::Tensor& full, std::int64_t begin) const {
    const at::NoGradGuard no_grad;
    const std::int64_t dim = options_.output_dim, rows = now.size(dim);
    for (const std::int64_t row : {std::int64_t{0}, rows - 1}) {
      const at::Tensor differs = differ(now.detach().narrow(dim, row, 1), full.detach().narrow(dim, begin + row, 1).to(now.device()));
      changed = changed.defined() ? changed.logical_or(differs) : differs;
    }
  }

  template <class... Words>
  static void refuse_unless(bool holds, const Words&... words) {
    if (!holds) throw StepRefusal{c10::str(words...)};
  }
  static void check(const ForwardWatch& watch) {
    refuse_unless(watch.over_rows().empty(), watch.over_rows(),
                  " takes statistics of all rows (batch norm in training mode). Put such layers into evaluation mode, use a norm of single rows (group norm, "
                  "layer norm), or run the program with koila preloaded, which splits the step itself");
    refuse_unless(watch.writes().empty(), watch.writes(),
                  " writes to a tensor that was there before forward was called: once for all rows, and not once for each micro-batch. Do that after the "
                  "step, or in the loss");
  }
  static void check(const Gradients::Graph& graph) {
    refuse_unless(graph.hook.empty(), "a hook on the gradient of ", graph.hook, " would see the part of a micro-batch. Remove it, or do what it does after the step");
    refuse_unless(graph.older.empty(), "forward uses a result of ", graph.older,
                  " that was computed before the step, with its graph, which can be gone through once. Compute it in forward, or hand it in as an input");
  }

  // Two rows together and apart, once for each place of a call. Says nothing of functions that draw random numbers.
  void check_rows(Attempt&) {
    if (!options_.verify || rows_ < 2 || VerifiedCalls::contains(place_)) return;
    const RandomState random(generators_);
    Flat both;
    std::vector<Flat> apart;
    try {
      const at::NoGradGuard no_grad;
      both = flat(call(forward_, rows_of(inputs_, 0, 2)));
      for (std::int64_t row = 0; row < 2 && !random.moved(); ++row) apart.push_back(flat(call(forward_, rows_of(inputs_, row, row + 1))));
    } catch (const std::exception&) {  // no memory, or so few rows are none that it takes
      random.restore();
      return;
    }
    if (random.moved()) random.restore();
    for (std::int64_t row = 0; row < static_cast<std::int64_t>(apart.size()); ++row) {
      for (std::size_t i = 0; i < both.size() && i < apart[row].size(); ++i) {
        if (!both[i].defined() || both[i].dim() == 0 || both[i].size(options_.output_dim) != 2) continue;
        refuse_unless(!differ(both[i].narrow(options_.output_dim, row, 1), apart[row][i]).template item<bool>(),
                      "the first two rows have other outputs when forward is given both than when it is given one. Rows must not depend on one another in forward: "
                      "what looks at several rows belongs into the loss. (StepOptions::verify = false if you know better)");
      }
    }
    VerifiedCalls::add(place_);
  }

  void count_rows() {
    bool any = false;
    each_tensor(inputs_, [&](const at::Tensor& input) {
      if (!input.defined()) return;
      TORCH_CHECK_INDEX(options_.dim >= -input.dim() && options_.dim < input.dim(), "koila::step: dimension ", options_.dim,
                        " (StepOptions::dim) of an input of shape ", input.sizes(), "; what has no rows is not an input: let forward capture it");
      TORCH_CHECK_VALUE(!any || input.size(options_.dim) == rows_, "koila::step: the inputs have ", rows_, " and ", input.size(options_.dim), " rows in dimension ",
                        options_.dim, "; each has as many. What has no rows is not an input: let forward capture it");
      rows_ = input.size(options_.dim);
      if (!any) device_ = input.device();
      any = true;
    });
    TORCH_CHECK_VALUE(any, "koila::step: there is no defined tensor among the inputs");
  }

  void count_items() {
    if (!options_.counts.defined()) return;
    TORCH_CHECK_VALUE(options_.separable == Separable::kMean, "koila::step: StepOptions::counts is for Separable::kMean");
    TORCH_CHECK_VALUE(options_.counts.dim() == 1 && options_.counts.size(0) == rows_, "koila::step: StepOptions::counts has the shape ", options_.counts.sizes(),
                      "; it has one number for each of the ", rows_, " rows");
    const at::NoGradGuard no_grad;
    const at::Tensor counts = options_.counts.to(at::kCPU, at::kDouble).contiguous();
    counts_.assign(counts.const_data_ptr<double>(), counts.const_data_ptr<double>() + rows_);
    for (const double count : counts_) {
      TORCH_CHECK_VALUE(count >= 0, "koila::step: StepOptions::counts has ", count, "; it is how many items the loss counts of a row");
      items_ += count;
    }
    TORCH_CHECK_VALUE(items_ > 0 || rows_ == 0, "koila::step: StepOptions::counts are all 0: there is no mean of nothing");
  }
  // Of a part's loss in the batch's.
  double weight_of(std::int64_t begin, std::int64_t end) const {
    if (options_.separable != Separable::kMean) return 1;
    if (counts_.empty()) return static_cast<double>(end - begin) / static_cast<double>(rows_);
    double items = 0;
    for (std::int64_t row = begin; row < end; ++row) items += counts_[row];
    return items / items_;
  }

  const I& inputs_;
  F& forward_;
  L& loss_;
  const StepOptions& options_;
  const VerifiedCalls::Call place_;
  std::int64_t rows_ = 0;
  std::optional<c10::Device> device_;
  std::vector<c10::Device> generators_;
  std::vector<double> counts_;
  double items_ = 0;
  bool undone_ = true;
};

}  // namespace koila::detail

#endif  // KOILA_DETAIL_STEP_RUN_H_
