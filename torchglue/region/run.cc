// Micro-batches run, and deferred values get their full value.

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorUtils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <string>

#include "torchglue/collectives.h"
#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/proof/invariants.h"
#include "torchglue/proof/proof.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/layout.h"
#include "torchglue/region/node.h"
#include "torchglue/region/random_scope.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/real_values.h"
#include "torchglue/region/region.h"
#include "torchglue/rescue/events.h"
#include "torchglue/rescue/ladder.h"
#include "torchglue/rescue/oom.h"
#include "torchglue/rescue/python_error.h"
#include "torchglue/session.h"
#include "torchglue/tape/tape.h"
#include "torchglue/tensor_memory.h"

namespace koila {

namespace {

// `t` with its split dimension seen as [outer, rows, inner]. Always a view.
at::Tensor unmerged(const at::Tensor& t, const Placement& p, int64_t rows) { return t.unflatten(p.dim, {p.outer, rows, p.inner}); }

// A rule of the user's held for the rows before, or for the full batch's sizes, and does not for these.
void check_promise(const Instruction& in, const Value& value, const at::Tensor& local, Rows rows) {
  std::vector<int64_t> sizes(value.sizes.begin(), value.sizes.end());
  if (value.placement.is_shard()) sizes[value.placement.dim] = value.placement.extent(rows.begin, rows.end);
  TORCH_CHECK(local.sizes() == at::IntArrayRef(sizes), "koila: ", in.op.schema().name(), " gave ", local.sizes(), " for ", rows.count(),
              " rows, where its placement rule (KOILA_RULES, KOILA_RULE) promises ", at::IntArrayRef(sizes),
              "; correct the rule, or leave it out.");
}

class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  double& total_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

at::Tensor slice_rows(const at::Tensor& full, const Placement& p, int64_t batch, Rows rows) {
  if (p.ragged) return full.narrow(p.dim, p.ragged->first[rows.begin], p.extent(rows.begin, rows.end));
  if (p.outer == 1) return full.narrow(p.dim, rows.begin * p.inner, rows.count() * p.inner);
  return unmerged(full, p, batch).narrow(p.dim + 1, rows.begin, rows.count()).flatten(p.dim, p.dim + 2);
}

void write_rows(const at::Tensor& full, const Placement& p, int64_t batch, Rows rows, const at::Tensor& part) {
  if (p.ragged) {
    slice_rows(full, p, batch, rows).copy_(part);
  } else if (p.outer == 1) {
    full.narrow(p.dim, rows.begin * p.inner, rows.count() * p.inner).copy_(part);
  } else {
    unmerged(full, p, batch).narrow(p.dim + 1, rows.begin, rows.count()).copy_(unmerged(part, p, rows.count()));
  }
}

// Note [Captures that change]
// A tensor that is written to between forward and backward is an error to plain PyTorch if its backward pass needs the value, and none if not (a first
// layer's weight). Where no version counter tells of the write (running statistics, an observer's scale, `.data`), plain's backward pass takes what is there
// by then. Micro-batches read the tensor again in any case: from a copy that was made before the write. Each backward pass of a micro-batch then runs as if
// the copy had been written to as well: its version counts up, and autograd says the same of it as in the plain run; or, where no counter has told, it
// holds what the tensor holds now.

// Note [Stand-ins]
// Inside a micro-batch a capture that requires grad is replaced by a detached tensor on the same memory whose gradient edge is a
// GradientSink. So the program's hooks on the capture do not fire per micro-batch, its .grad is not touched, and each micro-batch's
// gradient is added up and freed at once, as a hand-written accumulation loop would do.
at::Tensor Region::use_local(Frame& frame, uint32_t id) {
  if (id < frame.uses.size() && frame.uses[id].defined()) return frame.uses[id];
  if (frame.uses.size() < uses_.size()) frame.uses.resize(uses_.size());
  const Capture& capture = captures_[uses_[id].capture];
  at::Tensor local = slice_of_use(id, frame.rows);
  if (uses_[id].placement.is_shard()) local = bring_in(id, frame.rows, local);
  if (frame.watch != nullptr) local = frame.watch->read(id, local);
  if (capture.requires_grad && frame.grad) {
    NodePtr sink = make_node<GradientSink>(this, id, frame.rows);
    sink->add_input_metadata(local);
    torch::autograd::impl::set_gradient_edge(local, torch::autograd::Edge(std::move(sink), 0));
  }
  frame.uses[id] = local;
  return local;
}

// Detached where it requires grad.
at::Tensor Region::slice_of_use(uint32_t id, Rows rows) const {
  const NoInferenceMode no_inference;
  const Use& use = uses_[id];
  const Capture& capture = captures_[use.capture];
  at::Tensor local = capture.as_read();
  if (capture.requires_grad || local.requires_grad()) local = handle_of(local);  // or was frozen when it joined
  if (use.placement.is_shard()) {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    NoInterceptGuard no_intercept;
    const at::Tensor whole = std::exchange(local, slice_rows(local, use.placement, batch_, rows));
    if (!whole.is_inference()) local.unsafeGetTensorImpl()->set_version_counter(whole.unsafeGetTensorImpl()->version_counter());  // a write to it is one to its rows
  }
  return local;
}

// Note [Boundaries by the row]
// A CUDA device reads pinned memory over the bus, so a micro-batch's part of it is copied in before it is used, while the micro-batch before
// it computes; what is stored goes out the same way. On the CPU the kernel is asked to read the file.
void Region::ask_ahead(Rows rows, const Schedule& plan) {
  std::erase_if(ahead_, [&](const Ahead& a) { return !a.part.defined() || a.rows.end != rows.begin; });  // but for those of the rows before
  if (rows.begin >= rows.end) return;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const NoInterceptGuard no_intercept;
  std::vector<char> asked(uses_.size(), 0);
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (!plan.needed[i]) continue;
    for (const Argument& argument : instructions_[i].arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind != Operand::Kind::kUse || std::exchange(asked[o.id], 1) || !uses_[o.id].placement.is_shard()) continue;
        if (!boundaries().outside(storage_of(captures_[uses_[o.id].capture].tensor))) continue;
        const at::Tensor slice = slice_of_use(o.id, rows);
        if (device_.is_cpu()) {
          boundaries().read_ahead(slice);
          continue;
        }
        try {
          side_.run([&] { ahead_.push_back({o.id, rows, slice.clone()}); });
        } catch (const std::exception& error) {
          if (!is_out_of_memory(error)) throw;
          return;  // in good time, then
        }
      }
    }
  }
}

