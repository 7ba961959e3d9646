#include "torchglue/placement/creation.h"

#include <algorithm>

namespace koila {

namespace {

struct Creator {
  const char* name;
  const char* overload;  // others take names, or out=
  int sizes;             // argument
};

// What lies in memory that is not written to before it is read is anybody's guess in a program without koila as well.
constexpr Creator kCreators[] = {
    {"aten::empty", "memory_format", 0}, {"aten::full", "", 0}, {"aten::new_empty", "", 1}, {"aten::new_full", "", 1}, {"aten::new_ones", "", 1},
    {"aten::new_zeros", "", 1},          {"aten::ones", "", 0}, {"aten::repeat", "", 1},    {"aten::zeros", "", 0},
};

}  // namespace

int created_sizes_argument(const c10::FunctionSchema& schema) {
  const auto* creator = std::find_if(std::begin(kCreators), std::end(kCreators), [&](const Creator& c) { return schema.name() == c.name && schema.overload_name() == c.overload; });
  return creator == std::end(kCreators) ? -1 : creator->sizes;
}

bool makes_constant(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  return created_sizes_argument(schema) >= 0 && name != "aten::repeat" && !name.ends_with("empty");
}

bool makes_fresh_memory(const c10::FunctionSchema& schema) { return schema.name().find("empty") != std::string::npos; }

bool create_sum(OpCall& call) {
  if (call.schema().name() != "aten::zeros" && call.schema().name() != "aten::new_zeros") return false;
  call.output(0, Placement::partial());
  return true;
}

std::vector<Placement> parts_of_constant(c10::ArrayRef<int64_t> sizes, int64_t batch) {
  std::vector<Placement> found;
  if (batch <= 0) return found;
  for (const bool multiple : {false, true}) {
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      if (sizes[dim] < batch || sizes[dim] % batch != 0 || (sizes[dim] > batch) != multiple) continue;
      found.push_back(Placement::shard(static_cast<int64_t>(dim), 1, sizes[dim] / batch));
    }
  }
  return found;
}

std::vector<Placement> creatable(const OpCall& call) {
  const int argument = created_sizes_argument(call.schema());
  const auto sizes = argument < 0 ? std::nullopt : call.integers(argument);
  if (!sizes) return {};
  std::vector<Placement> found = parts_of_constant(*sizes, call.batch());
  if (call.schema().name() != "aten::repeat") return found;
  const TensorSpec& self = call.tensor(0);  // only where it has one entry, or no such dimension yet
  std::erase_if(found, [&](const Placement& p) {
    const int64_t own = p.dim - (static_cast<int64_t>(sizes->size()) - self.dim());
    return own >= 0 && self.sizes[own] != 1;
  });
  return found;
}

bool create_split(OpCall& call, const Placement& placement) {
  const std::vector<Placement> all = creatable(call);
  if (std::find(all.begin(), all.end(), placement) == all.end()) return false;
  call.scale_literal(created_sizes_argument(call.schema()), placement.dim, placement.inner);
  call.output(0, placement);
  return true;
}

}  // namespace koila
