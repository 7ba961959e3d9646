// The tape: the operator calls since the last step boundary, as SSA values.
//
// Thread contract: a tape belongs to one thread; nothing here locks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "torchglue/base/random_state.h"
#include "torchglue/base/tls.h"
#include "torchglue/tape/hold.h"
#include "torchglue/tape/op_log.h"

namespace torch::autograd {
struct Node;
}

namespace koila {

inline constexpr int kRunAgainAtMost = 64;      // operators in a row, to have a value again that somebody let go of
inline constexpr int64_t kSmallAtMost = 4096;   // bytes; see Note [Small things that are gone]
inline constexpr int64_t kShareOfOrigins = 200;  // see Note [What the tape holds]
inline constexpr size_t kCreatedAtLeast = 4096;  // bytes; smaller constants are captures like any other tensor

// Note [What the tape holds]
// The tape must not change the program's memory, so tensors are held weakly, with exceptions that cost next to nothing in a training step.
// A tensor that enters the differentiable part without being differentiable itself, and that no operator can make again (input data, labels,
// random draws), is held by the graph that it enters, through a hook on its node: when the program drops the graph, or the tape is
// cut at the end of the backward pass, it goes. What operators can make again (positions, frequencies, masks) is not held, but what it is made from
// is, while all of that stays under a two-hundredth of the memory in use; where it is itself no larger than what is left of that, it is held like an input (labels of a minibatch, images that
// were scaled), since what it is made from may go. And 0-dim captures are held, and small ones, see Note [Small things that are gone].
// A weak reference keeps the TensorImpl's address from being reused, and not its memory.
struct TapeValue {
  explicit TapeValue(c10::weak_intrusive_ptr<c10::TensorImpl> impl) : weak(std::move(impl)) {}

  c10::weak_intrusive_ptr<c10::TensorImpl> weak;
  at::Tensor strong;                      // 0-dim captures, small ones, and copies of what was written to since
  std::weak_ptr<Hold> hold;               // see Note [What the tape holds]
  int32_t producer = kNoProducer;         // operator, or kNoProducer: a capture
  int32_t output = 0;                     // flat output number of the producer
  uint32_t group = 0;                     // storage group
  const void* storage = nullptr;          // for comparison only
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_of_capture{c10::intrusive_ptr<c10::StorageImpl>()};  // so that the address is no other's
  uint32_t version = 0;                   // version counter when it came to be: a later one shows writes through other views
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  int64_t storage_offset = 0;
  at::ScalarType dtype = at::ScalarType::Float;
  at::Device device = at::kCPU;
  bool requires_grad = false;             // what tensor.requires_grad said
  const void* grad_fn = nullptr;          // its node then, for comparison only,
  uint64_t node_number = 0;               // that one's sequence number,
  uint32_t output_nr = 0;                 // and which of its inputs stands for the value
  bool read_unhooked = false;             // an operator has read it when no hook of the program's hung on it
  bool entered = false;                   // has entered the differentiable part from outside
  bool was_computed = false;              // a leaf that requires grad, which an operator of the step made of several tensors: no parameter
  bool conjugated = false;                // lazily: its memory holds the conjugate
  bool negated = false;                   // the same of the negative
  uint64_t foreign = 0;                   // digest of memory that is not PyTorch's, see Note [Foreign memory]
  bool is_view = false;                   // shares the storage of an input of its producer
  bool exchanged = false;                 // its tensor holds what other processes sent, see Note [Collectives on the tape]
  int64_t small = 0;                      // bytes, as counted in Tape::held_small_

  bool is_capture() const { return producer == kNoProducer; }
  // Whether gradients pass through it. A view made under no_grad says that it requires grad, and has no node.
  bool differentiable() const { return is_capture() ? requires_grad : grad_fn != nullptr; }
  // Whether a node that the tensor has now is the operator's own. An in-place write through a view gives its base, and a view of a base
  // that was written to, another one.
  bool known_node(const torch::autograd::Node* node) const;
  void set_node(const at::Tensor& tensor);
  // The tensor, or undefined when the program has dropped it and the tape does not hold it; a capture also while the program has given it other memory (`.data = ...`).
  at::Tensor lock() const;
  int64_t bytes() const;
  // Whether the program's tensor is there, and in that storage still: it may have got another one, and something else the address of the old.
  bool lies_in(const void* memory) const;
  // Whether anybody besides the tape holds it.
  bool held_elsewhere() const;
  // Whether `strong` is a copy from before its tensor was written to.
  bool is_copied() const { return strong.defined() && strong.unsafeGetTensorImpl() != weak._unsafe_get_target(); }
};

// Whether who owns the memory has written to it since, and no operator: see Note [Foreign memory].
bool is_filled_anew(const TapeValue& value);

// A node of the program's own that hangs on values of the tape, see Note [Bridges].
struct Bridge {
  struct End {
    uint32_t edge;  // of the node's
    TapeValueId value;
  };
  torch::autograd::Node* node;  // while `alive` says so
  std::weak_ptr<Hold> alive;
  std::vector<End> ends;
};

struct OpTraits;

// Whether this call drew from a generator, going by its arguments: dropout outside of training did not.
bool drew(const TapeOp& op);

// Bytes in use on the device of that number, or of the CPU (-1). Set once; until then nothing is in use.
void set_bytes_in_use(int64_t (*in_use)(int device));

class Tape {
 public:
  // `replay`: of a step within a backward pass.
  explicit Tape(bool replay = false) : replay_(replay) {}

