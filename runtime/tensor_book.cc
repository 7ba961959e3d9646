#include "runtime/tensor_book.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace koila {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// What is alive at the peak is listed again when the peak has risen by a fiftieth; where that takes long, by a fifth.
constexpr std::int64_t kManyBlocks = 20'000;
std::int64_t next_list(std::int64_t listed, std::int64_t blocks) { return listed + listed / (blocks > kManyBlocks ? 5 : 50); }

// Blocks that moved to another category are worth another look at the peak when they are a hundredth of it.
constexpr std::int64_t kWorthALook = 100;

}  // namespace

void TensorBook::add(int device, std::uintptr_t address, std::int64_t bytes, const koila_origin& origin) {
  if (!is_tensor_device(device)) return;
  Tensor tensor;
  tensor.bytes = bytes;
  tensor.step = step_.load(kRelaxed);
  tensor.place = origin.place;
  tensor.op = origin.op;
  tensor.device = static_cast<std::int8_t>(device);
  tensor.category = static_cast<std::uint8_t>(category_of_new(origin, bytes));
  tensor.when = origin.when;
  if (!tensors_.insert(address, tensor)) return;
  Holdings& holdings = of(device);
  holdings.by_category[tensor.category].fetch_add(bytes, kRelaxed);
  if (is_unsettled(tensor)) holdings.unsettled.fetch_add(bytes, kRelaxed);
  const std::int64_t live = holdings.live.fetch_add(bytes, kRelaxed) + bytes;
  if (live > holdings.bar.load(kRelaxed)) raise_peak(holdings, live);
  if (keeps_trace_) add_trace(tensor, address, true);
}

void TensorBook::remove(int device, std::uintptr_t address) {
  if (!is_tensor_device(device)) return;
  Holdings& holdings = of(device);
  if (holdings.at_peak.load(kRelaxed) && holdings.at_peak.exchange(false, kRelaxed)) list_holders(device, holdings);
  const std::optional<Tensor> tensor = tensors_.take(address);
  if (!tensor) return;
  holdings.by_category[tensor->category].fetch_sub(tensor->bytes, kRelaxed);
  if (is_unsettled(*tensor)) holdings.unsettled.fetch_sub(tensor->bytes, kRelaxed);
  holdings.live.fetch_sub(tensor->bytes, kRelaxed);
  if (keeps_trace_) add_trace(*tensor, address, false);
}

koila_category TensorBook::category_of_new(const koila_origin& origin, std::int64_t bytes) const {
  switch (origin.when) {
    case KOILA_IN_FORWARD: return KOILA_ACTIVATIONS;
    case KOILA_BEFORE_GRAPH: return KOILA_INPUTS;
    case KOILA_IN_BACKWARD: return is_parameter_size(bytes) ? KOILA_GRADIENTS : KOILA_WORKSPACE;
    case KOILA_IN_OPTIMIZER:
    case KOILA_WITHOUT_GRAPH: return KOILA_WORKSPACE;
    default: return KOILA_OTHER;
  }
}

void TensorBook::move(Tensor& tensor, koila_category to) {
  Holdings& holdings = of(tensor.device);
  if (is_unsettled(tensor)) holdings.unsettled.fetch_sub(tensor.bytes, kRelaxed);
  holdings.by_category[tensor.category].fetch_sub(tensor.bytes, kRelaxed);
  holdings.by_category[to].fetch_add(tensor.bytes, kRelaxed);
  tensor.category = static_cast<std::uint8_t>(to);
}

void TensorBook::set_category(std::uintptr_t address, koila_category category) {
  std::int64_t moved = 0;
  int device = KOILA_CPU;
  tensors_.with(address, [&](Tensor& tensor) {
    if (tensor.category == category) return;
    move(tensor, category);
    moved = tensor.bytes;
    device = tensor.device;
  });
  if (moved == 0) return;
  if (category == KOILA_PARAMETERS) add_parameter_size(moved);
  look_again(of(device), moved);
}

