#include "runtime/size_cache_text.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "runtime/json_limits.h"

namespace koila {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kFormat = 1;
constexpr const char* kMagic = "koila micro-batch sizes";
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr JsonLimits kLimits = {.depth = 8, .parts = 400'000};

// In digits and not as a number: JSON's other readers round what is beyond 2^53.
std::string hex(std::uint64_t key) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(key));
  return digits;
}

Json to_json(const CachedSeed& seed) {
  return {{"op", seed.op},           {"key", hex(seed.key)}, {"times", seed.times}, {"argument", seed.argument},
          {"element", seed.element}, {"dim", seed.dim},      {"outer", seed.outer}, {"inner", seed.inner}};
}

Json to_json(const CachedObservation& observation) { return {{"rows", observation.rows}, {"bytes", observation.bytes}, {"seconds", observation.seconds}}; }
Json to_json(const CachedFailure& failure) { return {{"rows", failure.rows}, {"available", failure.available}}; }
Json to_json(const CachedChoice& choice) { return {{"available", choice.available}, {"rows", choice.rows}, {"timed", choice.timed}}; }

template <typename T>
Json to_json(const std::vector<T>& list) {
  Json json = Json::array();
  for (const T& one : list) json.push_back(to_json(one));
  return json;
}

std::string to_text(const CacheEntry& entry) {
  const CachedStep& step = entry.step;
  const Json json = {{"id", hex(step.id)},
                     {"torch", entry.torch},
                     {"device", step.device},
                     {"batch", step.batch},
                     {"used", step.used},
                     {"seeds", to_json(step.seeds)},
                     {"observations", to_json(step.observations)},
                     {"failures", to_json(step.failures)},
                     {"choices", to_json(step.choices)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const Json& member(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw MalformedStep{std::string("it has no '") + name + "'"};
  return *found;
}

std::int64_t integer(const Json& object, const char* name, std::int64_t least, std::int64_t most = kMost) {
  const Json& value = member(object, name);
  if (!value.is_number_integer()) throw MalformedStep{std::string("its '") + name + "' is no whole number"};
  const bool beyond = value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMost);
  if (beyond || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) throw MalformedStep{std::string("its '") + name + "' is " + value.dump()};
  return value.get<std::int64_t>();
}

double seconds_of(const Json& object) {
  const Json& value = member(object, "seconds");
  if (!value.is_number() || !(value.get<double>() >= 0)) throw MalformedStep{"its 'seconds' are no time"};
  return value.get<double>();
}

std::string name_of(const Json& object, const char* name) {
  const Json& value = member(object, name);
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) throw MalformedStep{std::string("its '") + name + "' is no name"};
  if (value.get_ref<const std::string&>().size() > kCachedNameBytes) throw MalformedStep{std::string("its '") + name + "' is too long a name"};
  return value.get<std::string>();
}

std::uint64_t key_of(const Json& object, const char* name) {
  const std::string digits = name_of(object, name);
  std::uint64_t key = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), key, 16);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.size() != 16) throw MalformedStep{std::string("its '") + name + "' is no key"};
  return key;
}

template <typename Read>
auto list_of(const Json& object, const char* name, std::size_t most, const Read& read) {
  const Json& value = member(object, name);
  if (!value.is_array()) throw MalformedStep{std::string("its '") + name + "' are no list"};
  if (value.size() > most) throw MalformedStep{"it has " + std::to_string(value.size()) + " " + name};
  std::vector<decltype(read(value))> list;
  for (const Json& one : value) list.push_back(read(one));
  return list;
}

CachedChoice read_choice(const Json& json, std::int64_t batch) {
  CachedChoice choice{integer(json, "available", 0), integer(json, "rows", 1, batch)};
  if (const auto timed = json.find("timed"); timed != json.end()) {
    if (!timed->is_boolean()) throw MalformedStep{"its 'timed' is neither true nor false"};
    choice.timed = timed->get<bool>();
  }
  return choice;
}

CachedSeed read_seed(const Json& json, std::int64_t batch) {
  constexpr int kMostInt = std::numeric_limits<int>::max();
  CachedSeed seed;
  seed.op = name_of(json, "op");
  seed.key = key_of(json, "key");
  seed.times = static_cast<int>(integer(json, "times", 1, kMostInt));
  seed.argument = static_cast<int>(integer(json, "argument", -1, kMostInt));
  seed.element = static_cast<int>(integer(json, "element", -1, kMostInt));
  seed.dim = integer(json, "dim", 0, 63);
  seed.outer = integer(json, "outer", 1);
  seed.inner = integer(json, "inner", 1);
  std::int64_t extent = 0;
  if (__builtin_mul_overflow(seed.outer, batch, &extent) || __builtin_mul_overflow(extent, seed.inner, &extent)) throw MalformedStep{"its placement is of more than fits a dimension"};
  return seed;
}

