// A region: the part of a step that runs in micro-batches.
//
// Its files, in the order of a step's life: join.cc (an operator joins, running), record.cc (one that has run joins; values and their deferred
// tensors), instruction.cc (what is noted of it, and what it reads), paths.cc (what a pass has to run), run.cc (one micro-batch), rows_outside.cc (its
// rows of what lies outside), micro_batch_loop.cc and recovery.cc (the loop, and what it does when memory runs out), materialise.cc (values are put
// together), exact_sums.cc (and small sums as plain sums them), backward.cc (gradients), gradients.cc (those that have a graph), node.cc (the node that the engine sees), writes.cc (somebody writes to what it has read or made), departures.cc
// (values leave, or die), again.cc (the same operators once more). proof/ looks at what came out.
//
// Thread contract: a region belongs to the thread that owns the step. The autograd engine may call its node on a device thread while
// the owner waits in backward; never both at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "torchglue/base/tls.h"
#include "torchglue/compat/node.h"
#include "torchglue/memory/side_stream.h"
#include "torchglue/placement/placement.h"
#include "torchglue/placement/rule.h"
#include "torchglue/region/program.h"
#include "torchglue/statistics/moments.h"

namespace koila {

class Proof;
struct Expectations;
struct Finding;
struct Fingerprint;
struct RowRange;
struct Witness;

// Why an operator cannot run per micro-batch although its rule said so. The caller runs it at full batch.
struct CannotJoin : std::exception {};
struct RuleMismatch : CannotJoin {
  const char* what() const noexcept override { return "an output has not the shape that the rule declares"; }
};
struct AliasOfCapture : CannotJoin {
  const char* what() const noexcept override { return "a view of a capture"; }
};
struct FailsOnRows : CannotJoin {  // the full batch gives the program its own error, or none
  const char* what() const noexcept override { return "an error on a micro-batch"; }
};

class Region : public std::enable_shared_from_this<Region> {
 public:
  Region(int64_t batch, int64_t micro_batch, at::Device device);
  ~Region();

  int64_t batch() const { return batch_; }
  int64_t micro_batch() const { return micro_batch_; }
  at::Device device() const { return device_; }
  // Backward passes that were under way when it began.
  int depth() const { return depth_; }
  bool open() const { return open_; }
  // Whether the program holds something of it whose value does not exist yet.
  bool has_deferred() const;
  // What has no value yet and is looked at by tensors that the region does not know, see Note [Tensors that no operator made].
  std::vector<ValueId> looked_at() const;
  bool differentiable() const { return static_cast<bool>(node()); }
  NodePtr node() const;
  // The node that the value's deferred tensor hangs on; null when no gradient passes through it.
  const torch::autograd::Node* node_of(ValueId id) const { return values_[id].requires_grad ? node_ : nullptr; }