  // Before the call: what the operator is asked. After: what it gave. Between the two the call may throw (then discard()).
  // `arguments` are the operator's arguments as on the stack.
  void begin(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);
  // `before`: where the generator stood before the call, if it is one that draws and that is known.
  void commit(at::ArrayRef<c10::IValue> arguments, at::ArrayRef<c10::IValue> results, const RandomState* before = nullptr);
  void discard();

  // A collective operation is about to read the tensor's memory, or to write to it.
  void exchange(const at::Tensor& tensor, bool written);

  // Drops everything: the step is over.
  void cut();
  // A backward pass at the full batch is done that began at `roots`, and has kept its graph or used it up: see Note [Graphs that are left].
  void pass_over(const std::vector<torch::autograd::Node*>& roots, bool kept);
  // From now on no tensor is held that the program may want for itself alone: see Note [Tensors that are swapped].
  void hold_nothing_small() { holds_nothing_small_ = true; }

  // Before a rescue. What the program has made a leaf since (`t.requires_grad_()`, which no operator shows) is a tensor of its own, and stays as it is.
  void let_go_of_leaves();

  // The tensor, a buffer such as a running mean, is about to be written to with no version counted up: who read it before is not who reads it from now on.
  void before_silent_write(const at::Tensor& tensor);

  // Drops the calls that have to do with the values `taken`, which a region has made its own. What has nothing to do with them (another
  // network, on another batch) stays; but all goes when the region hangs on it. `captured`: whether the region reads a tensor.
  void keep_apart(const std::vector<char>& taken, const std::function<bool(const at::Tensor&)>& captured);

  // Cuts the tape if it made this tensor: a region has captured it.
  void settle(const at::Tensor& tensor);
  // It has other memory now, with the same values in it: it is who it was.
  void given_memory(const at::Tensor& tensor);
  void before_resize(const c10::StorageImpl* storage);  // by no operator: what lies there is lost

  // Drops what no live tensor descends from. Called by commit() now and then; public for the moment before a rescue.
  void collect();

  // Whether a parameter that the tape has ever seen has these sizes: gradients and optimizer state do, a batch hardly.
  bool sized_like_a_parameter(const TapeValue& value) const { return parameter_sizes_.count(at::IntArrayRef(value.sizes)) > 0; }

  // A tensor whose memory a foreign reader (NumPy, DLPack, a storage object) may point into: its storage stays where it is.
  void pin(const at::Tensor& tensor);
  void pin_storage(const c10::StorageImpl* storage);