at::Tensor Region::bring_in(uint32_t use, Rows rows, const at::Tensor& slice) {
  if (device_.is_cpu() || !boundaries().outside(storage_of(slice))) return slice;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const NoInterceptGuard no_intercept;
  for (Ahead& ahead : ahead_) {
    if (ahead.use != use || ahead.rows.begin != rows.begin || ahead.rows.end != rows.end || !ahead.part.defined()) continue;
    side_.join();
    SideStream::used_here(ahead.part.storage().data_ptr(), device_);
    return std::exchange(ahead.part, at::Tensor());
  }
  side_.join();
  return slice.clone();
}

void Region::send_out(const at::Tensor& full, const Placement& placement, Rows rows, const at::Tensor& part) {
  if (!boundaries().outside(storage_of(full))) return write_rows(full, placement, batch_, rows, part);
  side_.run([&] {
    SideStream::used_here(part.storage().data_ptr(), device_);
    write_rows(full, placement, batch_, rows, part);
  });
}

// Note [Sums of half precision]
// Plain PyTorch adds up the rows of a bfloat16 sum in single precision, and rounds once. So do micro-batches: an operator that makes a Partial of such a type
// runs on its operands in single precision (Instruction::in_float), and what it gives stays so from operator to operator, up to the sum over all
// micro-batches, which is rounded to the type that the program knows. Its gradient comes back the same way, and is rounded at the operands. Views of such a
// sum, and what writes to it, run on it as it is (keeps_float); for any other operator it is rounded first.

// Note [Folded copies]
// A matmul() folds the leading dimensions of what it reads into one. At the full batch that may take a copy, and the copy is what its node saves; of one row it is a view, and
// a write in place to the value would then be one to what was saved. Where the value is written to in place, a micro-batch's operator is given a copy as well.
bool Region::saves_folded_copy(const Instruction& in, ValueId id) const {
  const Value& value = values_[id];
  if (written_groups_.count(value.group) == 0 || in.in_place || value.sizes.size() < 3 || !op_traits(in.op).composite || op_traits(in.op).may_view) return false;
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < value.sizes.size(); ++d) rows *= value.sizes[d];
  return !at::detail::computeStride(at::IntArrayRef(value.sizes), at::IntArrayRef(value.strides), std::vector<int64_t>{rows, value.sizes.back()});
}