  // --- join.cc and record.cc ---
  // One operator call as its rule answered it.
  struct Call {
    const c10::OperatorHandle& op;
    const OpCall& answer;
    at::ArrayRef<c10::IValue> arguments;  // on the full batch; deferred tensors among them
    bool random;
    const OpState* state = nullptr;  // null: as it is now
  };
  // What the tape knows of an output, when the operator had already run at full batch.
  struct KnownOutput {
    Placement placement;
    at::Tensor handed_back;  // defined: the operator returns this argument, and the rest says nothing
    at::Tensor tensor;       // alive: it becomes the deferred tensor; else undefined
    ValueId alias_of = kNoValue;  // a value of the region whose storage it shares
    at::Storage storage;          // for a dead one whose storage lives on in an alias
    c10::SmallVector<int64_t, 5> sizes, strides;
    int64_t storage_offset = 0;
    at::ScalarType dtype = at::ScalarType::Float;
    c10::DispatchKeySet keys;
    bool requires_grad = false;
    bool keep_data = false;  // somebody may point into its memory: it stays, and counts as materialised
  };
  // Adds the operator, runs it for micro-batch 0, and gives the program deferred tensors. Throws CannotJoin when it turns out that it cannot run so, and out of memory when one row does not fit; the operator is then not part of the region.
  std::vector<c10::IValue> add(const Call& call);
  // Adds the operator without running it, and gives the tensors that stand for its outputs.
  std::vector<at::Tensor> add_known(const Call& call, std::vector<KnownOutput> outputs);
  size_t operators() const { return instructions_.size(); }
  void take_back_told();  // the last operator, a write that it was told of (tell_of_write), and that failed
  // The program's tensor becomes a sum that rows are added to, or one that is split so. False, and nothing done, where it is not zeros that nobody else looks at.
  bool take_zeros(const at::Tensor& zeros, const Placement& placement);
  // Runs micro-batch 0 of everything added. Throws out of memory when one row does not fit.
  void catch_up();
  // Whether capturing this tensor would close a cycle in the autograd graph (its graph hangs on this region's node).
  bool would_cycle(const at::Tensor& capture) const;
  void close();  // nothing joins any more
  // Notes that a seed joins whose first call has this key. False when it belongs to another step: it has joined `times` times already, and nothing of before is waiting for its value (or too much is, see Note [Steps without a backward]).
  bool begin_with(uint64_t key, int times);
  // The program's tensor `tensor` stands for the value from now on. Its storage and strides are set already.
  void rebind(ValueId value, const at::Tensor& tensor);
  // The value, which has no memory yet, gets it in `storage`, which has none either. False: it has some, or others than the region's tensors look at what it was to lie in.
  bool move_to(ValueId value, const at::Storage& storage);
  // Gradients pass through the value from now on, whose tensor this is.
  void attach_gradient(ValueId value, const at::Tensor& tensor);
  // Whether an in-place operator on the value may run per micro-batch. `keeps_data`, in a conversion: the value has kept its data, in which the program's writes show already; micro-batches write to what they have made.
  bool may_write(ValueId value, bool keeps_data = false) const { return (keeps_data || !groups_[values_[value].group].materialised) && !groups_[values_[value].group].uncertain; }
  bool shares_memory(ValueId value) const;  // with another value
  // An operator outside the region is about to write to the value: its tensors are ordinary ones from now on. Throws when a view of it could then be read with a gradient that does not know of the write. `with_graph`: what is written has one.
  void hand_out_group(ValueId value, bool with_graph = false);
  // Its tensor is an ordinary one from now on, with its full value: a marked one when it is split, unless it is to be `whole`.
  void hand_over(ValueId value, const at::Tensor& tensor, bool whole = false);
  bool is_fresh_memory(ValueId value) const;  // which nobody has read or written to yet
  bool is_constant(ValueId value) const;      // made for the batch, with the same entries for all rows
  void consume(ValueId value);                // a plain operator's graph now hangs on the value
  // A collective operation is about to write to `storage`, which has its memory: see Note [Collectives].
  void before_exchange(const c10::StorageImpl* storage);
  // The tensor holds what other processes sent, and no longer the value: it is an ordinary one from now on.
  void hand_out_exchanged(ValueId value);

  // --- materialise.cc ---
  // Gives these values (and what shares their storage) their full value. Throws out of memory when one row does not fit.
  void materialise(const std::vector<ValueId>& values);
  void materialise_held();
  // Shows the value's rows to `observer`, each once, and gives it and what the program holds their full value on the way.
  void observe(ValueId value, RowObserver& observer);
  // The same of a real tensor.
  void observe(const at::Tensor& full, const Placement& placement, RowObserver& observer) const;
  // All micro-batches catch up, and nothing joins any more: see Note [Stages].
  void end_stage();
  bool materialised(ValueId value) const { return groups_[values_[value].group].materialised; }
  // Refuses when the program hung a hook on a tensor whose full gradient the region never has. Before the engine runs any hook.
  void check_hooks();

  // --- rows_again.cc ---
  // Frees the memory of a value that regions alone read, all of whose readers are given rows from here on. False when it cannot be made again by the row.
  bool let_go(ValueId value, const at::Storage& storage);
  // Whether anybody still reads such a value.
  bool is_read_by_rows() const;
  bool at_work_reads_whole(const Capture& capture) const;  // at its full size: it would be made again at once
  // Rows of such a value.
  at::Tensor rows_again(ValueId value, Rows rows);
  // The memory of what it reads in that storage is another now.
  void moved(const c10::StorageImpl* storage);

  // --- recovery.cc ---
  // Halves the micro-batch, after a pass over `failed` rows where these were fewer, and forgets micro-batch 0. False when it is one row already, or the
  // program has seen random draws of micro-batches of this size.
  bool shrink();
  bool shrink(int64_t failed);
  // Frees micro-batch 0's graph; it is run again when needed. False when there was none.
  bool drop_first_frame();
  bool holds_first_frame() const { return first_.next > 0; }
  bool spare_first_frame() { return at_work_ == 0 && drop_first_frame(); }  // for an allocation that fails elsewhere
  bool is_unreachable() const { return at_work_ == 0 && !has_deferred() && node() == nullptr && looked_at().empty(); }
  // Frees what can be made again, the graphs of earlier stages' first micro-batches, or else moves boundaries outside. False when there was nothing.
  bool make_room();

