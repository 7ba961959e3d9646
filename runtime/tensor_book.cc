#include "runtime/tensor_book.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace koila {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// As many frees after a peak as blocks are alive, what was alive at it is listed: so lists cost each free as much as one block of theirs.
constexpr std::size_t kLeastFreed = 64;

using Kind = std::tuple<std::uint8_t, std::uint16_t, std::uint32_t>;  // category, operator, place

}  // namespace

void TensorBook::add(int device, std::uintptr_t address, std::int64_t bytes, const koila_origin& origin) {
  if (!is_tensor_device(device)) return;
  Holdings& holdings = of(device);
  Tensor tensor;
  tensor.bytes = bytes;
  tensor.step = step_.load(kRelaxed);
  tensor.number = holdings.came.load(kRelaxed) + 1;
  tensor.place = origin.place;
  tensor.op = origin.op;
  tensor.device = static_cast<std::int8_t>(device);
  tensor.category = static_cast<std::uint8_t>(category_of_new(origin, bytes));
  tensor.when = origin.when;
  if (!tensors_.insert(address, tensor)) return;
  {
    const std::lock_guard lock(holdings.lock);
    add_locked(holdings.came, 1);
    count(holdings, tensor, 1);
    if (const std::int64_t live = holdings.live.load(kRelaxed); live > holdings.highest.load(kRelaxed)) raise_peak(holdings, live);
  }
  if (keeps_trace_) add_trace(tensor, address, true);
}

void TensorBook::count(Holdings& holdings, const Tensor& tensor, std::int64_t sign) {
  add_locked(holdings.by_category[tensor.category], sign * tensor.bytes);
  if (is_unsettled(tensor)) add_locked(holdings.unsettled, sign * tensor.bytes);
  add_locked(holdings.blocks, sign);
  add_locked(holdings.live, sign * tensor.bytes);
}

void TensorBook::remove(int device, std::uintptr_t address) {
  if (!is_tensor_device(device)) return;
  Holdings& holdings = of(device);
  std::optional<Tensor> tensor = tensors_.take(address);
  if (!tensor) return;
  {
    const std::lock_guard lock(holdings.lock);
    count(holdings, *tensor, -1);
  }
  if (keeps_trace_) add_trace(*tensor, address, false);
  if (tensor->when == KOILA_SETUP && tensor->category == KOILA_OTHER && backward_passes_.load(kRelaxed) == 1) {
    move_in_peak(holdings, *tensor, KOILA_INPUTS);
    tensor->category = KOILA_INPUTS;
  }
  if (!holdings.listed.load(kRelaxed)) keep_freed(device, holdings, *tensor);
}

void TensorBook::keep_freed(int device, Holdings& holdings, const Tensor& tensor) {
  {
    const std::lock_guard lock(holdings.lock);
    if (tensor.number > holdings.peak_number) return;
    holdings.freed.push_back(tensor);
    if (holdings.freed.size() < kLeastFreed || static_cast<std::int64_t>(holdings.freed.size()) < holdings.blocks.load(kRelaxed)) return;
  }
  list_holders(device, holdings);
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
  {
    const std::lock_guard lock(holdings.lock);
    if (is_unsettled(tensor)) add_locked(holdings.unsettled, -tensor.bytes);
    add_locked(holdings.by_category[tensor.category], -tensor.bytes);
    add_locked(holdings.by_category[to], tensor.bytes);
  }
  move_in_peak(holdings, tensor, to);
  tensor.category = static_cast<std::uint8_t>(to);
}

void TensorBook::move_in_peak(Holdings& holdings, const Tensor& tensor, koila_category to) {
  const std::lock_guard lock(holdings.lock);
  if (tensor.number <= holdings.peak_number) {
    holdings.peak.by_category[tensor.category] -= tensor.bytes;
    holdings.peak.by_category[to] += tensor.bytes;
  }
  if (!holdings.listed.load(kRelaxed) || tensor.number > holdings.peak_number) return;
  std::vector<Holder>& holders = holdings.peak.holders;
  const auto holder_of = [&](int category) {
    return std::find_if(holders.begin(), holders.end(),
                        [&](const Holder& h) { return h.category == category && h.op == ops_.name(tensor.op) && h.where == places_.name(tensor.place); });
  };
  const auto from = holder_of(tensor.category);
  if (from == holders.end()) return;
  from->bytes -= tensor.bytes;
  --from->count;
  Holder moved = {to, from->op, from->where, tensor.bytes, 1, tensor.step};
  if (from->count <= 0) holders.erase(from);
  if (const auto there = holder_of(to); there != holders.end()) {
    there->bytes += tensor.bytes;
    ++there->count;
    there->step = std::min(there->step, tensor.step);
  } else {
    holders.push_back(std::move(moved));
  }
}

