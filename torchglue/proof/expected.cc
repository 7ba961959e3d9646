#include "torchglue/proof/expected.h"

#include <algorithm>

namespace koila {

std::optional<Witness> bear_witness(const at::Tensor& full, const Placement& placement, int64_t batch) {
  constexpr int64_t kSumAtMost = 65536;  // entries
  Witness witness{placement, full.scalar_type(), {}, {}};
  if (placement.is_partial()) {
    const auto f = full.numel() <= kSumAtMost ? fingerprint(full, placement, batch, {0, batch}, {0, batch}) : std::nullopt;
    if (!f) return std::nullopt;
    witness.sum = f->of_sum();
    return witness;
  }
  if (!placement.is_shard() || placement.ragged || placement.dim >= full.dim() || full.size(placement.dim) != placement.extent(batch)) return std::nullopt;
  for (int64_t row : {int64_t{0}, batch / 2, batch - 1}) {
    if (!witness.rows.empty() && witness.rows.back().first == row) continue;
    const auto f = fingerprint(full, placement, batch, {0, batch}, {row, row + 1});
    if (!f) return std::nullopt;
    witness.rows.emplace_back(row, *f);
  }
  return witness;
}

void Tally::add(const at::Tensor& part, const Placement& placement, int64_t batch, RowRange rows) {
  if (rows.begin == 0) *this = Tally{};
  if (!usable || rows.end <= until) return;
  const auto f = rows.begin == until ? fingerprint(part, placement, batch, rows, rows) : std::nullopt;
  usable = f.has_value();
  if (!usable) return;
  if (placement.is_replicate()) {  // every micro-batch has all of it
    sum = *f;
  } else {
    sum += *f;
  }
  until = rows.end;
}

}  // namespace koila
