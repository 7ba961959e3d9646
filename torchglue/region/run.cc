// A micro-batch runs: operators on its rows.

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "torchglue/base/foreign_memory.h"
#include "torchglue/base/own_pass.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/memory/origin.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/saved.h"
#include "torchglue/placement/packed_rows.h"
#include "torchglue/placement/parts_of_rows.h"
#include "torchglue/proof/invariants.h"
#include "torchglue/proof/proof.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/layout.h"
#include "torchglue/region/node.h"
#include "torchglue/region/random_scope.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/real_values.h"
#include "torchglue/region/recovery.h"
#include "torchglue/region/region.h"
#include "torchglue/step/ladder.h"
#include "torchglue/step/session.h"
#include "torchglue/tape/tape.h"

namespace koila {

namespace {

// `t` with its split dimension seen as [outer, rows, inner]. Always a view.
at::Tensor unmerged(const at::Tensor& t, const Placement& p, int64_t rows) { return t.unflatten(p.dim, {p.outer, rows, p.inner}); }

// Where the rows' entries of an index lie, which lie anywhere.
at::Tensor places_of(const Placement& p, Rows rows, at::Device device) { return at::tensor(p.ragged->places(rows.begin, rows.end), at::kLong).to(device); }

// Whether the part that rows own is no view of the full value.
bool is_copied(const Placement& p) { return p.is_shard() && (p.counts != 0 || (p.ragged ? !p.ragged->order.empty() : p.outer != 1)); }

}  // namespace

at::Tensor slice_rows(const at::Tensor& full, const Placement& p, int64_t batch, Rows rows) {
  if (p.counts == Placement::kSteps) return at::tensor(steps_of(*p.ragged, rows.begin, rows.end), full.options());
  if (p.counts != 0) {
    Placement same = p;
    same.counts = 0;
    const at::Tensor part = slice_rows(full, same, batch, rows);
    return p.counts == Placement::kRanks ? part.argsort().argsort() : part - rows.begin * p.counts;
  }
  if (p.ragged && !p.ragged->order.empty()) return full.index_select(p.dim, places_of(p, rows, full.device()));
  if (p.ragged) return full.narrow(p.dim, p.ragged->first[rows.begin], p.extent(rows.begin, rows.end));
  if (p.outer == 1) return full.narrow(p.dim, rows.begin * p.inner, rows.count() * p.inner);
  return unmerged(full, p, batch).narrow(p.dim + 1, rows.begin, rows.count()).flatten(p.dim, p.dim + 2);
}

void write_rows(const at::Tensor& full, const Placement& p, int64_t batch, Rows rows, const at::Tensor& part) {
  if (p.ragged && !p.ragged->order.empty()) {
    full.index_copy_(p.dim, places_of(p, rows, full.device()), part);
  } else if (p.ragged) {
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
  if (capture.lost) refuse("a tensor that an operator of the step read was written to since, and there was no memory for a copy of what it had been.");
  if (at::Tensor again = boundaries().rows(capture.as_read(), use.placement, batch_, rows); again.defined()) {
    if (!again.is_inference()) again.unsafeGetTensorImpl()->set_version_counter(capture.as_read().unsafeGetTensorImpl()->version_counter());
    return again;
  }
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

// Note [Sums of half precision]
// Plain PyTorch adds up the rows of a bfloat16 sum in single precision, and rounds once. So do micro-batches: an operator that makes a Partial of such a type
// runs on its operands in single precision (Instruction::in_float), and what it gives stays so from operator to operator, up to the sum over all
// micro-batches, which is rounded to the type that the program knows. Its gradient comes back the same way, and is rounded at the operands. Views of such a
// sum, and what writes to it, run on it as it is (keeps_float); for any other operator it is rounded first.

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
  if (operand.kind == Operand::Kind::kValue && saves_copy(in, operand.id)) local = local.clone();
  if (storage_of(local) != nullptr && memory_of(local) == nullptr && local.numel() > 0 && !local._is_zerotensor()) broken(invariant::kNoKernelSeesDeferred, "an operand of " + in.op.schema().name() + " has no memory");
  if (in.in_float) {
    local = local.to(at::toOpMathType(local.scalar_type()));
  } else if (operand.kind == Operand::Kind::kValue && !in.keeps_float && values_[operand.id].placement.is_partial()) {
    local = local.to(values_[operand.id].dtype);
  }
  if (operand.weighted) {
    const bool number = local.unsafeGetTensorImpl()->is_wrapped_number();
    if (at::isIntegralType(local.scalar_type(), /*includeBool=*/true)) local = local.to(number ? at::kDouble : type_of_sum(in));  // else its part would be rounded to the default type
    local = local * (static_cast<double>(frame.rows.count()) / static_cast<double>(batch_));
    if (number) local.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return local;
}

namespace {

std::vector<int64_t> numbers_of(const c10::IValue& list) {
  std::vector<int64_t> numbers;
  for (const c10::IValue& element : list.toListRef()) numbers.push_back(element.isInt() ? element.toInt() : *element.toSymInt().maybe_as_int());
  return numbers;
}

// Whether one of them is a gradient with a graph (koila::gradient), which takes a graph to run.
bool makes_gradients(const std::vector<Instruction>& all, size_t until, const Schedule* schedule) {
  return std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(until), [&](const Instruction& in) { return in.gradient && (schedule == nullptr || schedule->needed[&in - all.data()]); });
}

// What an argument that counts rows, or entries of them, says to a micro-batch.
c10::IValue literal_for(const Argument& argument, c10::IValue full, Rows rows) {
  const OpCall::Literal& first = argument.literals[0];
  switch (first.element) {
    case OpCall::kWhole:
      return rows.count() * first.factor;
    case OpCall::kEntriesBefore:
      return entries_before(*first.entries, rows.begin, rows.end, first.factor);
    case OpCall::kEntriesOfParts:
      return entries_of_parts(*first.entries, rows.begin, rows.end, numbers_of(full));
    case OpCall::kElementsOfRows: {
      const auto all = full.toIntVector();
      return std::vector<int64_t>(all.begin() + rows.begin * first.factor, all.begin() + rows.end * first.factor);
    }
    default: {
      std::vector<int64_t> sizes = numbers_of(full);
      for (const OpCall::Literal& literal : argument.literals) sizes[literal.element] = rows.count() * literal.factor;
      return sizes;
    }
  }
}

}  // namespace

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
      if (!argument.literals.empty()) value = literal_for(argument, std::move(value), frame.rows);
      stack.push_back(std::move(value));
    }
  }
  if (in.in_place) copy_what_lies_ahead(in.op, stack);
  const OpInProgress in_progress(in.op, in.place);
  const WhenScope when(KOILA_IN_FORWARD);
  std::optional<OwnPass> pass;
  if (in.gradient) pass.emplace();
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast;
  if (in.in_float) no_autocast.emplace(c10::autocast_dispatch_keyset);
  if (in.random) {
    // The draws of an operator depend on the rows alone, so that recomputation repeats them.
    const RandomScope random(device_, mix_seed(in.seed, static_cast<uint64_t>(frame.rows.begin), static_cast<uint64_t>(frame.rows.end)));
    call_kernel([&] { in.op.callBoxed(stack); });
  } else {
    call_kernel([&] { in.op.callBoxed(stack); });
  }
  frame.undivided = in.denominator >= 0 ? stack[0].toTensor() : at::Tensor();
  if (in.scale_by_rows || in.denominator >= 0) {
    const double weight = static_cast<double>(rows) / static_cast<double>(batch_);
    for (c10::IValue& result : stack) {
      if (!result.isTensor() || !result.toTensor().defined() || !can_be_scaled(result.toTensor().scalar_type())) continue;
      result = in.scale_by_rows ? result.toTensor() * weight : divided(frame, in, result.toTensor());
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

void Region::set_local(Frame& frame, ValueId id, const at::Tensor& local) const {
  if (frame.values.size() <= id) frame.values.resize(id + 1);
  frame.values[id] = local;
  note_sum(frame, id, local);
}

void Region::run(Frame& frame, size_t until, const Schedule* schedule) {
  const Offload::MayFail may_fail;
  if (frame.next == 0) {
    ++statistics.runs;
    frame.grad |= makes_gradients(instructions_, until, schedule);
  }
  for (; frame.next < until; ++frame.next) {
    const size_t i = frame.next;
    const Instruction& in = instructions_[i];
    if (schedule != nullptr && !schedule->needed[i]) continue;
    torch::jit::Stack results;
    try {
      results = call_instruction(frame, in);
    } catch (const std::exception& error) {
      const auto* torchs = dynamic_cast<const c10::Error*>(&error);
      if (torchs != nullptr && is_about_layout(*torchs)) refuse(in.op.schema().name() + " cannot work on a part of the rows, whose memory lies otherwise than the full batch's.");
      if (!in.by_user || is_python_interrupt(error) || is_out_of_memory(error)) throw;
      forget_python_error(error);
      TORCH_CHECK_WITH(OutOfMemoryError, false, kUnderKoila, in.op.schema().name(), ", which a placement rule lets run on some of the rows, raises an error there.");  // fewer rows may do
    }
    size_t flat = 0;
    const auto store = [&](const at::Tensor& local) {
      const ValueId id = in.outputs[flat++];
      if (id != kNoValue) check_part(i, values_[id], local, frame.rows);
      if (in.by_user) check_sound();  // what reads it would raise an error of its own
      if (id == kNoValue || (schedule != nullptr && schedule->last_value[id] <= i)) return;
      const bool own = groups_[values_[id].group].base == id;  // and no view of another value
      set_local(frame, id, own ? laid_out(frame, in, values_[id].strides, apart_from_operands(frame, in, id, local)) : local);
    };
    for_each_local(results, store);
    results.clear();
    if (frame.watch != nullptr) frame.watch->after(i, frame);
    if (expected_ != nullptr) meet(i, frame);
    if (schedule == nullptr) continue;
    for_each_value_read(in, [&](ValueId id) {
      if (schedule->last_value[id] <= i) frame.values[id].reset();
    });
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

void Region::run_first_frame() {
  const Schedule plan = schedule(in_use());
  run(first_, instructions_.size(), &plan);
}

void Region::catch_up() {
  bury_dead();
  const RegionWork work;
  const AtWork at_work(*this);
  Recovery recovery(*this, Recovery::FirstFrame::kFails);
  MicroBatchLoop(recovery).once([this] { return micro_batch_; }, [this] {
    if (first_.next < instructions_.size()) run_first_frame();
  });
  for (const auto& written : written_groups_) attach_gradients(written.first);
}

// `in_backward`: what operators save is read, and not only what they give.
void Region::check_captures(const Schedule& plan, bool in_backward) const {
  if (raw_memory().changed([&](const c10::StorageImpl* storage) { return concerns_storage(storage); })) refuse(kWrittenUnseen);
  in_backward |= makes_gradients(instructions_, instructions_.size(), &plan);
  const auto saves = [&](const Instruction& in) {
    return in_backward && may_save_operands(in.op.schema()) && takes_gradient(in, values_);
  };
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (!plan.needed[i]) continue;
    for (const Argument& argument : instructions_[i].arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind != Operand::Kind::kUse) continue;
        const Capture& capture = captures_[uses_[o.id].capture];
        const bool changed = version_of(capture.tensor) != capture.version;
        if (changed && capture.before.defined()) continue;
        if (!changed && (capture.is_moved() ? saves(instructions_[i]) : memory_of(capture.tensor) != capture.data)) {  // no error of the program's
          refuse("a tensor that " + instructions_[i].op.schema().name() + " read was given other memory since (.data = ...).");
        }
        if (!changed && !capture.before.defined() && differs_from(capture.foreign, capture.as_read())) refuse(kWrittenUnseen);
        // PyTorch's own error comes from the graph, which knows what it has saved: see Region::before_write(). This write nobody has seen.
        if (changed || capture.lost) refuse("a tensor that " + instructions_[i].op.schema().name() + " read was written to since.");
      }
    }
  }
}

// What a micro-batch's graph has saved instead of the copy would be what it was before; and plain PyTorch's would have saved a tensor that the program has given other memory.
void Region::check_moved(const Schedule& plan) const {
  const std::vector<char> elsewhere = values_elsewhere();
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (!plan.needed[i]) continue;
    const Instruction& in = instructions_[i];
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kValue && elsewhere[o.id] && may_save_operands(in.op.schema())) {
          refuse("a tensor inside the step, which " + in.op.schema().name() + " read, was given other memory since (.data = ...).");
        }
        if (o.kind != Operand::Kind::kUse) continue;
        const Capture& capture = captures_[uses_[o.id].capture];
        if (!capture.before.defined() || version_of(capture.tensor) != capture.version) continue;
        const Placement& placement = uses_[o.id].placement;
        const bool copied = in.in_float || o.weighted || is_copied(placement);
        if (copied && may_save_operands(in.op.schema())) refuse("a tensor that " + in.op.schema().name() + " read was written to since, and no version tells.");
      }
    }
  }
}

}  // namespace koila
