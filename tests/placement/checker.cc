#include "tests/placement/checker.h"

#include "torchglue/placement/masks.h"
#include "torchglue/placement/packed_rows.h"
#include "torchglue/placement/parts_of_rows.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>

namespace koila::conformance {

namespace {

using Stack = std::vector<c10::IValue>;
using Divisions = std::vector<std::vector<int64_t>>;  // rows of each micro-batch

c10::OperatorName operator_name(const std::string& op) {
  const size_t dot = op.find('.');
  return dot == std::string::npos ? c10::OperatorName(op, "") : c10::OperatorName(op.substr(0, dot), op.substr(dot + 1));
}

Divisions divisions(int64_t batch) {
  Divisions result = {{batch}, std::vector<int64_t>(batch, 1)};
  if (batch > 2) result.push_back({1, batch - 1});
  for (int64_t size = 2; size < batch; ++size) {
    std::vector<int64_t> rows(batch / size, size);
    if (batch % size != 0) rows.push_back(batch % size);  // ragged
    result.push_back(rows);
  }
  return result;
}

bool wants_gradient(const Operand& o) {
  return o.differentiable && o.full.defined() && (o.full.is_floating_point() || o.full.is_complex());
}

// The call's arguments as the schema has them: missing ones filled in.
std::vector<Argument> complete_arguments(const Call& call, const c10::FunctionSchema& schema) {
  std::vector<Argument> args = call.args;
  for (size_t i = args.size(); i < schema.arguments().size(); ++i) {
    const c10::Argument& a = schema.arguments()[i];
    auto keyword = std::find_if(call.keywords.begin(), call.keywords.end(), [&](const auto& k) { return k.first == a.name(); });
    if (keyword != call.keywords.end()) {
      args.push_back(keyword->second);
    } else {
      TORCH_CHECK(a.default_value(), call.op, ": argument ", a.name(), " is missing");
      args.push_back(*a.default_value());
    }
  }
  return args;
}

bool has_tensor_type(const c10::Argument& a) {
  return a.type()->isSubtypeOf(*c10::OptionalType::create(c10::TensorType::get()));
}

bool has_tensor_list_type(const c10::Argument& a) {
  return a.type()->isSubtypeOf(*c10::ListType::create(c10::OptionalType::create(c10::TensorType::get()))) ||
         a.type()->isSubtypeOf(*c10::ListType::ofTensors());
}

TensorSpec spec_of(const Operand& o) {
  TensorSpec spec;
  spec.defined = o.full.defined();
  if (!spec.defined) return spec;
  spec.placement = o.placement;
  spec.sizes.assign(o.full.sizes().begin(), o.full.sizes().end());
  spec.dtype = o.full.scalar_type();
  return spec;
}

void ask(OpCall& question, const std::vector<Argument>& args, const c10::FunctionSchema& schema) {
  for (const auto i : c10::irange(args.size())) {
    OpCall::Arg arg;
    arg.is_tensor = has_tensor_type(schema.arguments()[i]);
    arg.is_tensor_list = has_tensor_list_type(schema.arguments()[i]);
    if (const auto* operand = std::get_if<Operand>(&args[i])) {
      arg.tensors.push_back(spec_of(*operand));
    } else if (const auto* operands = std::get_if<std::vector<Operand>>(&args[i])) {
      for (const Operand& o : *operands) arg.tensors.push_back(spec_of(o));
    } else if (arg.is_tensor) {
      arg.tensors.emplace_back();
    } else {
      arg.value = std::get<c10::IValue>(args[i]);
    }
    question.args().push_back(std::move(arg));
  }
}

// Reads the indices among a call's arguments; of masks nothing is known here.
class Counter final : public OpCall::RowCounter {
 public:
  Counter(const std::vector<Argument>& args, const Options& options) : args_(args), batch_(options.batch), sorts_(options.index_sorts) {}
  std::shared_ptr<const Ragged> rows_under(OpCall::ArgRef, int64_t) override { return nullptr; }
  std::shared_ptr<const Ragged> rows_of(OpCall::ArgRef index, int64_t dim, int64_t entries) override {
    const Argument& argument = args_[static_cast<size_t>(index.arg)];
    const auto* operand = std::get_if<Operand>(&argument);
    return masks_.rows_of(operand != nullptr ? operand->full : std::get<std::vector<Operand>>(argument)[static_cast<size_t>(index.element)].full, dim, entries, batch_);
  }
  std::optional<std::vector<int64_t>> numbers_of(OpCall::ArgRef ref) override { return numbers_in(std::get<Operand>(args_[static_cast<size_t>(ref.arg)]).full); }
  bool sorts(OpCall::ArgRef) override { return sorts_; }
  bool is_constant(OpCall::ArgRef) override { return false; }
  // As an argument is split, where it is split so.
  std::shared_ptr<const Ragged> remember(Ragged&& rows) override {
    for (const Argument& argument : args_) {
      const auto* operand = std::get_if<Operand>(&argument);
      const auto& known = operand == nullptr ? nullptr : operand->placement.ragged;
      if (known && known->first == rows.first && known->order == rows.order) return known;
    }
    return masks_.remembered(std::move(rows));
  }

