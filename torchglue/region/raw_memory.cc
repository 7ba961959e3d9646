#include "torchglue/region/raw_memory.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "torchglue/base/foreign_memory.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/memory/before_free.h"
#include "torchglue/memory/origin.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom_watch.h"
#include "torchglue/region/deferred.h"
#include "torchglue/step/session.h"
#include "torchglue/updates/late_updates.h"

namespace koila {

namespace {

uint64_t digest_of(const c10::StorageImpl& storage) {
  const void* memory = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get();
  return memory != nullptr ? koila::digest_of(memory, storage.nbytes()) : 0;
}

// Whether the step has made the tensor with a gradient, or has read it: then what is written to it now is not what would be computed again.
bool matters(const Tape& tape, const c10::TensorImpl& tensor) {
  const TapeValueId id = tape.find(&tensor);
  if (id == kNoTapeValue) return false;
  const TapeValue& value = tape.values()[id];
  if (value.differentiable()) return true;
  return std::any_of(tape.ops().begin(), tape.ops().end(), [&](const TapeOp& op) {
    return std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& ref) { return tape.values()[ref.value].group == value.group; });
  });
}

bool matters(Session& s, const c10::TensorImpl& tensor, const c10::StorageImpl* storage) {
  if (matters(s.tape, tensor)) return true;
  if (deferred_registry().find(&tensor).region != nullptr) return true;
  const auto regions = s.live_regions();
  return std::any_of(regions.begin(), regions.end(), [&](const auto& region) { return region->captures_storage(storage); });
}

}  // namespace

RawMemory& raw_memory() {
  static auto* memory = new RawMemory;  // never destroyed: tensors may outlive static destruction
  return *memory;
}

RawMemory::Block* RawMemory::find(const c10::StorageImpl* storage) {
  const auto known = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) { return b.storage._unsafe_get_target() == storage && !b.storage.expired(); });
  return known == blocks_.end() ? nullptr : &*known;
}

void RawMemory::note(const c10::TensorImpl& tensor, bool unseen) {
  c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  if (storage->device_type() != c10::DeviceType::CPU || storage->nbytes() == 0) return;
  fresh_ = true;
  if (Block* known = find(storage); known != nullptr) {
    if (unseen && !known->behind) {
      known->written |= known->changed(*storage);
      known->version.reset();
      known->digest = digest_of(*storage);
      known->behind = true;
    }
    return;
  }
  blocks_.erase(std::remove_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.storage.expired() && !b.written; }), blocks_.end());
  Block block{c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)), digest_of(*storage), std::nullopt, 0};
  block.behind = unseen;
  if (!unseen && !const_cast<c10::TensorImpl&>(tensor).is_inference()) {
    block.version = tensor.version_counter();
    block.at_version = block.version->current_version();
  }
  blocks_.push_back(std::move(block));
  koila::before_free.store([](const void* memory) {
    if (std::this_thread::get_id() == session().owner) raw_memory().before_free(memory);
  });
}

bool RawMemory::Block::changed(const c10::StorageImpl& now) const {
  return written || (!(version && version->current_version() != at_version) && digest_of(now) != digest);
}

void RawMemory::look() {
  for (Block& block : blocks_) {
    const auto now = block.storage.lock();
    block.written |= now && block.changed(*now);
  }
  fresh_ = false;
}

void RawMemory::before_free(const void* memory) {
  for (Block& block : blocks_) {
    const auto& storage = *block.storage._unsafe_get_target();  // which a weak pointer keeps, with what it has
    if (!block.written && const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get() == memory) block.written = block.changed(storage);
  }
}

void RawMemory::made_again(const c10::StorageImpl* storage) {
  if (Block* block = find(storage); block != nullptr) block->digest = digest_of(*storage);
}

void RawMemory::clear() {
  *this = RawMemory();
  koila::before_free.store(nullptr);
}

bool RawMemory::changed(const std::function<bool(const c10::StorageImpl*)>& concerns) const {
  return std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& block) {
    if (!concerns(block.storage._unsafe_get_target())) return false;
    const auto now = block.storage.lock();
    return block.written || (now && block.changed(*now));
  });
}

void RawMemory::begin_silent_write(const at::Tensor& t) {
  if (Block* block = find(storage_of(t)); block != nullptr && !block->behind) block->written = block->changed(*storage_of(t));
}

void RawMemory::end_silent_write(const at::Tensor& t) {
  if (Block* block = find(storage_of(t)); block != nullptr && !block->behind) block->digest = digest_of(*storage_of(t));
}

// A thread that Python has joined has still to end, and gives what it leaves its value at its very end.
void wait_for_value(const c10::StorageImpl* storage) {
  constexpr std::chrono::milliseconds kStep{1};
  constexpr int kSteps = 300;
  for (int i = 0; i < kSteps && deferred_registry().awaits_value(storage); ++i) std::this_thread::sleep_for(kStep);
}

void before_raw_access(const c10::TensorImpl& tensor) {
  Session& s = session();
  if (!s.rescue || NoRawAccess::active() || c10::raw::intrusive_ptr::use_count(const_cast<c10::TensorImpl*>(&tensor)) == 0) return;
  if (!works_for_owner() && deferred_registry().any()) return wait_for_value(tensor.unsafe_storage().unsafeGetStorageImpl());
  if (std::this_thread::get_id() != s.owner || s.engine_depth > 0 || s.converting) return;
  const c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr || (s.tape.empty() && !deferred_registry().any() && !late_updates().any() && !s.fresh_zeros.any() && s.live_regions().empty())) return;
  const NoRawAccess koila;
  watched_read([&] { materialise_storage(storage); });
  const at::Tensor handle(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&tensor)));
  s.pin([&](Tape& tape) { tape.pin(handle); });
  const auto entry = deferred_registry().find(&tensor);
  if (entry.region != nullptr && entry.region->is_fresh_memory(entry.value)) return entry.region->shared_from_this()->hand_over(entry.value, handle);
  if (matters(s, tensor, storage)) raw_memory().note(tensor);
}

void before_storage_is_wrapped(const c10::StorageImpl* storage) {
  Session& s = session();
  if (!s.rescue || std::this_thread::get_id() != s.owner || s.engine_depth > 0 || s.converting) return;
  at::Tensor found;
  for (const TapeValue& value : s.tape.values()) {
    if (!found.defined() && !value.is_copied() && value.lies_in(storage)) found = value.lock();
  }
  for (const auto& region : s.live_regions()) {
    for (const Capture& capture : region->captures()) {
      if (!found.defined() && capture.tensor.defined() && storage_of(capture.tensor) == storage) found = capture.tensor;
    }
  }
  if (found.defined() && matters(s, *found.unsafeGetTensorImpl(), storage)) raw_memory().note(*found.unsafeGetTensorImpl());
}

void refuse_raw_access_of_program(const c10::StorageImpl& storage) {
  Session& s = session();
  if (deferred_registry().is_lost(&storage)) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, kUnderKoila, "a tensor of a step that ran out of memory, and could not be made again, is read.");
  }
  const bool owner = std::this_thread::get_id() == s.owner;
  if (!s.rescue || operator_in_progress() || NoRawAccess::active() || (owner && s.engine_depth > 0) || !deferred_registry().awaits_value(&storage)) return;
  refuse_split_step(describe_out_of_memory(""), owner ? "the program read the storage of a tensor inside the step, and not the tensor." : "another thread read a tensor inside the step.", 0);
}

}  // namespace koila