  // --- backward.cc, node.cc and gradients.cc ---
  // Gradients of all captures that the engine asks for, by edge. `gradients`: of the node's outputs, undefined where none came.
  std::vector<at::Tensor> backward(std::vector<at::Tensor>&& gradients);
  // The same where the pass makes a graph of itself (create_graph=True): deferred tensors, see Note [Gradients that have a graph].
  std::vector<at::Tensor> differentiate(const std::vector<at::Tensor>& gradients);
  // The same of a pass from outputs of the region's node to values that lie within. Nothing, and nothing done, where it cannot give them.
  std::optional<std::vector<at::Tensor>> differentiate_inside(const std::vector<torch::autograd::Edge>& roots, const std::vector<at::Tensor>& gradients, const std::vector<torch::autograd::Edge>& inputs);
  // A micro-batch's gradient of one use of a capture.
  void add_gradient(uint32_t use, Rows rows, at::Tensor&& gradient);
  // Whether a gradient of `from` flows within the region to what shares memory with `to`.
  bool leads_to(ValueId from, ValueId to) const;
  // Edges of the node that gradients of the value may flow along.
  std::vector<size_t> edges_behind(ValueId value) const;
  // The engine has let go of what the nodes that the last pass ran had saved.
  void backward_done();
  void release();
  void let_go_of_graphs();  // no backward pass comes by it any more: see Note [What a region may own]
  void end_refused();  // by a pass that was to use up its graph: no other comes through
  void check_saved() const;
  bool released() const { return released_; }

  const Value& value(ValueId id) const { return values_[id]; }
  const Group& group(uint32_t id) const { return groups_[id]; }
  const std::vector<Capture>& captures() const { return captures_; }
  void on_death(const c10::TensorImpl* impl, ValueId id) noexcept;
  // Whether the tensor still stands for the value, and may go on to without a gradient edge.
  bool keeps(const c10::TensorImpl* impl, ValueId id) const noexcept {
    return !released_ && id < values_.size() && values_[id].impl == impl && !values_[id].requires_grad;
  }
  void before_write(const c10::StorageImpl* storage);  // that is about to happen, in place
  bool captures_storage(const c10::StorageImpl* storage) const;
  // Whether it reads the memory when it runs, or has put a value there that the program holds, or that operators read.
  bool concerns_storage(const c10::StorageImpl* storage) const;
  // Whether the tensor shares memory with a value that has its memory, and versions with none such: an alias by `.data`.
  bool is_behind(const at::Tensor& tensor) const;
  // Memory that values were put into is about to be written to by something that no operator of the region sees: they are ordinary tensors from now on.
  void give_up(const c10::StorageImpl* storage);
  // Whether a tensor that stands for the value still looks at its memory: `.data = ...` gives it other memory.
  bool lies_in(ValueId value, const c10::StorageImpl* storage) const {
    const Group& group = groups_[values_[value].group];
    const c10::StorageImpl* home = group.storage ? group.storage.unsafeGetStorageImpl() : group.filled ? group.filled : group.kept;
    return home == nullptr || home == storage;
  }
  std::vector<char> values_elsewhere() const;  // by value: whether it does not, or did not when it died
  void given_memory(const at::Tensor& tensor, const void* before);  // one tensor alone, which had memory with others `before`
  void before_resize(const c10::StorageImpl* storage);
  void resized(const c10::StorageImpl* storage);

  // --- proof/ ---
  // What PyTorch had computed of the value before: micro-batches are held against it.
  void expect(ValueId value, Witness witness);
  // An invariant does not hold (proof/invariants.h): nothing is computed any more, and the next to ask is refused. The first that does not is told of.
  void broken(const char* invariant, const std::string& detail, size_t instruction = SIZE_MAX);
  void broken(const Finding& finding);
  // Refuses what is asked of a region that was found wrong.
  void check_sound();

  struct Statistics {
    int64_t runs = 0, forward_only = 0, halvings = 0;
    double seconds = 0;
  } statistics;

 private:
  friend class RegionNode;
  friend class GradientSink;
  friend class Proof;

  // join.cc
  class Joining;