void Region::note_write(const Instruction& in) {
  if (!in.in_place || in.arguments[0].operands.empty() || in.arguments[0].operands[0].kind != Operand::Kind::kValue) return;
  const uint32_t group = values_[in.arguments[0].operands[0].id].group;
  if (!written_groups_.insert(group).second) return;
  const auto reads_folded = [&](const Instruction& earlier) {
    for (const Argument& argument : earlier.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kValue && values_[o.id].group == group && saves_folded_copy(earlier, o.id)) return true;
      }
    }
    return false;
  };
  if (std::any_of(instructions_.begin(), instructions_.end(), reads_folded)) drop_first_frame();
}

at::Tensor Region::operand(Frame& frame, const Operand& operand, const Instruction& in) {
  at::Tensor local;
  switch (operand.kind) {
    case Operand::Kind::kUndefined:
      return local;
    case Operand::Kind::kValue:
      local = frame.values[operand.id];
      TORCH_INTERNAL_ASSERT(local.defined(), "koila: a micro-batch reads a value that it has not computed");
      break;
    case Operand::Kind::kUse:
      local = use_local(frame, operand.id);
      break;
  }
  if (operand.kind == Operand::Kind::kValue && saves_folded_copy(in, operand.id)) local = local.clone();
  if (storage_of(local) != nullptr && memory_of(local) == nullptr && local.numel() > 0 && !local._is_zerotensor()) broken(invariant::kNoKernelSeesDeferred, "an operand of " + in.op.schema().name() + " has no memory");
  if (in.in_float) {
    local = local.to(at::toOpMathType(local.scalar_type()));
  } else if (operand.kind == Operand::Kind::kValue && !in.keeps_float && values_[operand.id].placement.is_partial()) {
    local = local.to(values_[operand.id].dtype);
  }
  if (operand.weighted) {
    const bool number = local.unsafeGetTensorImpl()->is_wrapped_number();
    local = local * (static_cast<double>(frame.rows.count()) / static_cast<double>(batch_));
    if (number) local.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return local;
}

torch::jit::Stack Region::call_instruction(Frame& frame, const Instruction& in) {
  const OpStateGuard state(in.state, frame.grad);
  torch::jit::Stack stack;
  stack.reserve(in.arguments.size());
  const int64_t rows = frame.rows.count();
  for (const Argument& argument : in.arguments) {
    if (argument.is_list) {
      if (argument.is_optional_list) {
        c10::List<std::optional<at::Tensor>> list;
        for (const Operand& o : argument.operands) {
          list.push_back(o.kind == Operand::Kind::kUndefined ? std::nullopt : std::make_optional(operand(frame, o, in)));
        }
        stack.emplace_back(std::move(list));
      } else {
        c10::List<at::Tensor> list;
        for (const Operand& o : argument.operands) list.push_back(operand(frame, o, in));
        stack.emplace_back(std::move(list));
      }
    } else if (argument.is_tensor) {
      const Operand& o = argument.operands[0];
      stack.push_back(o.kind == Operand::Kind::kUndefined ? c10::IValue() : c10::IValue(operand(frame, o, in)));
    } else {
      c10::IValue value = argument.constant;
      if (in.in_float && value.isInt() && in.op.schema().arguments()[stack.size()].name() == "dtype") {
        value = static_cast<int64_t>(at::toOpMathType(static_cast<at::ScalarType>(value.toInt())));
      }
      if (argument.weighted) {
        const double weight = static_cast<double>(rows) / static_cast<double>(batch_);
        value = (value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble()) * weight;
      }
      if (!argument.literals.empty()) {
        if (argument.literals[0].first < 0) {
          value = rows * argument.literals[0].second;
        } else {
          std::vector<int64_t> sizes;
          for (const c10::IValue& element : value.toListRef()) sizes.push_back(element.isInt() ? element.toInt() : *element.toSymInt().maybe_as_int());
          for (const auto& [element, factor] : argument.literals) sizes[element] = rows * factor;
          value = c10::IValue(sizes);
        }
      }
      stack.push_back(std::move(value));
    }
  }
  const OpInProgress in_progress(in.op, in.place);
  const WhenScope when(KOILA_IN_FORWARD);
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast;
  if (in.in_float) no_autocast.emplace(c10::autocast_dispatch_keyset);
  if (in.random) {
    // The draws of an operator depend on the rows alone, so that recomputation repeats them.
    const RandomScope random(device_, mix_seed(in.seed, static_cast<uint64_t>(frame.rows.begin), static_cast<uint64_t>(frame.rows.end)));
    call_kernel([&] { in.op.callBoxed(stack); });
  } else {
    call_kernel([&] { in.op.callBoxed(stack); });
  }
  if (in.scale_by_rows || in.denominator >= 0) {
    const double weight = static_cast<double>(rows) / static_cast<double>(batch_);
    for (c10::IValue& result : stack) {
      if (!result.isTensor() || !result.toTensor().defined() || !can_be_scaled(result.toTensor().scalar_type())) continue;
      at::Tensor scaled = result.toTensor();
      if (in.scale_by_rows) scaled = scaled * weight;
      if (in.denominator >= 0) scaled = (scaled / use_local(frame, static_cast<uint32_t>(in.denominator))).to(scaled.scalar_type());
      result = std::move(scaled);
    }
  }
  return stack;
}

at::Tensor Region::laid_out(const Frame& frame, const Instruction& in, at::IntArrayRef strides, const at::Tensor& local) {
  if (in.in_place || local.layout() != at::kStrided || lies_in_order(strides, local)) return local;
  if (!order_depends_on_sizes(in.op)) return local;  // a copy would cost memory for nothing
  const OpStateGuard state(in.state, frame.grad);  // a gradient goes through a copy, too
  const NoInterceptGuard no_intercept;
  return in_order_of(strides, local);
}

void Region::set_local(Frame& frame, ValueId id, const at::Tensor& local) {
  if (frame.values.size() <= id) frame.values.resize(id + 1);
  frame.values[id] = local;
}

Region::Schedule Region::schedule(const std::vector<ValueId>& keep) const {
  Schedule s;
  s.needed.assign(instructions_.size(), 0);
  s.last_value.assign(values_.size(), 0);
  std::vector<char> value(values_.size(), 0);
  std::vector<char> group(groups_.size(), 0);  // a write through one alias is seen through the others
  const auto need = [&](ValueId v) {
    value[v] = 1;
    group[values_[v].group] = 1;
  };
  for (ValueId v : keep) {
    need(v);
    s.last_value[v] = SIZE_MAX;
  }
  for (size_t i = instructions_.size(); i-- > 0;) {
    const Instruction& in = instructions_[i];
    for (ValueId out : in.outputs) {
      if (out != kNoValue && (value[out] || (in.in_place && group[values_[out].group]))) s.needed[i] = 1;
    }
    if (!s.needed[i]) continue;
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind != Operand::Kind::kValue) continue;
        need(o.id);
        s.last_value[o.id] = std::max(s.last_value[o.id], i);
      }
    }
  }
  return s;
}

