#include "runtime/inject.h"

#include <charconv>

namespace koila {
namespace {

// splitmix64: a number's own hash, so that what fails does not depend on which thread asked first.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Up to the next colon, which is taken too.
std::string_view take_field(std::string_view& text) {
  const std::size_t colon = text.find(':');
  const std::string_view field = text.substr(0, colon);
  text.remove_prefix(colon == std::string_view::npos ? text.size() : colon + 1);
  return field;
}

}  // namespace

bool InjectSpec::fails(int on, std::int64_t allocation) const {
  if ((device && *device != on) || allocation < 1) return false;
  switch (kind) {
    case Kind::kNth: return allocation == number;
    case Kind::kEvery: return allocation % number == 0;
    case Kind::kRandom: {
      const std::uint64_t hash = mix(mix(seed) ^ mix(static_cast<std::uint64_t>(on + 1)) ^ static_cast<std::uint64_t>(allocation));
      return static_cast<double>(hash >> 11) * 0x1p-53 < share;
    }
  }
  return false;
}

std::optional<InjectSpec> parse_inject(std::string_view text) {
  InjectSpec spec;
  if (take_prefix(text, "cpu:")) {
    spec.device = KOILA_CPU;
  } else if (take_prefix(text, "cuda:")) {
    const auto ordinal = parse_number<int>(take_field(text));
    if (!ordinal || *ordinal < 0 || !is_device(*ordinal)) return std::nullopt;
    spec.device = *ordinal;
  }

  const std::string_view kind = take_field(text);
  if (kind == "nth" || kind == "every") {
    spec.kind = kind == "nth" ? InjectSpec::Kind::kNth : InjectSpec::Kind::kEvery;
    const auto number = parse_number<std::int64_t>(text);
    if (!number || *number < 1) return std::nullopt;
    spec.number = *number;
    return spec;
  }
  if (kind == "random") {
    spec.kind = InjectSpec::Kind::kRandom;
    const auto share = parse_number<double>(take_field(text));
    const auto seed = parse_number<std::uint64_t>(text);
    if (!share || !seed || !(*share >= 0 && *share <= 1)) return std::nullopt;
    spec.share = *share;
    spec.seed = *seed;
    return spec;
  }
  return std::nullopt;
}

void Injector::set(const std::optional<InjectSpec>& spec, const Ledger& ledger) {
  if (!spec) return armed_.store(nullptr, std::memory_order_release);
  auto* armed = new Armed{*spec, {}};
  for (int device = kFirstPlace; device < kCudaDevices; ++device) armed->before[device - kFirstPlace] = ledger.of(device).requests();
  armed_.store(armed, std::memory_order_release);
}

void Injector::restart(const Ledger& ledger) {
  if (const Armed* armed = armed_.load(std::memory_order_acquire); armed != nullptr) set(armed->spec, ledger);
}

}  // namespace koila