void TensorBook::set_category(std::uintptr_t address, koila_category category) {
  std::int64_t moved = 0;
  tensors_.with(address, [&](Tensor& tensor) {
    if (tensor.category == category) return;
    move(tensor, category);
    moved = tensor.bytes;
  });
  if (moved > 0 && category == KOILA_PARAMETERS) add_parameter_size(moved);
}

void TensorBook::begin_backward() {
  backward_passes_.fetch_add(1, kRelaxed);
  if (std::all_of(std::begin(holdings_), std::end(holdings_), [](const Holdings& h) { return h.unsettled.load(kRelaxed) == 0; })) return;
  tensors_.for_each([&](std::uintptr_t, Tensor& tensor) {
    if (!is_unsettled(tensor)) return;
    const bool state = tensor.when == KOILA_IN_OPTIMIZER || is_parameter_size(tensor.bytes);
    move(tensor, state ? KOILA_OPTIMIZER_STATE : KOILA_OTHER);
  });
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
  holdings.highest.store(live, kRelaxed);
  holdings.peak.bytes = live;
  for (int c = 0; c < KOILA_CATEGORIES; ++c) holdings.peak.by_category[static_cast<std::size_t>(c)] = holdings.by_category[c].load(kRelaxed);
  holdings.peak.step = step_.load(kRelaxed);
  holdings.peak.at = std::chrono::steady_clock::now();
  holdings.peak_number = holdings.came.load(kRelaxed);
  holdings.freed.clear();
  holdings.listed.store(false, kRelaxed);
}

// What was alive at the peak is what came before it and is alive still, and what went since.
void TensorBook::list_holders(int device, Holdings& holdings) {
  std::int64_t peak_number = 0;
  std::vector<Tensor> alive;
  {
    const std::lock_guard lock(holdings.lock);
    if (holdings.listed.load(kRelaxed)) return;
    peak_number = holdings.peak_number;
    alive = holdings.freed;
  }
  tensors_.for_each([&](std::uintptr_t, const Tensor& tensor) {
    if (tensor.device == device && tensor.number <= peak_number) alive.push_back(tensor);
  });
  std::vector<Holder> holders = by_kind(alive);
  const std::lock_guard lock(holdings.lock);
  if (holdings.listed.load(kRelaxed) || holdings.peak_number != peak_number) return;  // another thread was here, or there is a higher peak
  holdings.peak.holders = std::move(holders);
  holdings.listed.store(true, kRelaxed);
  holdings.freed = {};
}

std::vector<Holder> TensorBook::by_kind(const std::vector<Tensor>& tensors) const {
  std::map<Kind, Holder> kinds;
  for (const Tensor& tensor : tensors) {
    Holder& holder = kinds[{tensor.category, tensor.op, tensor.place}];
    holder.step = holder.count == 0 ? tensor.step : std::min(holder.step, tensor.step);
    holder.bytes += tensor.bytes;
    ++holder.count;
  }
  std::vector<Holder> holders;
  for (auto& [kind, holder] : kinds) {
    const auto& [category, op, place] = kind;
    holder.category = category;
    holder.op = ops_.name(op);
    holder.where = places_.name(place);
    holders.push_back(std::move(holder));
  }
  return holders;
}

std::vector<Holder> TensorBook::holders(int device) {
  std::vector<Tensor> alive;
  tensors_.for_each([&](std::uintptr_t, const Tensor& tensor) {
    if (tensor.device == device) alive.push_back(tensor);
  });
  std::vector<Holder> holders = by_kind(alive);
  std::stable_sort(holders.begin(), holders.end(), [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  return holders;
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
  list_holders(device, holdings);
  Peak peak;
  {
    const std::lock_guard lock(holdings.lock);
    peak = holdings.peak;
  }
  std::stable_sort(peak.holders.begin(), peak.holders.end(), [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  if (peak.holders.size() > kMaxHolders) peak.holders.resize(kMaxHolders);
  return peak;
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
