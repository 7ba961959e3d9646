// What is alive on a device, and what came and went between two moments:
//
//     const koila::Snapshot before = koila::snapshot(torch::kCPU);
//     step(model);
//     std::cout << koila::snapshot(torch::kCPU) - before;
//
//     cpu: +8.0 MiB in +4 tensors
//       +8.0 MiB  +2  optimizer state  aten::zeros_like
//       +512 B    +2  inputs           aten::randn
//
// It takes koila to tell. C++17; header-only over LibTorch.
#ifndef KOILA_SNAPSHOT_H_
#define KOILA_SNAPSHOT_H_

#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <new>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "koila/category.h"
#include "koila/detail/abi.h"
#include "koila/detail/memory.h"

namespace koila {

// Of one moment; or, as the difference of two, with what there is more of (below 0: less).
struct Snapshot {
  // Tensors of one category, made by one operator, at one place.
  struct Group {
    Category category = Category::kOther;
    std::string op;     // "aten::addmm"; "" when unknown (KOILA_MODE=track follows no operators)
    std::string where;  // with KOILA_STACKS=1, "train.cc:31 in step", innermost first, one a line; else ""
    std::int64_t bytes = 0;
    std::int64_t count = 0;
  };

  c10::Device device = c10::DeviceType::CPU;
  std::vector<Group> groups;  // the most bytes first
  bool is_difference = false;

  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const Group& group : groups) sum += group.bytes;
    return sum;
  }
  std::int64_t count() const {
    std::int64_t sum = 0;
    for (const Group& group : groups) sum += group.count;
    return sum;
  }
};

// Of a device; without one, of the current device of the accelerator in use, or of the CPU. Throws c10::Error where koila is not in the process or does not count
// there. Any thread; what others allocate meanwhile may be in it or not.
inline Snapshot snapshot(std::optional<c10::Device> device = std::nullopt) {
  const c10::Device where = detail::with_index(device ? *device : detail::current_device());
  const detail::Abi& koila = detail::need_koila("koila::snapshot");
  struct Taken {
    Snapshot snapshot;
    bool whole = true;
  } taken;
  taken.snapshot.device = where;
  const auto add = [](void* context, const koila_live_group* group) {
    auto& t = *static_cast<Taken*>(context);
    try {  // nothing may be thrown through koila
      t.snapshot.groups.push_back({static_cast<Category>(group->category), group->op, group->where, group->bytes, group->count});
    } catch (const std::exception&) {
      t.whole = false;
    }
  };
  const auto number = detail::device_number(where);
  if (!number || koila.live_groups(*number, add, &taken) != 0) detail::throw_not_counted("koila::snapshot", where);
  if (!taken.whole) throw std::bad_alloc();
  return std::move(taken.snapshot);
}

// What there is more of in `after`: groups that are the same in both are left out. What koila has learnt meanwhile shows as well: a tensor that turned out to be
// optimizer state is one more of that, and one less of workspace.
inline Snapshot operator-(const Snapshot& after, const Snapshot& before) {
  TORCH_CHECK_VALUE(after.device == before.device, "koila::Snapshot: a difference of ", after.device, " and ", before.device, "; both are to be of one device");
  std::map<std::tuple<Category, std::string, std::string>, std::pair<std::int64_t, std::int64_t>> more;
  const auto add = [&](const Snapshot& snapshot, int sign) {
    for (const Snapshot::Group& group : snapshot.groups) {
      auto& [bytes, count] = more[{group.category, group.op, group.where}];
      bytes += sign * group.bytes;
      count += sign * group.count;
    }
  };
  add(after, 1);
  add(before, -1);
  Snapshot difference;
  difference.device = after.device;
  difference.is_difference = true;
  for (const auto& [key, figures] : more) {
    if (figures.first == 0 && figures.second == 0) continue;
    difference.groups.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), figures.first, figures.second});
  }
  std::stable_sort(difference.groups.begin(), difference.groups.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return difference;
}

namespace detail {

inline std::string with_sign(const std::string& text, std::int64_t figure, bool always) { return (figure < 0 ? "-" : always && figure > 0 ? "+" : "") + text; }

// "1.5 MiB", "512 B".
inline std::string bytes_text(std::int64_t bytes, bool always_sign) {
  double size = bytes < 0 ? -static_cast<double>(bytes) : static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (size < 1024) break;
    size /= 1024;
    unit = larger;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit[1] == '\0' ? "%.0f %s" : "%.1f %s", size, unit);
  return with_sign(text, bytes, always_sign);
}
inline std::string count_text(std::int64_t count, bool always_sign) { return with_sign(std::to_string(count < 0 ? -count : count), count, always_sign); }

}  // namespace detail

// A line for the whole, and one for each of the 20 groups that weigh most; of the source lines the innermost.
inline std::ostream& operator<<(std::ostream& out, const Snapshot& snapshot) {
  constexpr std::size_t kLines = 20;
  const bool sign = snapshot.is_difference;
  std::vector<const Snapshot::Group*> shown;
  for (const Snapshot::Group& group : snapshot.groups) shown.push_back(&group);
  const auto weight = [](const Snapshot::Group* group) { return group->bytes < 0 ? -group->bytes : group->bytes; };
  if (shown.size() > kLines) {
    std::nth_element(shown.begin(), shown.begin() + kLines, shown.end(), [&](const auto* a, const auto* b) { return weight(a) > weight(b); });
    shown.resize(kLines);
    std::sort(shown.begin(), shown.end());  // as they were
  }
  std::vector<std::vector<std::string>> rows;
  std::size_t width[3] = {};
  for (const Snapshot::Group* group : shown) {
    std::string made_by = group->op.empty() ? "" : group->op;
    if (!group->where.empty()) made_by += (made_by.empty() ? "" : "  ") + group->where.substr(0, group->where.find('\n'));
    rows.push_back({detail::bytes_text(group->bytes, sign), detail::count_text(group->count, sign), category_name(group->category), made_by});
    for (std::size_t c = 0; c < 3; ++c) width[c] = std::max(width[c], rows.back()[c].size());
  }
  out << snapshot.device << ": " << detail::bytes_text(snapshot.bytes(), sign) << " in " << detail::count_text(snapshot.count(), sign) << " tensors\n";
  for (const auto& row : rows) {
    std::string line = "  ";
    for (std::size_t c = 0; c < 3; ++c) line += row[c] + std::string(width[c] - row[c].size() + 2, ' ');
    line += row[3];
    line.resize(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
  if (snapshot.groups.size() > shown.size()) out << "  and " << snapshot.groups.size() - shown.size() << " smaller groups\n";
  return out;
}

}  // namespace koila

#endif  // KOILA_SNAPSHOT_H_