std::vector<size_t> Region::differentiable_path(const std::vector<ValueId>& from) const {
  std::vector<char> value(values_.size(), 0);
  std::vector<char> group(groups_.size(), 0);  // a write through one view shows in the others
  const auto reach = [&](ValueId id) {
    if (values_[id].requires_grad) value[id] = group[values_[id].group] = 1;
  };
  for (ValueId v : from) reach(v);
  std::vector<size_t> path;
  for (size_t i = instructions_.size(); i-- > 0;) {
    const Instruction& in = instructions_[i];
    const auto on_path = [&](ValueId out) { return out != kNoValue && values_[out].requires_grad && (value[out] || (in.in_place && group[values_[out].group])); };
    if (std::none_of(in.outputs.begin(), in.outputs.end(), on_path)) continue;
    path.push_back(i);
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kValue) reach(o.id);
      }
    }
  }
  return path;
}

std::vector<size_t> Region::on_the_way(const std::vector<size_t>& path) const {
  std::vector<char> value(values_.size(), 0);
  std::vector<char> group(groups_.size(), 0);
  std::vector<size_t> found;
  const auto leads = [&](const Operand& o) {
    if (o.kind == Operand::Kind::kUse) return wanted_[uses_[o.id].capture] != 0;
    return o.kind == Operand::Kind::kValue && (value[o.id] || group[values_[o.id].group]);
  };
  for (auto i = path.rbegin(); i != path.rend(); ++i) {
    const Instruction& in = instructions_[*i];
    const bool is_on_it = std::any_of(in.arguments.begin(), in.arguments.end(), [&](const Argument& a) { return std::any_of(a.operands.begin(), a.operands.end(), leads); });
    if (!is_on_it) continue;
    found.push_back(*i);
    for (ValueId out : in.outputs) {
      if (out == kNoValue) continue;
      value[out] = 1;
      if (in.in_place) group[values_[out].group] = 1;
    }
  }
  return found;
}