  const std::vector<TapeOp>& ops() const { return log_.ops(); }
  // The call between begin() and commit(), or null.
  const TapeOp* pending() const { return pending_ ? &*pending_ : nullptr; }
  const std::vector<TapeValue>& values() const { return values_; }
  std::vector<TapeValue>& values() { return values_; }
  const OpState& state(uint32_t index) const { return states_[index]; }
  bool pinned(uint32_t group) const { return groups_[group].pinned; }
  bool on_capture(uint32_t group) const { return groups_[group].on_capture; }
  // The current value of a tensor, or kNoTapeValue.
  TapeValueId find(const c10::TensorImpl* impl) const;
  // Whether its tensor, if alive, still has this value: nothing was written to it in place since.
  bool is_current(TapeValueId value) const { return find(values_[value].weak._unsafe_get_target()) == value; }
  // Whether a call of the step had one, under saved-tensor hooks that were on.
  bool effects_under_hooks() const { return effects_under_hooks_; }
  // Whether the call, under these hooks, does more than give its results, and once more in backward; see Note [Effects in a checkpoint].
  bool has_effect(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, const at::impl::SavedTensorDefaultHooksTLS& hooks) const;
  // See Note [A step within a backward pass].
  bool replay() const { return replay_; }
  // Whether this call's random draws stay the full batch's.
  bool draws_whole(const TapeOp& op) const { return replay_ || !states_[op.state].grad_mode || is_behind_bridge(op); }
  // Where the call's generator stood before it, if it drew and that is known; else null.
  const RandomState* draws_of(const TapeOp& op) const { return op.draws == kNoDraws ? nullptr : &draws_[op.draws]; }
  // Those whose nodes are alive. A conversion gives them other edges.
  const std::vector<Bridge>& bridges() const { return bridges_; }
  const Bridge* bridge_of(const torch::autograd::Node& node) const;
  // Notes what the node hangs on, as of an autograd.Function. False: it hangs on a graph of the tape's that is nobody's known.
  bool bridge(const torch::autograd::Node* node);
  // What has read the result of a bridge that is gone by now cannot be made again, and becomes a part of the bridge.
  void widen_bridges();
  // A backward pass is done with the nodes of that sequence number and of later ones: what hangs on them has its value, and is not made again. False, and nothing done, where they have written
  // to something earlier.
  bool forget_from(uint64_t node_number);
  // Whether an operator on the tape can have made the node, going by its kind and age.
  bool may_have_made(const torch::autograd::Node& node) const;
  // Whether a tensor with a graph of an autograd.Function has entered, since forget_functions().
  bool saw_functions() const { return saw_functions_; }
  void forget_functions() { saw_functions_ = false; }
  bool empty() const { return ops().empty(); }
  // Whether an operator on the tape made a graph.
  bool differentiable() const { return differentiable_; }
  // Whether this one did.
  bool makes_graph(const TapeOp& op) const {
    return std::any_of(op.outputs.begin(), op.outputs.end(), [&](TapeValueId out) { return out != kNoTapeValue && values_[out].differentiable(); });
  }

 private:
  // Values that share storage. `version` is the version counter that recorded operators account for: another value of it means that
  // somebody wrote to the storage behind the tape's back, and the tensor enters anew as a capture.
  struct Group {
    uint32_t version = 0;
    bool on_capture = false;  // the storage is a capture's: writes to it are effects
    bool pinned = false;
  };

  // By sizes alone, so that looking one up takes no vector.
  struct BySizes {
    using is_transparent = void;
    bool operator()(at::IntArrayRef a, at::IntArrayRef b) const { return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end()); }
  };

  // A differentiable value is written into a small tensor that has none, see Note [Losses that are added up].
  struct WrittenInto {
    c10::OperatorHandle op;  // that makes a new tensor instead
    at::Tensor before;       // a copy
  };
  static std::optional<WrittenInto> written_into(const c10::OperatorHandle& op, const OpTraits& traits, at::ArrayRef<c10::IValue> arguments);

  void forget_constant(const at::Tensor& written);

  void begin_writes(const c10::OperatorHandle& op, const OpTraits& traits, at::ArrayRef<c10::IValue> arguments);
  bool is_worth_recording(const OpTraits& traits, at::ArrayRef<c10::IValue> arguments) const;
  void record_arguments(const c10::OperatorHandle& op, const OpTraits& traits, at::ArrayRef<c10::IValue> arguments);
  void commit_writes();
  void record_results(at::ArrayRef<c10::IValue> arguments, at::ArrayRef<c10::IValue> results, const RandomState* before);
  void drop_pending();
  void note_write_behind(const at::Tensor& tensor);
  bool may_be_in_graph(TapeValueId id) const;
  bool is_spent(const torch::autograd::Node& node) const;
  bool forget_used_up(const std::vector<torch::autograd::Node*>& roots);
  void keep_before_write(const at::Tensor& tensor);
  void keep_copy(TapeValueId id);
  bool part_from_tensor(TapeValueId id);
  void forget_written(const at::Tensor& tensor);
  static bool affordable(const at::Tensor& like, int64_t bytes, int64_t share);
  TapeValueId look_up(const at::Tensor& tensor);
  bool is_computed(const TapeValue& value) const;
  bool find_bridges(torch::autograd::Node* node, const std::vector<char>& passable, std::vector<Bridge>& found) const;
  bool add_bridges(torch::autograd::Node* node, const std::vector<char>& passable);
  std::vector<char> read_what_is_gone(std::vector<char>& opaque) const;
  TapeValueId value_on(const torch::autograd::Node& node, uint32_t output_nr) const;
  bool is_behind_bridge(const TapeOp& op) const;
  void renumber_bridges(const std::vector<TapeValueId>& new_id);
  void let_go(TapeValue& value);
  bool hangs_on_tape(const torch::autograd::Node* node) const;
  TapeValueId add_value(const at::Tensor& tensor, int32_t producer, int32_t output, uint32_t group);
  void add_ref(const at::Tensor& tensor, uint16_t arg, int32_t element);
  TapeValueId output_of(const at::Tensor& tensor, at::ArrayRef<c10::IValue> arguments);
  TapeValueId output_of_known(const at::Tensor& tensor, TapeValueId known, int32_t producer, int32_t output);
  uint32_t group_of_view(const at::Tensor& tensor, at::ArrayRef<c10::IValue> arguments) const;
  void hold_inputs(at::ArrayRef<c10::IValue> arguments, at::ArrayRef<c10::IValue> results);
  void hold_small(at::ArrayRef<c10::IValue> arguments);
  void note_nodes_of_gradient(at::ArrayRef<c10::IValue> results);
  void hold_behind_gradient(at::ArrayRef<c10::IValue> results) const;
  void hang_on(at::ArrayRef<c10::IValue> results, const std::vector<std::shared_ptr<Hold>>& holds) const;
  bool is_alone(const at::Tensor& tensor, TapeValueId value) const;
  std::shared_ptr<Hold> hold(TapeValueId value);
  std::shared_ptr<Hold> hold_origins(TapeValueId value);
  std::shared_ptr<Hold> hold_made_of_gradients(TapeValueId value);
  bool find_origins(TapeValueId value, uint32_t version, int depth, std::vector<TapeValueId>& origins) const;
  uint32_t intern_state(const OpTraits& traits);
  void leave_what_is_hung_on(const std::function<bool(TapeValueId)>& apart, std::vector<char>& needed_value, std::vector<char>& needed_op) const;
  void compact(const std::vector<char>& needed_value, const std::vector<char>& needed_op);