 private:
  const std::vector<Argument>& args_;
  int64_t batch_;
  bool sorts_;
  Masks masks_;
};

// One run's tensors, in the order of the call: every operand with one leaf for each value that it has.
class Leaves {
 public:
  explicit Leaves(const std::vector<Argument>& args) {
    for (const Argument& a : args) {
      if (const auto* operand = std::get_if<Operand>(&a)) operands_.push_back(*operand);
      if (const auto* list = std::get_if<std::vector<Operand>>(&a)) operands_.insert(operands_.end(), list->begin(), list->end());
    }
  }

  size_t size() const { return operands_.size(); }
  const Operand& operand(size_t i) const { return operands_[i]; }

  // `parts` leaves for a Partial, one for anything else.
  void make(size_t parts) {
    leaves_.clear();
    for (const Operand& o : operands_) {
      std::vector<at::Tensor> values;
      if (!o.full.defined()) {
        values.emplace_back();
      } else if (o.placement.is_partial()) {
        values = cut(o.full, parts);
      } else {
        values.push_back(o.full.clone());
        if (o.full.unsafeGetTensorImpl()->is_wrapped_number()) values[0].unsafeGetTensorImpl()->set_wrapped_number(true);
      }
      if (wants_gradient(o)) {
        for (at::Tensor& v : values) v.requires_grad_(true);
      }
      leaves_.push_back(std::move(values));
    }
  }

  const at::Tensor& leaf(size_t i, size_t micro_batch) const {
    return leaves_[i].size() > 1 ? leaves_[i][micro_batch] : leaves_[i][0];
  }
  const std::vector<at::Tensor>& leaves(size_t i) const { return leaves_[i]; }

 private:
  static std::vector<at::Tensor> cut(const at::Tensor& full, size_t parts) {
    std::vector<at::Tensor> values;
    at::Tensor rest = full.clone();
    for (size_t i = 1; i < parts; ++i) {
      const bool fractions = full.is_floating_point() || full.is_complex();
      at::Tensor part = fractions ? at::randn_like(full) : at::randint_like(full, 10);
      rest = rest - part;
      values.push_back(part);
    }
    values.push_back(rest);
    return values;
  }

