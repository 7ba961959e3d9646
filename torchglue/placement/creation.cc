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

bool create_split(OpCall& call) {
  const int argument = created_sizes_argument(call.schema());
  const auto sizes = argument < 0 ? std::nullopt : call.integers(argument);
  if (!sizes) return false;
  const bool repeats = call.schema().name() == "aten::repeat";
  for (size_t dim = 0; dim < sizes->size(); ++dim) {
    if ((*sizes)[dim] != call.batch()) continue;
    if (repeats) {  // only where the repeated tensor has one entry, or no dimension yet
      const TensorSpec& self = call.tensor(0);
      const int64_t own = static_cast<int64_t>(dim) - (static_cast<int64_t>(sizes->size()) - self.dim());
      if (own >= 0 && self.sizes[own] != 1) continue;
    }
    call.scale_literal(argument, static_cast<int>(dim), 1);
    call.output(0, Placement::shard(static_cast<int64_t>(dim)));
    return true;
  }
  return false;
}

}  // namespace koila