void TensorBook::settle_updates() {
  for (int device = KOILA_CPU; device < kCudaDevices; ++device) {
    Holdings& holdings = of(device);
    if (holdings.unsettled.load(kRelaxed) == 0) continue;
    std::int64_t moved = 0;
    tensors_.for_each([&](std::uintptr_t, Tensor& tensor) {
      if (tensor.device != device || !is_unsettled(tensor)) return;
      const bool state = tensor.when == KOILA_IN_OPTIMIZER || is_parameter_size(tensor.bytes);
      move(tensor, state ? KOILA_OPTIMIZER_STATE : KOILA_OTHER);
      moved += tensor.bytes;
    });
    look_again(holdings, moved);
  }
}

bool TensorBook::is_parameter_size(std::int64_t bytes) const {
  const auto* sizes = parameter_sizes_.load(std::memory_order_acquire);
  return sizes != nullptr && std::binary_search(sizes->begin(), sizes->end(), bytes);
}

void TensorBook::add_parameter_size(std::int64_t bytes) {
  const std::lock_guard lock(sizes_mutex_);
  if (is_parameter_size(bytes)) return;
  const auto* old = parameter_sizes_.load(kRelaxed);
  auto* sizes = old != nullptr ? new std::vector<std::int64_t>(*old) : new std::vector<std::int64_t>;
  sizes->insert(std::upper_bound(sizes->begin(), sizes->end(), bytes), bytes);
  parameter_sizes_.store(sizes, std::memory_order_release);
}

void TensorBook::raise_peak(Holdings& holdings, std::int64_t live) {
  const std::lock_guard lock(holdings.lock);
  if (live <= holdings.bar.load(kRelaxed)) return;
  holdings.bar.store(live, kRelaxed);
  holdings.peak.bytes = std::max(holdings.peak.bytes, live);
  for (int c = 0; c < KOILA_CATEGORIES; ++c) holdings.peak.by_category[static_cast<std::size_t>(c)] = holdings.by_category[c].load(kRelaxed);
  holdings.peak.step = step_.load(kRelaxed);
  holdings.peak.at = std::chrono::steady_clock::now();
  if (live >= holdings.next_list) holdings.at_peak.store(true, kRelaxed);
}

void TensorBook::look_again(Holdings& holdings, std::int64_t moved) {
  const std::lock_guard lock(holdings.lock);
  const std::int64_t peak = holdings.peak.bytes;
  if (moved * kWorthALook < peak) return;
  holdings.bar.store(std::min(holdings.bar.load(kRelaxed), peak - peak / 50), kRelaxed);
  holdings.next_list = 0;
}