CacheEntry read_entry(const Json& json, std::int64_t now) {
  if (!json.is_object()) throw MalformedStep{"it is no object"};
  CacheEntry entry;
  CachedStep& step = entry.step;
  entry.torch = name_of(json, "torch");
  step.id = key_of(json, "id");
  step.device = name_of(json, "device");
  step.batch = integer(json, "batch", 1);
  // A clock that was wrong once would keep its steps for ever.
  step.used = std::min(integer(json, "used", 0), now);
  const auto rows = [&](const Json& one) { return integer(one, "rows", 1, step.batch); };
  step.seeds = list_of(json, "seeds", kCachedSeeds, [&](const Json& one) { return read_seed(one, step.batch); });
  step.observations = list_of(json, "observations", kCachedObservations, [&](const Json& one) { return CachedObservation{rows(one), integer(one, "bytes", 0), seconds_of(one)}; });
  step.failures = list_of(json, "failures", kCachedFailures, [&](const Json& one) { return CachedFailure{rows(one), integer(one, "available", 0)}; });
  step.choices = list_of(json, "choices", kCachedChoices, [&](const Json& one) { return read_choice(one, step.batch); });
  return entry;
}

CacheText foreign(std::string problem) { return {{}, std::move(problem.append(kCacheLeftAlone)), false}; }

template <typename T>
void keep_newest(std::vector<T>& list, std::size_t most) {
  if (list.size() > most) list.erase(list.begin(), list.end() - static_cast<std::ptrdiff_t>(most));
}

// What is in both is ours.
template <typename T, typename Key>
void unite(std::vector<T>& ours, const std::vector<T>& theirs, Key key, std::size_t most) {
  std::vector<T> united;
  std::copy_if(theirs.begin(), theirs.end(), std::back_inserter(united),
               [&](const T& other) { return std::none_of(ours.begin(), ours.end(), [&](const T& one) { return std::invoke(key, one) == std::invoke(key, other); }); });
  united.insert(united.end(), ours.begin(), ours.end());
  keep_newest(united, most);
  ours = std::move(united);
}

}  // namespace

CacheText parse_size_cache(const std::string& text) {
  if (text.empty()) return {};
  const Json json = !is_within(kLimits, text) ? Json::array() : Json::parse(text, nullptr, false);
  if (json.is_discarded()) return foreign("is no JSON, or a damaged one");
  const Json nothing;
  const auto found = [&](const char* name) -> const Json& { return json.is_object() && json.contains(name) ? json[name] : nothing; };
  const Json& format = found("koila_cache");
  if (found("magic") != kMagic || !format.is_number_unsigned() || format == 0U) return foreign("is JSON of something else");
  if (format.get<std::uint64_t>() != kFormat) return foreign("is of a newer koila (format " + format.dump() + ", and this one knows " + std::to_string(kFormat) + ")");
  if (!found("steps").is_array()) return foreign("has no list of steps");

  CacheText contents;
  std::set<std::tuple<std::string, std::uint64_t, std::int64_t, std::string>> seen;
  const std::int64_t now = std::time(nullptr);
  std::string first;
  std::size_t number = 0, wrong = 0;
  for (const Json& one : json["steps"]) {
    ++number;
    try {
      CacheEntry entry = read_entry(one, now);
      if (!seen.insert({entry.torch, entry.step.id, entry.step.batch, entry.step.device}).second) throw MalformedStep{"it stands there twice"};
      contents.entries.push_back(std::move(entry));
    } catch (const MalformedStep& problem) {
      if (++wrong == 1) first = "has a wrong step, number " + std::to_string(number) + ": " + problem.text + "; ";
    }
  }
  if (wrong > 0) contents.problem = first + (wrong == 1 ? "it is" : "it and " + std::to_string(wrong - 1) + " more are") + " left out: delete the file to have it made anew";
  return contents;
}

void put_in_order(std::vector<CacheEntry>& entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const CacheEntry& a, const CacheEntry& b) { return a.step.used > b.step.used; });
  if (entries.size() > kCachedSteps) entries.resize(kCachedSteps);
}

std::string size_cache_text(const std::vector<CacheEntry>& entries) {
  const std::string end = "\n]}\n";
  std::string text = "{\"koila_cache\":" + std::to_string(kFormat) + ",\"magic\":" + Json(kMagic).dump() + ",\"steps\":[";
  bool first = true;
  for (const CacheEntry& entry : entries) {
    const std::string line = (first ? "\n" : ",\n") + to_text(entry);
    if (text.size() + line.size() + end.size() > kCacheFileBytes) break;
    text += line;
    first = false;
  }
  return text + end;
}

CacheEntry as_it_will_be_read(const std::string& torch_version, CachedStep step) {
  keep_newest(step.observations, kCachedObservations);
  keep_newest(step.failures, kCachedFailures);
  keep_newest(step.choices, kCachedChoices);
  return read_entry(Json::parse(to_text(CacheEntry{torch_version, std::move(step)})), std::time(nullptr));
}

void put_step(std::vector<CacheEntry>& entries, CacheEntry entry) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const CacheEntry& other) { return other.same_step(entry); });
  if (found == entries.end()) {
    entries.insert(entries.begin(), std::move(entry));
    return;
  }
  CachedStep& step = entry.step;
  unite(step.observations, found->step.observations, &CachedObservation::rows, kCachedObservations);
  unite(step.failures, found->step.failures, &CachedFailure::available, kCachedFailures);
  unite(step.choices, found->step.choices, [](const CachedChoice& c) { return std::pair(c.available, c.timed); }, kCachedChoices);
  step.used = std::max(step.used, found->step.used);
  *found = std::move(entry);
}

}  // namespace koila
