// Rule: what an operator does to placements. One function a shape of operator, one table a family (rules/<family>.cc).
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchglue/placement/placement.h"

namespace koila {

// A tensor argument as a rule sees it: sizes of the full batch, never a value.
struct TensorSpec {
  bool defined = false;
  Placement placement;
  c10::SmallVector<int64_t, 5> sizes;  // of the full batch
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::kCPU;

  int64_t dim() const { return static_cast<int64_t>(sizes.size()); }
};

// Note [What a rule promises]
// A rule that answers kLocal promises: for every division of the B rows into micro-batches, running the operator on the micro-batch's
// slices (with the rewritten literals and weights) gives the micro-batch's part of the full result as the declared output placement
// says, to rounding; and the same holds for gradients, since the slices, sums and scalings around it are linear.
// It must say kNo whenever it is not sure: kNo is always right, only dearer.
enum class Verdict : uint8_t {
  kNo,     // run at the full batch, on materialised inputs
  kLocal,  // run per micro-batch, as answered
  kStaged, // the same, once every micro-batch has come this far: see Note [Stages]
  kReal,   // reads metadata only (ones_like of a Partial, sizes): run once, for real, on the deferred tensors themselves
};

// Whether micro-batches run it, at once or after a stage has ended.
inline bool splits(Verdict verdict) { return verdict == Verdict::kLocal || verdict == Verdict::kStaged; }

// Note [Stages]
// An operator that needs something of every row (the sum that its argument is a part of, a batch's mean and variance) ends a stage: all
// micro-batches run up to it, what the rest of the step reads of them is kept, and the sum or the statistics are ordinary tensors from then on. What follows
// begins a region of its own, which sees what was kept by the row. Backward needs nothing more than autograd: the later region's node
// gives the earlier one's the gradients of what was kept, and of the statistics, summed over the rows.

// One operator call: the question and, as the rule fills it in, the answer.
class OpCall {
 public:
  // A tensor argument (index of the schema's argument), or one element of a tensor-list argument.
  struct ArgRef {
    int arg;
    int element = -1;  // -1: the argument itself
    bool operator==(const ArgRef&) const = default;
  };

  struct Arg {
    c10::IValue value;               // a non-tensor argument; None for tensors and tensor lists
    std::vector<TensorSpec> tensors;  // one for a Tensor or Tensor? argument, n for a list
    bool is_tensor = false;           // Tensor, Tensor?
    bool is_tensor_list = false;      // Tensor[], Tensor?[]
  };

  // Knows how many entries a mask picks, and from where an index does.
  class RowCounter {
   public:
    // The entries of each row that a mask picks, its first dimension being the batch's; `picked_dim` is their dimension in the result. Null where
    // the mask's value is not known.
    virtual std::shared_ptr<const Ragged> rows_under(ArgRef mask, int64_t picked_dim) = 0;
    // The entries of an index into a dimension with `entries` for each row of the batch, by the row that they count in; the index runs along its dimension `dim`.
    // Null where its value is not known, or it is better taken as it is: see Masks::rows_of().
    virtual std::shared_ptr<const Ragged> rows_of(ArgRef index, int64_t dim, int64_t entries) = 0;
    // The whole numbers (int64) of an argument of one dimension; nothing where its value is not known.
    virtual std::optional<std::vector<int64_t>> numbers_of(ArgRef) = 0;
    // Whether an index is the order that a sort found of whole numbers: of lengths, before rows are packed (torch.nn.utils.rnn).
    virtual bool sorts(ArgRef index) = 0;
    // Whether a split argument is a constant that was made for the batch, with the same entries for all rows: they are in any order.
    virtual bool is_constant(ArgRef) = 0;
    // Two splits alike are one: such placements compare equal.
    virtual std::shared_ptr<const Ragged> remember(Ragged&&) = 0;

   protected:
    ~RowCounter() = default;
  };

  OpCall(const c10::FunctionSchema& schema, int64_t batch) : schema_(&schema), batch_(batch) {}