void TensorBook::list_holders(int device, Holdings& holdings) {
  std::map<std::tuple<std::uint8_t, std::uint16_t, std::uint32_t>, Holder> kinds;
  std::int64_t blocks = 0;
  tensors_.for_each([&](std::uintptr_t, const Tensor& tensor) {
    if (tensor.device != device) return;
    ++blocks;
    Holder& holder = kinds[{tensor.category, tensor.op, tensor.place}];
    holder.step = holder.count == 0 ? tensor.step : std::min(holder.step, tensor.step);
    holder.bytes += tensor.bytes;
    ++holder.count;
  });
  std::vector<Holder> holders;
  for (auto& [kind, holder] : kinds) {
    const auto& [category, op, place] = kind;
    holder.category = category;
    holder.op = ops_.name(op);
    holder.where = places_.name(place);
    holders.push_back(std::move(holder));
  }
  std::stable_sort(holders.begin(), holders.end(), [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  if (holders.size() > kMaxHolders) holders.resize(kMaxHolders);
  const std::lock_guard lock(holdings.lock);
  holdings.next_list = next_list(holdings.peak.bytes, blocks);
  holdings.peak.holders = std::move(holders);
}

CategoryBytes TensorBook::live(int device) const {
  CategoryBytes bytes = {};
  if (!is_tensor_device(device)) return bytes;
  for (int c = 0; c < KOILA_CATEGORIES; ++c) bytes[static_cast<std::size_t>(c)] = of(device).by_category[c].load(kRelaxed);
  return bytes;
}

std::vector<SurvivorGroup> TensorBook::survivors() {
  std::map<std::tuple<std::int8_t, std::uint8_t, std::uint16_t, std::uint32_t>, std::map<std::int64_t, std::int64_t>> kinds;
  tensors_.for_each([&](std::uintptr_t, const Tensor& tensor) { kinds[{tensor.device, tensor.category, tensor.op, tensor.place}][tensor.step] += tensor.bytes; });
  std::vector<SurvivorGroup> groups;
  for (const auto& [kind, alive] : kinds) {
    const auto& [device, category, op, place] = kind;
    groups.push_back({device, category, ops_.name(op), places_.name(place), {alive.begin(), alive.end()}});
  }
  return groups;
}

std::vector<std::uintptr_t> TensorBook::addresses(const Leak& leak, std::size_t at_most) {
  const std::uint32_t op = ops_.number(leak.op), place = places_.number(leak.where);
  std::vector<std::pair<std::int64_t, std::uintptr_t>> found;
  tensors_.for_each([&](std::uintptr_t address, const Tensor& tensor) {
    if (tensor.device == leak.device && tensor.category == leak.category && tensor.op == op && tensor.place == place) found.emplace_back(-tensor.step, address);
  });
  std::sort(found.begin(), found.end());
  std::vector<std::uintptr_t> addresses;
  for (std::size_t i = 0; i < std::min(found.size(), at_most); ++i) addresses.push_back(found[i].second);
  return addresses;
}

TensorBook::Peak TensorBook::peak(int device, bool with_holders) {
  if (!is_tensor_device(device)) return {};
  Holdings& holdings = of(device);
  if (!with_holders) {
    const std::lock_guard lock(holdings.lock);
    return {holdings.peak.bytes, holdings.peak.by_category, holdings.peak.step, holdings.peak.at, {}};
  }
  if (holdings.at_peak.exchange(false, kRelaxed)) list_holders(device, holdings);
  const std::lock_guard lock(holdings.lock);
  return holdings.peak;
}

std::vector<LiveBlock> TensorBook::blocks() {
  std::vector<LiveBlock> blocks;
  tensors_.for_each([&](std::uintptr_t address, const Tensor& tensor) {
    blocks.push_back({tensor.device, address, tensor.bytes, tensor.category, ops_.name(tensor.op), places_.name(tensor.place), tensor.step});
  });
  std::sort(blocks.begin(), blocks.end(), [](const LiveBlock& a, const LiveBlock& b) { return std::tie(a.device, a.address) < std::tie(b.device, b.address); });
  return blocks;
}

void TensorBook::add_trace(const Tensor& tensor, std::uintptr_t address, bool alloc) {
  const Traced entry = {std::chrono::steady_clock::now(), address, tensor.bytes, tensor.place, tensor.op, tensor.device, tensor.category, alloc};
  const std::lock_guard lock(trace_mutex_);
  if (trace_.size() < kMaxTrace) trace_.push_back(entry);
  else trace_[trace_next_] = entry;
  trace_next_ = (trace_next_ + 1) % kMaxTrace;
}

std::vector<TraceEvent> TensorBook::trace(std::chrono::steady_clock::time_point started) const {
  std::vector<TraceEvent> events;
  const std::lock_guard lock(trace_mutex_);
  const std::size_t first = trace_.size() < kMaxTrace ? 0 : trace_next_;
  for (std::size_t i = 0; i < trace_.size(); ++i) {
    const Traced& entry = trace_[(first + i) % trace_.size()];
    events.push_back({entry.alloc, entry.device, entry.address, entry.bytes,
                      std::chrono::duration_cast<std::chrono::microseconds>(entry.at - started).count(), entry.category, ops_.name(entry.op),
                      places_.name(entry.place)});
  }
  return events;
}

}  // namespace koila