std::vector<size_t> Region::edges_behind(ValueId from) const {
  std::vector<char> value(values_.size(), 0);
  std::vector<char> group(groups_.size(), 0);  // a write through one view shows in the others
  std::vector<size_t> edges;
  const auto reach = [&](ValueId id) {
    if (values_[id].requires_grad) value[id] = group[values_[id].group] = 1;
  };
  reach(from);
  for (size_t i = instructions_.size(); i-- > 0;) {
    const Instruction& in = instructions_[i];
    const auto on_path = [&](ValueId out) { return out != kNoValue && (value[out] || (in.in_place && group[values_[out].group])); };
    if (std::none_of(in.outputs.begin(), in.outputs.end(), on_path)) continue;
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kValue) reach(o.id);
        if (o.kind == Operand::Kind::kUse && captures_[uses_[o.id].capture].edge >= 0) edges.push_back(static_cast<size_t>(captures_[uses_[o.id].capture].edge));
      }
    }
  }
  return edges;
}

void Region::run(Frame& frame, size_t until, const Schedule* schedule) {
  const Offload::MayFail may_fail;
  if (frame.next == 0) ++statistics.runs;
  for (; frame.next < until; ++frame.next) {
    const size_t i = frame.next;
    const Instruction& in = instructions_[i];
    if (schedule != nullptr && !schedule->needed[i]) continue;
    torch::jit::Stack results = call_instruction(frame, in);
    size_t flat = 0;
    const auto store = [&](const at::Tensor& local) {
      const ValueId id = in.outputs[flat++];
      if (in.by_user && id != kNoValue) check_promise(in, values_[id], local, frame.rows);
      if (id != kNoValue) check_part(i, values_[id], local, frame.rows);
      if (id == kNoValue || (schedule != nullptr && schedule->last_value[id] <= i)) return;
      const bool own = groups_[values_[id].group].base == id;  // and no view of another value
      set_local(frame, id, own ? laid_out(frame, in, values_[id].strides, local) : local);
    };
    for (const c10::IValue& result : results) {
      if (result.isTensor()) {
        store(result.toTensor());
      } else {
        for (const c10::IValue& element : result.toListRef()) store(element.toTensor());
      }
    }
    results.clear();
    if (frame.watch != nullptr) frame.watch->after(i, frame);
    if (expected_ != nullptr) meet(i, frame);
    if (schedule == nullptr) continue;
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kValue && schedule->last_value[o.id] <= i) frame.values[o.id].reset();
      }
    }
  }
}

void Region::check_part(size_t instruction, const Value& value, const at::Tensor& local, Rows rows) {
  bool fits = local.dim() == static_cast<int64_t>(value.sizes.size());
  for (int64_t d = 0; fits && d < local.dim(); ++d) {
    const bool split = value.placement.is_shard() && value.placement.dim == d;
    fits = local.size(d) == (split ? value.placement.extent(rows.begin, rows.end) : value.sizes[static_cast<size_t>(d)]);
  }
  if (!fits) broken(invariant::kPartsFit, "gives a part of another shape", instruction);
}

bool Region::drop_first_frame() {
  const bool had = first_.next > 0;
  first_ = Frame{{0, lead()}, /*grad=*/true, {}, {}, 0};
  return had;
}

bool Region::shrink() {
  if (micro_batch_ <= 1 || observed_random_) return false;
  halve(micro_batch_);
  return true;
}

void Region::halve(int64_t failed) {
  session().sizes.failed(batch_, std::min(micro_batch_, failed));
  micro_batch_ = std::max<int64_t>(1, std::min(micro_batch_, failed) / 2);
  if (lead_ >= micro_batch_) lead_ = 0;
  ++statistics.halvings;
  drop_first_frame();
  report_rescue(describe_out_of_memory("a micro-batch"), micro_batch_, batch_);
}