  // --- the question ---
  const c10::FunctionSchema& schema() const { return *schema_; }
  int64_t batch() const { return batch_; }  // B
  std::vector<Arg>& args() { return args_; }
  const std::vector<Arg>& args() const { return args_; }
  int find(std::string_view name) const;  // index of the argument of that name, or -1

  const TensorSpec& tensor(int arg) const;                    // undefined spec when the argument is None or out of range
  const std::vector<TensorSpec>& list(int arg) const;         // elements of a tensor list
  bool none(int arg) const;                                   // absent, None, or an undefined tensor
  int64_t integer(int arg, int64_t otherwise = 0) const;      // int, SymInt or bool
  double number(int arg, double otherwise = 0) const;
  bool boolean(int arg, bool otherwise = false) const;
  std::optional<std::vector<int64_t>> integers(int arg) const;  // int[], SymInt[], int? -> nullopt when None
  TensorSpec* find_tensor(ArgRef arg);                          // null when there is none
  // As the counter says; null without one. It has to live as long as rules are asked about this call, or about a copy.
  std::shared_ptr<const Ragged> rows_under(ArgRef mask, int64_t picked_dim) const { return counter_ != nullptr ? counter_->rows_under(mask, picked_dim) : nullptr; }
  std::shared_ptr<const Ragged> rows_of(ArgRef index, int64_t dim, int64_t entries) const { return counter_ != nullptr ? counter_->rows_of(index, dim, entries) : nullptr; }
  std::optional<std::vector<int64_t>> numbers_of(ArgRef ref) const { return counter_ != nullptr ? counter_->numbers_of(ref) : std::nullopt; }
  bool sorts(ArgRef index) const { return counter_ != nullptr && counter_->sorts(index); }
  bool is_constant(ArgRef ref) const { return counter_ != nullptr && counter_->is_constant(ref); }
  std::shared_ptr<const Ragged> remember(Ragged&& rows) const { return counter_ != nullptr ? counter_->remember(std::move(rows)) : std::make_shared<const Ragged>(std::move(rows)); }
  void set_counter(RowCounter& counter) { counter_ = &counter; }
  // The first sharded or partial tensor argument, in schema order; null when there is none.
  const TensorSpec* first_split() const;