  // instruction.cc and record.cc
  Instruction instruction_for(const Call& call);
  uint32_t line_to_tell_of(const c10::OperatorHandle& op) const;
  uint32_t capture(const at::Tensor& tensor);
  uint32_t use(uint32_t capture, const Placement& placement);
  ValueId new_value(const Placement& placement, uint32_t group, bool requires_grad, bool random);
  uint32_t new_group(ValueId base);
  static at::Tensor make_deferred(const at::Tensor& like, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, at::Storage storage);
  void install(ValueId id, const at::Tensor& tensor);
  void attach_gradients(uint32_t group);
  void forget(ValueId id) noexcept;
  void prune();

  // writes.cc
  void note_write(const Instruction& in);    // that is about to join
  void forget_write(const Instruction& in);  // that did not join
  bool saves_copy(const Instruction& in, ValueId id) const;
  bool is_saved_by_hook(const Instruction& in, ValueId id) const;
  bool lies_in_another(const Frame& frame, uint32_t group) const;
  at::Tensor apart_from_operands(const Frame& frame, const Instruction& in, ValueId id, const at::Tensor& local) const;

  // run.cc
  Schedule schedule(const std::vector<ValueId>& keep) const;
  std::vector<size_t> differentiable_path(const std::vector<ValueId>& from) const;  // instructions that gradients pass through, the last first
  std::vector<size_t> on_the_way(const std::vector<size_t>& path) const;  // those of them that gradients pass on the way to a capture that is wanted
  void run(Frame& frame, size_t until, const Schedule* schedule);
  void run_first_frame();
  torch::jit::Stack call_instruction(Frame& frame, const Instruction& instruction);
  // A new result as it lies in memory at the full batch, where it has these strides.
  static at::Tensor laid_out(const Frame& frame, const Instruction& in, at::IntArrayRef strides, const at::Tensor& local);
  void set_local(Frame& frame, ValueId id, const at::Tensor& local) const;
  at::Tensor operand(Frame& frame, const Operand& operand, const Instruction& in);
  at::ScalarType type_of_sum(const Instruction& in) const;
  at::Tensor use_local(Frame& frame, uint32_t use);
  std::vector<ValueId> in_use() const;
  std::vector<ValueId> held_deferred() const;
  bool is_looked_at_still(uint32_t group) const;
  void materialise(const std::vector<ValueId>& values, RowWatch watch);
  class Materialisation;
  std::vector<Held> to_be_held(const std::vector<ValueId>& values) const;
  void make_full(std::vector<Held>& held);
  at::Tensor empty_full(uint32_t group) const;
  int64_t lead() const { return lead_ > 0 ? std::min(lead_, micro_batch_) : micro_batch_; }  // rows of micro-batch 0
  int64_t end_of_pass(int64_t begin, int64_t size) const { return std::min(batch_, begin + (begin == 0 ? std::min(lead(), size) : size)); }
  // Of a step that is sized from its first rows, once all operators have run for these and before any others do.
  void choose_size();
  // False where these rows have been stored before.
  bool store_rows(Held& held, const Frame& frame);

  // exact_sums.cc
  at::Tensor divided(Frame& frame, const Instruction& in, const at::Tensor& sum);
  void note_sum(Frame& frame, ValueId id, const at::Tensor& local) const;
  bool is_small_sum(ValueId id) const;
  bool is_without_rows(const Instruction& in) const;
  Origin origin_of(ValueId id) const;
  bool has_sums(const Frame& frame, const Origin& origin) const;
  void add_sums(Held& held, const Frame& frame);
  // Parts of boundaries that lie outside the device's memory: asked for ahead of their use, and had.
  void ask_ahead(Rows rows, const Schedule& plan);
  at::Tensor bring_in(uint32_t use, Rows rows, const at::Tensor& slice);
  // Writes a micro-batch's part into its place; where that lies outside, beside the work.
  void send_out(const at::Tensor& full, const Placement& placement, Rows rows, const at::Tensor& part);
  at::Tensor slice_of_use(uint32_t use, Rows rows) const;
  void fill(const Held& held);
  void check_captures(const Schedule& plan, bool in_backward = false) const;
  bool is_read_there(const c10::StorageImpl* storage) const;
  void check_moved(const Schedule& plan) const;  // of a backward pass