// What the first rows have left, activations, and their gradients on the way back, grow with the rows: three quarters as much as they, or two of the
// largest. What they had at their peak beyond that is a kernel's workspace, and does not; and there is what is as large whatever the rows: the gradients of parameters,
// one of them twice while it is summed, and what the program reads. Without gradients nothing is left, and the peak is what grows. All this is a guess: the step is measured, and the next one will know.
void Region::choose_size() {
  Session& s = session();
  const auto policy = s.sizes.policy_of(batch_);
  if (policy == nullptr || !policy->probing() || lead_ > 0 || micro_batch_ != kLazyRows || observed_random_) return;
  const auto available = s.sizes.available_to(batch_);
  const auto taken = s.sizes.taken(batch_);
  double growing = static_cast<double>(taken.peak);
  if (differentiable()) {
    double largest = 0;  // over the full batch
    for (const Value& value : values_) {
      const double bytes = static_cast<double>(c10::multiply_integers(value.sizes)) * static_cast<double>(c10::elementSize(value.dtype));
      if (value.placement.is_shard()) largest = std::max(largest, bytes);
    }
    const double now = static_cast<double>(taken.now);
    growing = std::max(1.75 * now, now + 2 * largest * static_cast<double>(micro_batch_) / static_cast<double>(batch_));
  }
  if (!available || growing <= 0) return;
  int64_t standing = 0;
  if (differentiable()) {
    int64_t largest = 0;
    for (const Capture& capture : captures_) {
      if (!capture.requires_grad || !capture.tensor.defined()) continue;
      standing += static_cast<int64_t>(capture.tensor.nbytes());
      largest = std::max(largest, static_cast<int64_t>(capture.tensor.nbytes()));
    }
    standing += taken.peak - taken.now + largest;
  }
  for (ValueId id : held_deferred()) {
    if (groups_[values_[id].group].base == id) standing += static_cast<int64_t>(groups_[values_[id].group].storage.nbytes());
  }
  const double rows = (static_cast<double>(*available) * 0.95 - static_cast<double>(standing)) / (growing / static_cast<double>(micro_batch_));
  if (rows <= static_cast<double>(micro_batch_)) return;
  lead_ = micro_batch_;
  const int64_t rest = batch_ - lead_;
  const int64_t passes = static_cast<int64_t>(std::ceil(static_cast<double>(rest) / rows));
  micro_batch_ = std::max(micro_batch_, (rest + passes - 1) / passes);
  policy->use(micro_batch_);
  s.log(KOILA_LOG_DEBUG, "the first " + std::to_string(lead_) + " rows took " + std::to_string(differentiable() ? taken.now : taken.peak) + " bytes: micro-batches of " + std::to_string(micro_batch_));
}

std::vector<ValueId> Region::in_use() const {
  std::vector<ValueId> ids;
  for (ValueId id = 0; id < values_.size(); ++id) {
    if (values_[id].impl != nullptr || values_[id].consumed) ids.push_back(id);
  }
  return ids;
}

bool Region::try_again(int& tries) const {
  const OutOfMemory oom = describe_out_of_memory("a micro-batch");
  if (!worth_another_try(oom, tries, /*micro_batch=*/true)) return false;
  report_rescue(oom, KOILA_RUNG_RETRY);
  return true;
}

bool Region::serve_rows() const { return session().offload.begin_in_rows(device_number(device_)); }

void Region::catch_up() {
  bury_dead();
  const RegionWork work;
  for (int tries = 0;;) {
    if (first_.next == instructions_.size()) return;
    std::exception_ptr ran_out;
    try {
      const Schedule plan = schedule(in_use());
      run(first_, instructions_.size(), &plan);
      return;
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      ran_out = std::current_exception();
    }
    if (try_again(tries) || make_room()) {
      drop_first_frame();
      continue;
    }
    if (!shrink()) {
      drop_first_frame();
      if (serve_rows()) continue;
      std::rethrow_exception(ran_out);
    }
  }
}

// Memory for a group, seen as its base value.
at::Tensor Region::empty_full(uint32_t group) const {
  const Value& base = values_[groups_[group].base];
  return boundaries().empty(groups_[group].storage.nbytes(), base.sizes, base.strides, base.storage_offset, base.dtype, device_);
}

// Before a micro-batch shrinks: what can be had otherwise. Graphs of earlier stages' first micro-batches, which can be made again, and then
// boundaries, which can be moved.
bool Region::make_room() {
  ahead_.clear();
  bool dropped = false;
  for (const auto& region : session().live_regions()) dropped |= region.get() != this && !region->open() && region->drop_first_frame();
  return dropped || (may(KOILA_RUNG_OFFLOAD) && boundaries().evict(device_));
}