  // --- the answer ---
  // The argument is to be seen under this placement. True when it already is, or when it is Replicate and can be sliced so
  // (its size along dim is outer*B*inner). False: the rule must answer kNo. An undefined tensor is anything.
  bool require(ArgRef arg, const Placement& wanted);
  // The argument, a tensor that is the same for all, says how many rows each step of packed data has that are split so, and a micro-batch has its own: see Note [Packed rows].
  void count_steps(ArgRef arg, std::shared_ptr<const Ragged> data) { slices_.push_back({arg, {Placement::Kind::kShard, 0, 1, 1, std::move(data), Placement::kSteps}}); }
  // The literal (element `element` of an int-list argument, or an int argument with element -1) becomes rows * factor.
  void scale_literal(int arg, int element, int64_t factor);
  // The int argument is a place among `entries`, counted at the full batch: a micro-batch counts those of its own rows that lie before. See Note [Parts of the batch].
  void count_before(int arg, int64_t place, std::shared_ptr<const Ragged> entries) { literals_.push_back({arg, kEntriesBefore, place, std::move(entries)}); }
  // The int-list argument has the numbers of `entries` that the parts of a dimension take, one after the other.
  void count_parts(int arg, std::shared_ptr<const Ragged> entries) { literals_.push_back({arg, kEntriesOfParts, 0, std::move(entries)}); }
  // The int-list argument has `inner` elements for each row: a micro-batch has those of its own rows.
  void slice_literal(int arg, int64_t inner) { literals_.push_back({arg, kElementsOfRows, inner}); }
  void set_argument(int arg, c10::IValue value);  // replaces a non-tensor argument
  // The argument (a Replicate tensor, or a number) is multiplied by rows / B: how a constant is added to a Partial.
  void weight_by_rows(int arg);
  // Outputs that can be scaled are multiplied by rows / B: a mean of equal shares becomes Partial.
  void scale_outputs_by_rows() { scale_outputs_by_rows_ = true; }
  // Outputs are divided by the tensor (0-dim) that `f` computes once from the full-batch arguments. The arguments named are made real
  // first; the others may be deferred and must not be read by `f`.
  using Denominator = std::function<at::Tensor(const std::vector<c10::IValue>& full_arguments)>;
  void divide_outputs_by(std::vector<int> real_arguments, Denominator f);
  // Micro-batches run this overload instead, on these arguments (as answered) followed by `more`: a micro-batch of one row has a size-1
  // dimension more, so squeeze() must name the dimensions that it means.
  void run_instead(const char* name, const char* overload, std::vector<c10::IValue> more);
  // Placement of output i; for a tensor-list output, of every element. Outputs not named are Replicate and must be non-tensors, or without entries.
  void output(int i, const Placement& placement);
  // The only output is a list, with a placement for each element.
  void output_elements(std::vector<Placement> placements) {
    outputs_ = std::move(placements);
    by_element_ = true;
  }
  // The split arguments that have to be made whole first, and are Replicate in this answer. For ask(), not for rules.
  void set_whole(std::vector<ArgRef> whole) { whole_ = std::move(whole); }
  // Output i says nothing of rows: a number that is the same whichever rows the call has, or memory that only the call's own backward pass reads (the state of a generator that
  // nothing was drawn from). The program gets micro-batch 0's.
  void leave_aside(int i) { aside_.push_back({i, std::nullopt}); }
  // Output i is these numbers (int64, on the CPU) at the full batch, and no sum or part of what micro-batches give.
  void give_whole(int i, std::vector<int64_t> numbers) { aside_.push_back({i, std::move(numbers)}); }
  // Takes everything back.
  void clear_answer();

  struct Slice { ArgRef arg; Placement placement; };
  struct Instead { std::string name, overload; std::vector<c10::IValue> more; };
  // In place of an element: see scale_literal(), slice_literal(), count_before(), count_parts().
  static constexpr int kWhole = -1, kElementsOfRows = -2, kEntriesBefore = -3, kEntriesOfParts = -4;
  struct Literal { int arg; int element; int64_t factor; std::shared_ptr<const Ragged> entries = nullptr; };
  struct Aside { int output; std::optional<std::vector<int64_t>> numbers; };
  const std::vector<Slice>& slices() const { return slices_; }
  const std::vector<Literal>& literals() const { return literals_; }
  const std::vector<std::pair<int, c10::IValue>>& replaced() const { return replaced_; }
  const std::vector<int>& weighted() const { return weighted_; }
  const std::vector<Placement>& outputs() const { return outputs_; }
  // Of element `element` of output i, or of output i where that is no list (-1).
  Placement output_at(size_t i, int element) const {
    const size_t at = by_element_ && element >= 0 ? static_cast<size_t>(element) : i;
    return at < outputs_.size() ? outputs_[at] : Placement::replicate();
  }
  const std::vector<int>& real_arguments() const { return real_arguments_; }
  const Denominator& denominator() const { return denominator_; }
  const std::optional<Instead>& instead() const { return instead_; }
  const std::vector<ArgRef>& whole() const { return whole_; }
  bool is_whole(ArgRef arg) const { return std::find(whole_.begin(), whole_.end(), arg) != whole_.end(); }
  // Null where it is not left aside.
  const Aside* aside(int output) const {
    const auto found = std::find_if(aside_.begin(), aside_.end(), [&](const Aside& a) { return a.output == output; });
    return found == aside_.end() ? nullptr : &*found;
  }
  bool outputs_scaled_by_rows() const { return scale_outputs_by_rows_; }