  std::vector<Operand> operands_;
  std::vector<std::vector<at::Tensor>> leaves_;
};

c10::IValue tensor_list(const std::vector<at::Tensor>& tensors, const c10::Argument& a) {
  if (a.type()->isSubtypeOf(*c10::ListType::ofTensors())) return c10::List<at::Tensor>(tensors);
  c10::List<std::optional<at::Tensor>> list;
  for (const at::Tensor& t : tensors) list.push_back(t.defined() ? std::optional<at::Tensor>(t) : std::nullopt);
  return list;
}

// The stack of a call whose operand i is `tensor(i, argument, element)`.
template <typename F>
Stack make_stack(const std::vector<Argument>& args, const c10::FunctionSchema& schema, F&& tensor) {
  Stack stack;
  size_t next = 0;
  for (const auto i : c10::irange(args.size())) {
    const int arg = static_cast<int>(i);
    if (std::holds_alternative<Operand>(args[i])) {
      at::Tensor t = tensor(next++, arg, -1);
      // An operator must not write to a leaf.
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) t = t.clone();
      stack.push_back(t.defined() ? c10::IValue(t) : c10::IValue());
    } else if (const auto* list = std::get_if<std::vector<Operand>>(&args[i])) {
      std::vector<at::Tensor> tensors;
      for (const auto element : c10::irange(list->size())) tensors.push_back(tensor(next++, arg, static_cast<int>(element)));
      stack.push_back(tensor_list(tensors, schema.arguments()[i]));
    } else {
      stack.push_back(std::get<c10::IValue>(args[i]));
    }
  }
  return stack;
}

c10::IValue literal_of_rows(const c10::IValue& value, const OpCall::Literal& literal, int64_t begin, int64_t end) {
  if (literal.element == OpCall::kWhole) return (end - begin) * literal.factor;
  if (literal.element == OpCall::kEntriesBefore) return entries_before(*literal.entries, begin, end, literal.factor);
  std::vector<int64_t> list = value.toIntVector();
  if (literal.element == OpCall::kEntriesOfParts) return entries_of_parts(*literal.entries, begin, end, list);
  if (literal.element == OpCall::kElementsOfRows) return std::vector<int64_t>(list.begin() + begin * literal.factor, list.begin() + end * literal.factor);
  list[literal.element] = (end - begin) * literal.factor;
  return list;
}

c10::IValue weighted(const c10::IValue& value, double share) {
  if (!value.isTensor()) return (value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble()) * share;
  const at::Tensor t = value.toTensor();
  at::Tensor result = t.dim() == 0 && !t.is_floating_point() ? t.to(at::kDouble) * share : t * share;
  // A Python number stays one: it does not decide the result's dtype.
  if (t.dim() == 0 && t.unsafeGetTensorImpl()->is_wrapped_number()) result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

// Outputs that a rule does not name are Replicate.
Placement placement_of(const OpCall& question, size_t output, size_t element) { return question.output_at(output, static_cast<int>(element)); }

using Outputs = std::vector<std::vector<at::Tensor>>;  // per output; more than one for a list

Outputs outputs_of(const Stack& stack) {
  Outputs outputs;
  for (const c10::IValue& v : stack) {
    if (v.isTensorList()) {
      outputs.push_back(v.toTensorVector());
    } else if (v.isTensor()) {
      outputs.push_back({v.toTensor()});
    } else {
      outputs.emplace_back();
    }
  }
  return outputs;
}

Outputs run(const c10::OperatorHandle& op, Stack stack) {
  op.callBoxed(stack);
  return outputs_of(stack);
}

bool differentiable(const at::Tensor& t) { return t.defined() && t.requires_grad(); }

at::Tensor inner_product(const at::Tensor& a, const at::Tensor& b) { return at::real((a * b).sum()); }

// What each output is multiplied with before backward, at the full batch.
std::vector<std::vector<at::Tensor>> cotangents(const Outputs& outputs) {
  std::vector<std::vector<at::Tensor>> result;
  for (const auto& list : outputs) {
    auto& row = result.emplace_back();
    for (const at::Tensor& t : list) row.push_back(differentiable(t) ? at::randn_like(t.detach()) : at::Tensor());
  }
  return result;
}

std::string text_of(const Argument& a) {
  const auto operand = [](const Operand& o) {
    if (!o.full.defined()) return std::string("None");
    std::ostringstream text;
    text << o.full.sizes() << ' ' << to_string(o.placement);
    return text.str();
  };
  if (const auto* o = std::get_if<Operand>(&a)) return operand(*o);
  std::ostringstream text;
  if (const auto* list = std::get_if<std::vector<Operand>>(&a)) {
    for (const Operand& o : *list) text << (&o == list->data() ? "(" : "; ") << operand(o);
    text << ')';
  } else {
    text << std::get<c10::IValue>(a);
  }
  return text.str();
}

std::string text_of(const std::vector<int64_t>& rows) {
  std::ostringstream out;
  out << "micro-batches of";
  for (int64_t r : rows) out << ' ' << r;
  return out.str();
}

class Comparison {
 public:
  explicit Comparison(const Call& call, const Options& options) : call_(call), options_(options) {}

  Outcome run_all() {
    const auto op = c10::Dispatcher::singleton().findSchema(operator_name(call_.op));
    TORCH_CHECK(op, "no operator ", call_.op);
    op_ = *op;
    const c10::FunctionSchema& schema = op_->schema();
    args_ = complete_arguments(call_, schema);

    outcome_.rule = find_rule(schema);
    if (outcome_.rule == nullptr) return outcome_;
    OpCall question(schema, options_.batch);
    ask(question, args_, schema);
    Counter counter(args_, options_);
    question.set_counter(counter);
    outcome_.verdict = outcome_.rule->fn(question);
    outcome_.outputs = question.outputs();
    if (outcome_.verdict == Verdict::kReal) check_reads_no_value();
    if (outcome_.verdict != Verdict::kLocal) return outcome_;

    Leaves full(args_);
    full.make(1);
    Outputs expected = run(*op_, make_stack(args_, schema, [&](size_t i, int, int) { return full.leaf(i, 0); }));
    if (!placements_fit(expected, question)) return outcome_;
    auto directions = cotangents(expected);
    try {
      backward(expected, directions);
    } catch (const c10::Error& e) {
      // No derivative at all: then there is none to compare.
      TORCH_CHECK(std::string_view(e.what_without_backtrace()).find("is not implemented") != std::string_view::npos, e.what_without_backtrace());
      for (auto& list : directions) std::fill(list.begin(), list.end(), at::Tensor());
    }
    for (const auto& rows : divisions(options_.batch)) {
      where_ = text_of(rows);
      try {
        compare(question, full, expected, directions, rows);
      } catch (const c10::Error& e) {
        error(std::string("threw: ") + e.what_without_backtrace());
      }
    }
    return outcome_;
  }

 private:
  void error(const std::string& text) { outcome_.errors.push_back(call_.op + ", " + where_ + ": " + text); }

  bool equal(const at::Tensor& a, const at::Tensor& b) const {
    if (a.numel() == 0) return true;
    const auto wide = [](const at::Tensor& t) { return t.is_complex() ? at::view_as_real(t).to(at::kDouble) : t.to(at::kDouble); };
    const at::Tensor x = wide(a.resolve_conj()), y = wide(b.resolve_conj());
    const at::Tensor finite = at::where(at::isfinite(x), x, at::zeros_like(x));
    const double scale = std::max(1.0, finite.abs().max().item<double>());
    const bool is_double = a.scalar_type() == at::kDouble || a.scalar_type() == at::kComplexDouble;
    const double tolerance = is_double || !(a.is_floating_point() || a.is_complex()) ? options_.tolerance : 1e-5;
    return at::allclose(x / scale, y / scale, 0.0, tolerance, /*equal_nan=*/true);
  }

  // A rule that reads metadata only gives the same whatever the values are.
  void check_reads_no_value() {
    where_ = "other values";
    Leaves leaves(args_);
    leaves.make(1);
    const c10::FunctionSchema& schema = op_->schema();
    const Stack one = make_stack(args_, schema, [&](size_t i, int, int) { return leaves.leaf(i, 0).detach(); });
    const Stack two = make_stack(args_, schema, [&](size_t i, int, int) {
      const at::Tensor& t = leaves.leaf(i, 0);
      return t.defined() ? at::zeros_like(t.detach()) : t;
    });
    Stack a = one, b = two;
    op_->callBoxed(a);
    op_->callBoxed(b);
    for (const auto i : c10::irange(a.size())) {
      if (!a[i].isTensor()) {
        if (a[i] != b[i]) error("a value was read");
        continue;
      }
      const at::Tensor x = a[i].toTensor(), y = b[i].toTensor();
      const bool unset = options_.random;
      if (x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type() || (!unset && !equal(x, y))) error("a value was read");
    }
  }

  bool placements_fit(const Outputs& expected, const OpCall& question) {
    where_ = "full batch";
    for (const auto i : c10::irange(expected.size())) {
      for (const auto j : c10::irange(expected[i].size())) {
        const at::Tensor& t = expected[i][j];
        if (!t.defined()) continue;
        const Placement p = placement_of(question, i, j);
        if (p.is_replicate() && t.numel() > 0 && question.aside(static_cast<int>(i)) == nullptr) error("output " + std::to_string(i) + " is Replicate");
        if (p.is_shard() && (p.dim < 0 || p.dim >= t.dim() || t.size(p.dim) != p.extent(options_.batch))) {
          std::ostringstream sizes;
          sizes << t.sizes();
          error("output " + std::to_string(i) + " " + sizes.str() + " cannot be " + to_string(p));
        }
      }
    }
    return outcome_.errors.empty();
  }

  void backward(const Outputs& outputs, const std::vector<std::vector<at::Tensor>>& directions) const {
    if (options_.random || !options_.gradients) return;
    at::Tensor total;
    for (const auto i : c10::irange(outputs.size())) {
      for (const auto j : c10::irange(outputs[i].size())) {
        if (!directions[i][j].defined() || !differentiable(outputs[i][j])) continue;
        const at::Tensor term = inner_product(outputs[i][j], directions[i][j]);
        total = total.defined() ? total + term : term;
      }
    }
    if (total.defined()) total.backward();
  }

  Stack micro_batch_stack(const OpCall& question, const Leaves& leaves, size_t n, int64_t begin, int64_t end) const {
    const double share = static_cast<double>(end - begin) / static_cast<double>(options_.batch);
    Stack stack = make_stack(args_, op_->schema(), [&](size_t i, int arg, int element) {
      const at::Tensor& leaf = leaves.leaf(i, n);
      Placement p = leaves.operand(i).placement;
      for (const OpCall::Slice& s : question.slices()) {
        if (s.arg.arg == arg && std::max(s.arg.element, 0) == std::max(element, 0)) p = s.placement;
      }
      return leaf.defined() && p.is_shard() ? rows_of(leaf, p, options_.batch, begin, end) : leaf;
    });
    for (const auto& [arg, value] : question.replaced()) stack[arg] = value;
    for (const OpCall::Literal& literal : question.literals()) stack[literal.arg] = literal_of_rows(stack[literal.arg], literal, begin, end);
    for (int arg : question.weighted()) stack[arg] = weighted(stack[arg], share);
    if (question.instead()) stack.insert(stack.end(), question.instead()->more.begin(), question.instead()->more.end());
    return stack;
  }

  std::optional<at::Tensor> denominator(const OpCall& question) const {
    if (!question.denominator()) return std::nullopt;
    Leaves leaves(args_);
    leaves.make(1);
    const auto& real = question.real_arguments();
    const Stack stack = make_stack(args_, op_->schema(), [&](size_t i, int arg, int) {
      const bool made_real = std::find(real.begin(), real.end(), arg) != real.end();
      return made_real ? leaves.leaf(i, 0) : at::Tensor();
    });
    return question.denominator()(stack);
  }

  void compare(const OpCall& question, const Leaves& full, const Outputs& expected,
               const std::vector<std::vector<at::Tensor>>& directions, const std::vector<int64_t>& rows) {
    Leaves leaves(args_);
    leaves.make(rows.size());
    const auto divisor = denominator(question);
    const c10::OperatorHandle op = question.instead()
        ? c10::Dispatcher::singleton().findSchemaOrThrow(question.instead()->name.c_str(), question.instead()->overload.c_str())
        : *op_;
    std::vector<Outputs> parts;
    int64_t begin = 0;
    for (const auto n : c10::irange(rows.size())) {
      const int64_t end = begin + rows[n];
      Outputs outputs = run(op, micro_batch_stack(question, leaves, n, begin, end));
      for (auto& list : outputs) {
        for (at::Tensor& t : list) {
          if (!t.defined() || !t.is_floating_point()) continue;
          if (question.outputs_scaled_by_rows()) t = t * (static_cast<double>(rows[n]) / static_cast<double>(options_.batch));
          if (divisor) t = t / *divisor;
        }
      }
      give_whole(outputs, question);
      if (!fits(outputs, expected, question, begin, end)) return;
      auto share = directions;
      for (const auto i : c10::irange(share.size())) {
        for (const auto j : c10::irange(share[i].size())) {
          at::Tensor& d = share[i][j];
          const Placement p = placement_of(question, i, j);
          if (d.defined() && p.is_shard()) d = rows_of(d, p, options_.batch, begin, end);
        }
      }
      backward(outputs, share);
      parts.push_back(std::move(outputs));
      begin = end;
    }
    if (options_.random) return;
    compare_values(question, expected, parts, rows);
    if (options_.gradients) compare_gradients(full, leaves);
  }

  // What the rule knows of the full batch takes the place of what a micro-batch says.
  static void give_whole(Outputs& outputs, const OpCall& question) {
    for (const auto i : c10::irange(outputs.size())) {
      const OpCall::Aside* aside = question.aside(static_cast<int>(i));
      if (aside != nullptr && aside->numbers) outputs[i] = {at::tensor(*aside->numbers, at::kLong)};
    }
  }

  // The micro-batch's outputs have the shapes and dtypes that their placements promise.
  bool fits(const Outputs& outputs, const Outputs& expected, const OpCall& question, int64_t begin, int64_t end) {
    for (const auto i : c10::irange(expected.size())) {
      if (outputs[i].size() != expected[i].size()) {
        error("another number of outputs");
        return false;
      }
      for (const auto j : c10::irange(expected[i].size())) {
        const at::Tensor &t = outputs[i][j], &e = expected[i][j];
        if (!e.defined()) continue;
        std::vector<int64_t> sizes = e.sizes().vec();
        const Placement p = placement_of(question, i, j);
        if (p.is_shard()) sizes[p.dim] = p.extent(begin, end);
        if (t.sizes() != c10::IntArrayRef(sizes) || t.scalar_type() != e.scalar_type()) {
          std::ostringstream text;
          text << "output " << i << " is " << t.sizes() << " " << t.scalar_type() << ", not " << c10::IntArrayRef(sizes) << " " << e.scalar_type();
          error(text.str());
          return false;
        }
      }
    }
    return true;
  }

  void compare_values(const OpCall& question, const Outputs& expected, const std::vector<Outputs>& parts, const std::vector<int64_t>& rows) {
    for (const auto i : c10::irange(expected.size())) {
      for (const auto j : c10::irange(expected[i].size())) {
        const at::Tensor& e = expected[i][j];
        const Placement p = placement_of(question, i, j);
        if (!e.defined()) continue;
        int64_t begin = 0;
        at::Tensor sum;
        for (const auto n : c10::irange(rows.size())) {
          const at::Tensor part = parts[n][i][j].detach();
          if (p.is_shard() && !equal(rows_of(e.detach(), p, options_.batch, begin, begin + rows[n]), part)) {
            error("output " + std::to_string(i) + " differs");
            break;
          }
          const OpCall::Aside* aside = question.aside(static_cast<int>(i));
          if (aside != nullptr && aside->numbers && !equal(e, part)) error("output " + std::to_string(i) + " is not as the rule gives it");
          if (p.is_partial()) sum = sum.defined() ? sum + part : part;
          begin += rows[n];
        }
        if (p.is_partial() && !equal(e.detach(), sum)) error("output " + std::to_string(i) + " does not sum up");
      }
    }
  }

  void compare_gradients(const Leaves& full, const Leaves& leaves) {
    const auto gradient = [](const at::Tensor& t) { return t.grad().defined() ? t.grad() : at::zeros_like(t.detach()); };
    for (const auto i : c10::irange(leaves.size())) {
      if (!wants_gradient(leaves.operand(i))) continue;
      for (const at::Tensor& leaf : leaves.leaves(i)) {
        if (!equal(gradient(full.leaf(i, 0)), gradient(leaf))) {
          error("the gradient of operand " + std::to_string(i) + " differs");
          break;
        }
      }
    }
  }

  const Call& call_;
  const Options& options_;
  std::optional<c10::OperatorHandle> op_;
  std::vector<Argument> args_;
  Outcome outcome_;
  std::string where_;
};

}  // namespace

at::Tensor rows_of(const at::Tensor& full, const Placement& shard, int64_t batch, int64_t begin, int64_t end) {
  if (shard.counts == Placement::kSteps) return at::tensor(steps_of(*shard.ragged, begin, end), full.options());
  if (shard.counts != 0) {
    Placement same = shard;
    same.counts = 0;
    const at::Tensor part = rows_of(full, same, batch, begin, end);
    return shard.counts == Placement::kRanks ? part.argsort().argsort() : part - begin * shard.counts;
  }
  if (shard.ragged) return full.index_select(shard.dim, at::tensor(shard.ragged->places(begin, end), at::kLong));
  const at::Tensor rows = full.unflatten(shard.dim, {shard.outer, batch, shard.inner}).narrow(shard.dim + 1, begin, end - begin);
  // As dense as the full tensor is: view() would refuse a slice with holes.
  return rows.flatten(shard.dim, shard.dim + 2).clone(at::MemoryFormat::Preserve);
}

std::string to_string(const Call& call) {
  std::string text = call.op + "(";
  for (const Argument& a : call.args) text += (&a == call.args.data() ? "" : ", ") + text_of(a);
  for (const auto& [name, value] : call.keywords) text += ", " + name + "=" + text_of(value);
  return text + ")";
}

Outcome check(const Call& call, const Options& options) { return Comparison(call, options).run_all(); }

std::string twin(const std::string& op, const std::string& suffix) {
  const c10::OperatorName name = operator_name(op);
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto one = dispatcher.findSchema(name);
  const auto other = dispatcher.findSchema({name.name + suffix, name.overload_name});
  if (!one || !other) return {};
  if (one->schema().arguments().size() != other->schema().arguments().size()) return {};
  return name.overload_name.empty() ? name.name + suffix : name.name + suffix + "." + name.overload_name;
}

}  // namespace koila::conformance