  // proof/rules.cc
  // Puts the rules of the operators in `plan` to the test; refuses when one is wrong.
  void verify(const Schedule& plan);
  struct Trial;
  size_t signature_of(const Instruction& instruction, bool sizes) const;
  Trial attempt(const Instruction& instruction, Frame& all, Rows rows, double share, std::vector<at::Tensor>& directions, double phase);
  std::vector<std::optional<Fingerprint>> prints(const Instruction& instruction, const Trial& trial, int64_t all, RowRange rows, size_t& outputs) const;
  double coarsest(const Instruction& instruction) const;
  // What is wrong with the operator, or "".
  std::string contradiction(const Instruction& instruction, Frame& all, Rows first, Rows second);

  // proof/
  [[noreturn]] void condemn(const Finding& finding);
  void meet(size_t instruction, Frame& frame);
  void check_part(size_t instruction, const Value& value, const at::Tensor& local, Rows rows);
  void check_counts(const std::vector<Held>& held);
  void lose_handed_out();
  void let_go_of_used_up(const std::vector<ValueId>& values);
  void consume_ends();
  // A micro-batch's graph has come to the use, with a gradient or without.
  void reached(uint32_t use, Rows rows);

  // backward.cc
  using Root = std::pair<ValueId, at::Tensor>;  // and its gradient
  class BackwardPass;
  class GraphPass;
  void check_pass(const std::vector<at::Tensor>& gradients) const;
  void begin_pass(const std::vector<ValueId>& roots);
  std::vector<at::Tensor> take_totals();
  [[noreturn]] void refuse(const std::string& reason) const;
  void leave_room_for(const std::vector<at::Tensor>& gradients);
  int64_t with_another_size(int64_t begin, int64_t end) const;
  void halve(int64_t failed);  // rows that did not fit
  int64_t enough_rows() const;  // fewer make a step slow
  bool first_frame_needs(ValueId id) const noexcept;
  void bury(ValueId id, const c10::TensorImpl* impl) noexcept;
  void bury_dead();

  // While it lives, micro-batch 0 may be what the region works on.
  class AtWork {
   public:
    explicit AtWork(Region& region) : region_(region) { ++region_.at_work_; }
    ~AtWork() { --region_.at_work_; }
    AtWork(const AtWork&) = delete;
    AtWork& operator=(const AtWork&) = delete;

   private:
    Region& region_;
  };

  int64_t batch_;
  int64_t micro_batch_;
  int at_work_ = 0;
  int64_t lead_ = 0;  // of a step sized from its first rows: rows of micro-batch 0, where they are fewer than the others'; 0: they are not
  at::Device device_;
  int depth_;
  bool open_ = true;
  bool released_ = false;
  bool over_ = false;  // no gradient will be asked for: it lives on for values that have not been read
  bool observed_random_ = false;  // a value with random draws in it has been shown to the program
  std::string condemned_;  // why nothing of it is to be had any more; "": it is sound
  std::shared_ptr<Finding> broken_;  // the first invariant that does not hold
  std::shared_ptr<Expectations> expected_;  // null: none are left
  bool no_room_for_proof_ = false;  // it ran out of memory: this step is not proven
  Proof* proof_ = nullptr;  // of the backward pass under way
  const char* saved_is_lost_ = nullptr;  // what happened to memory that operators may have saved for backward

  std::vector<Instruction> instructions_;
  std::vector<Value> values_;
  std::vector<Group> groups_;
  std::map<uint32_t, bool> written_groups_;  // that an operator of the region writes to in place; whether what hooks have saved of it stays as it is
  std::vector<Capture> captures_;
  ska::flat_hash_map<const c10::TensorImpl*, uint32_t> capture_index_;  // the latest capture of a tensor
  std::vector<Use> uses_;
  std::vector<at::Tensor> totals_;     // by use: the gradient summed so far
  std::vector<int64_t> totals_until_;  // by use: rows summed so far
  std::vector<int64_t> reached_until_;  // by use: rows whose graphs have come to it
  std::vector<char> wanted_;           // by capture: the engine asks for its gradient
  std::map<uint64_t, int> begun_with_;
  std::set<size_t> pass_;              // instructions whose nodes the last backward pass has run
  std::set<size_t> used_up_;           // those whose nodes have saved something, which has been let go since
  std::vector<Ahead> ahead_;
  SideStream side_;
  Frame first_;                        // micro-batch 0, alongside the program
  torch::autograd::Node* node_ = nullptr;  // owned by the deferred tensors' gradient edges
  std::vector<std::pair<ValueId, const c10::TensorImpl*>> dead_;  // deferred tensors that died on other threads; under a lock of departures.cc
};

}  // namespace koila