bool Region::store_rows(Held& held, const at::Tensor& local, Rows rows) {
  if (rows.end <= held.until) return false;
  if (rows.begin != held.until) broken(invariant::kRowsOnce, "rows " + std::to_string(rows.begin) + " follow on row " + std::to_string(held.until));
  const Value& value = values_[held.base];
  const at::Tensor part = local.detach();
  // Lazily conjugated, or negated, like the program's tensor for it: what lies in memory is the other value.
  held.full._set_conj(part.is_conj());
  held.full._set_neg(part.is_neg());
  if (value.placement.is_shard()) {
    send_out(held.full, value.placement, rows, part);
  } else if (const auto type = at::toOpMathType(value.dtype); type != value.dtype) {
    held.sum = held.sum.defined() ? held.sum.add_(part) : part.to(type, /*non_blocking=*/false, /*copy=*/true);
    held.full.copy_(held.sum);
  } else if (held.until == 0) {
    held.full.copy_(part);
  } else {
    held.full.add_(part);
  }
  held.until = rows.end;
  return true;
}

void Region::fill(const Held& held) {
  Group& group = groups_[values_[held.base].group];
  c10::StorageImpl& storage = *group.storage.unsafeGetStorageImpl();
  deferred_registry().remove_storage(&storage);
  storage.set_data_ptr_noswap(held.full.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, device_)));
  allow_raw_access(storage);
  boundaries().add(&storage);
  group.storage = {};
  group.filled = &storage;
  group.materialised = true;
  observed_random_ |= values_[held.base].random;
}

void Region::materialise(const std::vector<ValueId>& values) { materialise(values, Watch{}); }

void Region::observe(ValueId id, RowObserver& observer) {
  if (!materialised(id)) {
    std::vector<ValueId> values = held_deferred();
    values.push_back(id);
    materialise(values, {id, &observer, 0});
    return;
  }
  TORCH_INTERNAL_ASSERT(values_[id].impl != nullptr, "koila: a value that nobody holds is looked at");
  observe(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(values_[id].impl)), values_[id].placement, observer);
}

void Region::observe(const at::Tensor& full, const Placement& placement, RowObserver& observer) const {
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  for (int64_t begin = 0; begin < batch_; begin += micro_batch_) {
    observer.add(slice_rows(full.detach(), placement, batch_, {begin, std::min(begin + micro_batch_, batch_)}));
  }
}

void Region::end_stage() {
  materialise_held();
  close();
}