 private:
  const c10::FunctionSchema* schema_;
  int64_t batch_;
  std::vector<Arg> args_;
  RowCounter* counter_ = nullptr;
  std::vector<Slice> slices_;
  std::vector<Literal> literals_;
  std::vector<std::pair<int, c10::IValue>> replaced_;
  std::vector<int> weighted_;
  std::vector<Placement> outputs_;
  std::vector<int> real_arguments_;
  Denominator denominator_;
  std::optional<Instead> instead_;
  std::vector<ArgRef> whole_;
  std::vector<Aside> aside_;
  bool scale_outputs_by_rows_ = false;
  bool by_element_ = false;
};

class UserOperator;  // user_rules.cc

// A function of a table, or what a user wrote of an operator. It is asked only when at least one tensor argument is Shard or Partial, and is
// responsible for every tensor argument: each must be covered by require() or be Replicate on purpose.
class RuleFn {
 public:
  using Function = Verdict (*)(OpCall&);
  RuleFn(Function function) : function_(function) {}
  explicit RuleFn(const UserOperator& user) : user_(&user) {}

  Verdict operator()(OpCall& call) const { return user_ == nullptr ? function_(call) : ask_user(call); }
  const UserOperator* user() const { return user_; }
  Function function() const { return function_; }

 private:
  Verdict ask_user(OpCall& call) const;

  Function function_ = nullptr;
  const UserOperator* user_ = nullptr;
};

enum RuleFlags : uint8_t {
  kPlain = 0,
  kRandom = 1,  // draws from a default generator: draws are made per micro-batch and repeated on recomputation
  kDrawsAlways = 2,  // whatever its arguments are called and say
};

struct Rule {
  const char* name;  // "aten::add" (every overload) or "aten::add.Tensor"; in-place twins ("add_") use the same entry
  RuleFn fn;
  uint8_t flags = kPlain;
};

// Note [In-place operators and out=]
// The machinery asks the entry of the functional twin for `add_`, and adds: the written argument must itself be a value of the region
// and keep its placement. Operators with out= arguments, and those that write to anything but their first argument, never split.

// The tables register themselves: static const RegisterRules kTable{{ {"aten::relu", pointwise}, ... }};
class RegisterRules {
 public:
  RegisterRules(std::initializer_list<Rule> rules);
};

// Rule functions that are right for ragged placements as well: they ask nothing of sizes along the batch but what require() does.
class RegisterRagged {
 public:
  RegisterRagged(std::initializer_list<RuleFn::Function> functions);
};

// The rule for an operator, in-place twins and copying twins of views included, or null: a table's, else the user's. Thread-safe after static
// initialisation. Lives as long as the process; where user_rules_version() has changed there may be another one.
const Rule* find_rule(const c10::FunctionSchema& schema);

// Whether the tables answer for an operator, or for one of its overloads where `overload` is empty.
bool has_built_in_rule(const std::string& name, const std::string& overload);

// "aten::add" for "aten::add_"; empty where the name is not that of an in-place twin.
std::string_view functional_twin(std::string_view name);

// The rule's answer; kNo where there is no rule, and for a call that goes from one device to another: a region is on one device. Where the
// rule has none for a call that mixes Partial with Shard arguments, and one for the same call with the Partial ones summed, or none for several
// Shard arguments, and one with one of them gathered (each row against all others), the answer is that one, kStaged, and `call` has
// these arguments as Replicate, and names them in whole().
Verdict ask(const Rule* rule, OpCall& call);

// Whether a part of the rows is worth a fraction of it: no whole number is.
inline bool can_be_scaled(c10::ScalarType dtype) { return c10::isFloatingType(dtype) || c10::isComplexType(dtype); }

// Whether this call of an operator with that rule draws random numbers: dropout outside of training, say, does not.
bool draws(const Rule* rule, const OpCall& call);
// The same of an operator that may draw and has no rule. Only PyTorch's own are believed.
bool may_draw(const OpCall& call);

// Every rule of the tables, sorted by name.
std::vector<const Rule*> registered_rules();

}  // namespace koila