  OpLog log_;
  std::vector<TapeValue> values_;
  std::vector<Group> groups_;
  std::vector<OpState> states_;
  std::vector<RandomState> draws_;  // one for each call that has drawn
  std::vector<Bridge> bridges_;
  ska::flat_hash_map<const c10::TensorImpl*, TapeValueId> index_;
  std::set<std::vector<int64_t>, BySizes> parameter_sizes_;

  std::optional<TapeOp> pending_;
  std::optional<WrittenInto> written_into_;
  std::vector<c10::IValue> pending_args_;  // what it refers to, until it goes to the log; their memory is kept
  std::vector<TapeRef> pending_refs_;
  std::vector<TapeValueId> pending_outputs_;
  std::vector<at::Tensor> silent_;  // running statistics that the pending call updates
  std::vector<std::pair<at::Tensor, uint32_t>> written_;  // what it says that it writes to, and the versions before
  bool record_ = false;  // whether commit() writes the pending call down
  size_t collect_at_ = 128;
  int64_t held_for_origins_ = 0;  // bytes
  int64_t held_small_ = 0;        // bytes
  bool effects_under_hooks_ = false;
  bool capture_hangs_on_tape_ = false;  // the graph of a differentiable value was written into a capture
  bool saw_functions_ = false;
  bool holds_nothing_small_ = false;
  bool replay_;
  // A tensor of a graph that a pass has used up, while others are left.
  struct Spent {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    const void* node;
    uint64_t number;
  };
  std::vector<Spent> spent_;
  bool has_run_ = false;           // a backward pass, see Note [Graphs that are left]
  bool has_gradients_ = false;     // a pass that makes a graph is on the tape
  bool differentiable_ = false;    // whether an operator on the tape made a graph,
  uint64_t first_node_ = 0;        // from this sequence number on,
  uint64_t thread_ = 0;            // by this thread: every thread counts its own nodes
  uint64_t sequence_before_ = 0;   // at begin()
  // Sequence numbers, first and behind the last, of what operators made whose nodes are not PyTorch's own: those of the program's, with a
  // gradient in Python or in a C++ Function. In order.
  std::vector<std::pair<uint64_t, uint64_t>> own_nodes_;
  // Nodes that the engine's threads made in passes that make a graph: by thread, since each counts for itself, the first and the last sequence number.
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> nodes_of_gradients_;
};

// The node that a tensor hangs on as it stands, without bringing a view's up to date; null for leaves.
const torch::autograd::Node* node_of(const at::Tensor& tensor);

// Whether a gradient can go into an operator's result. A view made under no_grad says that it requires grad when its base does, and has no node.
inline bool has_node(const at::Tensor& result) { return result.requires_grad() && node_of(result) != nullptr; }

// Version counter of a tensor; of inference tensors, which have none, what koila counts: see Note [Versions of inference tensors].
uint32_t version_of(const at::Tensor& tensor);

}  // namespace koila