void Region::materialise(const std::vector<ValueId>& values, Watch watch) {
  const NoInferenceMode no_inference;
  const RegionWork work;
  bury_dead();
  const Stopwatch stopwatch(statistics.seconds);
  NoInterceptGuard no_intercept;
  at::NoGradGuard no_grad;
  std::vector<Held> wanted;
  std::vector<ValueId> bases;
  for (ValueId id : values) {
    const uint32_t g = values_[id].group;
    if (groups_[g].materialised || !groups_[g].storage) continue;
    if (std::find(bases.begin(), bases.end(), groups_[g].base) != bases.end()) continue;
    bases.push_back(groups_[g].base);
    wanted.push_back({groups_[g].base, {}, {}, 0});
  }
  if (wanted.empty()) return;
  check_sound();
  choose_size();
  std::vector<ValueId> keep = bases;
  if (watch.observer != nullptr) keep.push_back(watch.value);
  const Schedule plan = schedule(keep);
  check_captures(plan);
  verify(plan);
  Proof proof(*this, plan, keep);
  for (Held& held : wanted) {
    std::exception_ptr ran_out;
    try {
      held.full = empty_full(values_[held.base].group);
      continue;
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      ran_out = std::current_exception();
    }
    if (!drop_first_frame() && !make_room()) std::rethrow_exception(ran_out);
    held.full = empty_full(values_[held.base].group);
  }
  const bool random = std::any_of(keep.begin(), keep.end(), [&](ValueId v) { return values_[v].random; });
  const auto store = [&](const Frame& frame) {
    proof.add(frame);
    for (Held& held : wanted) {
      if (store_rows(held, frame.values[held.base], frame.rows)) proof.stored(held.base, frame.rows, frame.values[held.base]);
    }
    if (watch.observer == nullptr || frame.rows.end <= watch.until) return;
    watch.observer->add(frame.values[watch.value].detach());
    watch.until = frame.rows.end;
  };

  // Micro-batch 0 may stand by.
  int64_t position = 0;
  int64_t size = micro_batch_;
  int tries = 0;
  while (position < batch_) {
    const bool stands_by = position == 0 && first_.next == instructions_.size() &&
                           std::all_of(keep.begin(), keep.end(), [&](ValueId v) { return v < first_.values.size() && first_.values[v].defined(); });
    int64_t end = stands_by ? first_.rows.end : end_of_pass(position, size);
    // Sums that had reached further when a pass failed are not made twice: the retry ends there.
    for (const Held& held : wanted) {
      if (held.until > position) end = std::min(end, held.until);
    }
    if (watch.until > position) end = std::min(end, watch.until);
    std::exception_ptr ran_out;
    try {
      if (stands_by && end == first_.rows.end) {
        store(first_);
        side_.join();  // the program goes on with it
      } else {
        Frame frame{{position, end}, /*grad=*/false, {}, {}, 0};
        StepSizes::Pass pass(session().sizes, batch_, end - position, position == 0 || differentiable());
        ask_ahead({end, std::min(end + size, batch_)}, plan);
        run(frame, instructions_.size(), &plan);
        ++statistics.forward_only;
        store(frame);
        pass.finish();
      }
      position = end;
      tries = 0;
      continue;
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      ran_out = std::current_exception();
    }
    if (try_again(tries) || drop_first_frame() || make_room()) continue;
    if (size == 1 || observed_random_) {
      if (serve_rows()) continue;
      std::rethrow_exception(ran_out);
    }
    halve(size);
    size = micro_batch_;
    if (!random) continue;
    // Draws belong to micro-batches of one size.
    position = 0;
    for (Held& held : wanted) {
      held.until = 0;
      held.sum.reset();
    }
    watch.until = 0;
    if (watch.observer != nullptr) watch.observer->start_over();
  }
  ahead_.clear();
  side_.join();
  for (const Held& held : wanted) {
    if (held.until != batch_) broken(invariant::kRowsOnce, "a value has " + std::to_string(held.until) + " rows of " + std::to_string(batch_));
  }
  for (const Held& held : wanted) proof.check_value(held.base, held.full);
  proof.finish();
  for (const Held& held : wanted) fill(held);
  if (over_ && !has_deferred()) release();
}

std::vector<ValueId> Region::held_deferred() const {
  std::vector<ValueId> ids;
  for (ValueId id = 0; id < values_.size(); ++id) {
    const Group& group = groups_[values_[id].group];
    if (values_[id].impl != nullptr && !group.materialised && group.storage) ids.push_back(id);
  }
  return ids;
}

void Region::materialise_held() { materialise(held_deferred()); }

void Region::check_captures(const Schedule& plan) const {
  if (raw_memory().changed([&](const c10::StorageImpl* storage) { return concerns_storage(storage); })) refuse(kWrittenUnseen);
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (!plan.needed[i]) continue;
    for (const Argument& argument : instructions_[i].arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind != Operand::Kind::kUse) continue;
        const Capture& capture = captures_[uses_[o.id].capture];
        const bool changed = version_of(capture.tensor) != capture.version;
        if (changed && capture.before.defined()) continue;
        if (!changed && memory_of(capture.tensor) != capture.data) {  // no error of the program's
          refuse("a tensor that " + instructions_[i].op.schema().name() + " read was given other memory since (.data = ...).");
        }
        TORCH_CHECK(!changed,
                    "one of the variables needed for gradient computation has been modified by an inplace operation: [",
                    capture.tensor.toString(), " ", capture.tensor.sizes(), "], an input of ", instructions_[i].op.schema().name(), ", is at version ",
                    version_of(capture.tensor), "; expected version ", capture.version,
                    " instead. (koila runs this step in micro-batches and reads the tensor again in backward.)");
      }
    }
  }
}

// What a micro-batch's graph has saved instead of the copy would be what it was before.
void Region::check_moved(const Schedule& plan) const {
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (!plan.needed[i]) continue;
    const Instruction& in = instructions_[i];
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind != Operand::Kind::kUse) continue;
        const Capture& capture = captures_[uses_[o.id].capture];
        if (!capture.before.defined() || version_of(capture.tensor) != capture.version) continue;
        const Placement& placement = uses_[o.id].placement;
        const bool copied = in.in_float || o.weighted || (placement.is_shard() && !placement.ragged && placement.outer != 1);
        if (copied && may_save_operands(in.op.schema())) refuse("a tensor that " + in.op.schema().name() + " read was written to since, and no version tells.");
      }
    }
  }
}

}  // namespace koila
