#include "torchglue/tape/op_log.h"

#include <memory>
#include <utility>

namespace koila {

namespace {

at::ArrayRef<c10::IValue> move_to(Arena& memory, c10::IValue* from, size_t count) {
  auto* room = memory.room_for<c10::IValue>(count);
  std::uninitialized_move_n(from, count, room);
  return at::ArrayRef<c10::IValue>(room, count);  // in braces it would be a list of these two
}

// The log owns what its calls refer to; that the program must not change it is what makes it const there.
c10::IValue* owned(at::ArrayRef<c10::IValue> args) { return const_cast<c10::IValue*>(args.data()); }

void destroy(at::ArrayRef<c10::IValue> args) { std::destroy_n(owned(args), args.size()); }

}  // namespace

void OpLog::add(const TapeOp& op, std::vector<c10::IValue>& args) {
  TapeOp added = op;
  added.refs = memory_.copy_of(std::span<const TapeRef>(op.refs));
  added.outputs = memory_.copy_of(std::span<const TapeValueId>(op.outputs));
  added.args = move_to(memory_, args.data(), args.size());
  args.clear();
  ops_.push_back(added);
}

void OpLog::keep(const std::vector<char>& needed, std::vector<int32_t>& new_op) {
  new_op.assign(ops_.size(), kNoProducer);
  size_t kept = 0;
  for (size_t i = 0; i < ops_.size(); ++i) {
    TapeOp& op = ops_[i];
    if (needed[i]) {
      const auto args = move_to(spare_, owned(op.args), op.args.size());
      destroy(op.args);
      op.args = args;
      op.refs = spare_.copy_of(std::span<const TapeRef>(op.refs));
      op.outputs = spare_.copy_of(std::span<const TapeValueId>(op.outputs));
      new_op[i] = static_cast<int32_t>(kept);
      if (kept != i) ops_[kept] = op;
      ++kept;
    } else {
      destroy(op.args);
    }
  }
  ops_.erase(ops_.begin() + static_cast<ptrdiff_t>(kept), ops_.end());
  memory_.reset();
  std::swap(memory_, spare_);
}

void OpLog::clear() {
  for (const TapeOp& op : ops_) destroy(op.args);
  ops_.clear();
  memory_.reset();
}

void OpLog::swap(OpLog& other) noexcept {
  std::swap(ops_, other.ops_);
  std::swap(memory_, other.memory_);
  std::swap(spare_, other.spare_);
}

}  // namespace koila
