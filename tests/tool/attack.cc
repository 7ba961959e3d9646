// Mutates every file that koila reads, and every variable, for as long as it is told: attack SECONDS SEED FOLDER. To be built with sanitizers (scripts/attack).
//
// Whatever it tries lies in the folder as `last`, beside a file that names its kind: who finds that it has ended badly finds there what it was.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "../runtime/report/samples.h"
#include "every_form.h"
#include "runtime/bytes.h"
#include "runtime/config.h"
#include "runtime/printable.h"
#include "runtime/record/layout.h"
#include "runtime/record/record.h"
#include "runtime/record/writer.h"
#include "runtime/rule_text.h"
#include "runtime/secrets.h"
#include "runtime/size_cache.h"
#include "runtime/torch_release.h"
#include "tool/elf_file.h"
#include "tool/program.h"
#include "tool/variables.h"

namespace koila::tool {
namespace {

using Json = nlohmann::json;

std::mt19937_64 random_bits;
std::size_t any(std::size_t below) { return below == 0 ? 0 : random_bits() % below; }
bool one_in(std::size_t n) { return any(n) == 0; }

std::int64_t nasty_number() {
  const std::int64_t numbers[] = {0, 1, -1, 2, 3, 64, 65, 255, 2048, 2049, 1 << 20, std::int64_t{1} << 31, (std::int64_t{1} << 32) - 1, std::int64_t{1} << 53,
                                  std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max() - 1, -77};
  return one_in(4) ? static_cast<std::int64_t>(random_bits()) : numbers[any(std::size(numbers))];
}

std::string nasty_text() {
  const char* texts[] = {"", "\x1b[31m", "\xc2\x9b" "2J", "\x9b", "</script>", "<!--", "=1+2", "%p%h%%%", "\xff\xfe", "\xe2\x80\xae", "a\nb", "1e999", "-0", "99999999999999999999", "cuda:64", "cuda:-1",
                         "Shard(0)", "::", "->", "../../etc/passwd", "18446744073709551615", "9.3e18B", "100.0001%", "nth:", "KOILA_", "token=x", "://@", "\"", "\\", "'"};
  std::string text = texts[any(std::size(texts))];
  if (one_in(20)) text = std::string(any(100'000), static_cast<char>(any(256)));
  return text;
}

std::string mutated(std::string text) {
  for (std::size_t n = 1 + any(6); n > 0; --n) {
    const std::size_t at = any(text.size() + 1);
    switch (any(7)) {
      case 0: if (!text.empty()) text[any(text.size())] ^= static_cast<char>(1 << any(8)); break;
      case 1: text.insert(at, nasty_text()); break;
      case 2: text.erase(at, any(16)); break;
      case 3: text.insert(at, text.substr(any(text.size() + 1), any(64))); break;
      case 4: text.insert(at, std::to_string(nasty_number())); break;
      case 5: if (one_in(8)) text.resize(at); break;
      default: if (!text.empty()) text[any(text.size())] = static_cast<char>(any(256));
    }
  }
  return text;
}

Json nasty_json() {
  switch (any(8)) {
    case 0: return Json();
    case 1: return nasty_text();
    case 2: return Json::array();
    case 3: return Json::object();
    case 4: return std::numeric_limits<double>::max();
    case 5: return one_in(2);
    case 6: return static_cast<std::uint64_t>(random_bits());
    default: return nasty_number();
  }
}

// Of the same shape, with some of its values others.
void mutate(Json& json, std::size_t share) {
  for (auto it = json.begin(); it != json.end(); ++it) {
    if (one_in(share)) *it = nasty_json();
    else if (it->is_structured()) mutate(*it, share);
  }
  if (json.is_array() && !json.empty() && one_in(share)) json.push_back(json[any(json.size())]);
}

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string folder;

void write_file(const std::string& name, std::string_view text) {
  std::ofstream(folder + "/" + name, std::ios::binary | std::ios::trunc).write(text.data(), static_cast<std::streamsize>(text.size()));
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A check that fits whatever stands beside it, so that a mutation is not only ever seen to be one.
template <class T>
void seal(record::Checked<T>& entry) {
  if (entry.is_blank()) return;
  const T value = entry.value;
  entry.write(value);
}
template <class T>
void seal(record::Twin<T>& twin) {
  for (auto& entry : twin.of) seal(entry);
}
template <class T, std::size_t N>
void seal(T (&entries)[N]) {
  for (T& entry : entries) seal(entry);
}
template <class T, std::size_t N>
void seal(record::List<T, N>& list) {
  seal(list.extent);
  for (auto& entries : list.of)
    for (std::size_t i = 0; i < std::min<std::size_t>(N, 8); ++i) seal(entries[i]);
}
template <class T, std::size_t N>
void seal(record::Table<T, N>& table) {
  for (std::size_t i = 0; i < std::min<std::size_t>(N, 8); ++i) seal(table.of[i]);
}
template <class T>
void seal(record::SeriesOf<T>& series) {
  seal(series.pending);
  seal(series.entries);
}

// A record with something in each of its places.
std::string whole_record() {
  const std::string path = folder + "/whole.koila";
  RunClock clock;
  std::string problem;
  ReportData identity = full_report();
  identity.pid = 1 << 24;
  const auto writer = RecordWriter::open(path, identity, clock, problem);
  if (writer == nullptr) std::fprintf(stderr, "%s\n", problem.c_str()), std::exit(2);
  Events events;
  for (const OomEvent& event : identity.events.oom_events) events.add_oom(event);
  for (const koila_region_event& region : identity.events.regions) events.add_region(region);
  for (const auto& [op, entry] : identity.events.full_batch) events.add_full_batch(op, entry.bytes);
  for (const std::string& note : identity.events.notes) events.add_note(note);
  events.add_step();
  events.write_to(writer.get());
  StepSeries steps;
  steps.write_to(writer->steps());
  for (int i = 1; i < 40; ++i) steps.add({.seconds = 1.0 * i, .step = i});
  for (const DeviceFigures& device : identity.devices) {
    writer->write_device(device);
    writer->write_holders(device.device, device.holders);
    writer->write_sizes(device.device, device.sizes);
    if (auto* sink = writer->timeline_of(device.device)) sink->replace(device.timeline.data(), device.timeline.size());
  }
  writer->write_sources(identity.sources);
  writer->write_leaks(identity.leaks);
  writer->write_facts(identity.facts);
  return read_bytes(path);
}

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "FOUND: %s\n", what);
  std::abort();
}

void expect_forms(const ReportData& data) {
  const std::string problem = problem_of_forms(data, nasty_text());
  expect(problem.empty(), problem.c_str());
}

void attack_record() {
  static const std::string whole = whole_record();
  std::vector<std::uint64_t> words(whole.size() / 8);
  std::memcpy(words.data(), whole.data(), words.size() * 8);
  auto& base = *reinterpret_cast<record::Base*>(words.data());
  // Most of a record is holes: where there is something, and now and then anywhere.
  for (std::size_t n = 1 + any(12); n > 0; --n) {
    std::size_t at = any(words.size());
    for (int tries = 0; tries < 200 && words[at] == 0 && !one_in(100); ++tries) at = any(words.size());
    if (one_in(2)) words[at] ^= std::uint64_t{1} << any(64);
    else words[at] = static_cast<std::uint64_t>(nasty_number());
    if (one_in(4)) {
      const double time = one_in(2) ? 1e300 : -1e18;
      std::memcpy(&words[at], &time, 8);
    }
  }
  if (!one_in(4)) {
    seal(base.identity), seal(base.page), seal(base.facts), seal(base.full_batch), seal(base.notes), seal(base.regions), seal(base.sources), seal(base.leaks);
    seal(base.steps), seal(base.oom_events);
    for (std::size_t i = 0; record::bytes_with(i + 1) <= words.size() * 8; ++i) {
      auto& section = *reinterpret_cast<record::Section*>(reinterpret_cast<char*>(words.data()) + record::bytes_with(i));
      seal(section.device), seal(section.sizes), seal(section.timeline), seal(section.holders);
    }
  }
  std::string_view bytes(reinterpret_cast<const char*>(words.data()), words.size() * 8);
  if (one_in(10)) bytes = bytes.substr(0, any(bytes.size()));
  write_file("last", bytes);
  const ReadRecord read = read_record(folder + "/last");
  expect(is_plain(read.problem), "a record's problem is not plain");
  owner_of(folder + "/last");
  if (read.data) expect_forms(*read.data);
}

void attack_report() {
  static const Json whole = Json::parse(report_json(full_report()));
  std::string text;
  if (one_in(3)) {
    text = mutated(report_json(full_report()));
  } else {
    Json json = whole;
    mutate(json, 1 + any(200));
    text = dumped(json);
  }
  write_file("last", text);
  const ParsedReport parsed = parse_report_json(text);
  printable(parsed.problem);
  if (parsed.data) expect_forms(*parsed.data);
}

void attack_cache() {
  static const std::string whole = [] {
    CachedStep step;
    step.id = 7;
    step.batch = 64;
    step.device = "cpu";
    step.used = 1;
    step.seeds.push_back({});
    step.seeds[0].op = "aten::linear";
    step.observations = {{1, 2, 0.5}, {4, 8, 1.5}};
    step.failures = {{32, 1000}};
    step.choices = {{1000, 16}};
    write_size_cache(folder + "/whole.sizes", "2.13.0", {step});
    return read_bytes(folder + "/whole.sizes");
  }();
  std::string text = mutated(whole);
  if (Json json = Json::parse(whole, nullptr, false); one_in(2) && json.is_object()) {
    mutate(json, 1 + any(40));
    text = dumped(json);
  }
  write_file("last", text);
  const SizeCacheFile file = read_size_cache(folder + "/last", "2.13.0");
  expect(is_plain(file.problem), "a cache's problem is not plain");
  const SizeCacheWritten written = write_size_cache(folder + "/last", "2.13.0", file.steps);
  expect(file.ours || read_bytes(folder + "/last") == text, "a file of somebody else's was written to");
  if (!file.steps.empty()) expect(read_size_cache(folder + "/last", "2.13.0").steps.size() == file.steps.size(), "a cache loses steps");
  (void)written;
}

void attack_rules() {
  const char* rules[] = {"mylib::op(x: Shard(0)) -> Shard(0)", "mylib::op.out(x: Shard(any but -1), w: Replicate) -> Shard(0), Partial(sum) # words",
                         "a::b(0: Shard(0, outer=2, inner=3)) -> Shard(0)", "aten::add(self: Shard(0)) -> Shard(0) exact"};
  std::string text;
  for (std::size_t n = 1 + any(4); n > 0; --n) text += std::string(rules[any(std::size(rules))]) + "\n";
  text = mutated(text);
  write_file("last", text);
  const ParsedRules parsed = read_rules(folder + "/last");
  for (const std::string& error : parsed.errors) printable(error);
}

void attack_variables() {
  const std::map<std::string, std::string> values = {
      {"KOILA_MODE", "rescue"}, {"KOILA_CPU_MEMORY", "512MiB"}, {"KOILA_DEVICE_MEMORY", "0:8GiB,1:90%"}, {"KOILA_REPORT", "stderr,run-%p.json"}, {"KOILA_RECORD", "%h.koila"},
      {"KOILA_LADDER", "0,1,2"}, {"KOILA_INJECT_OOM", "cuda:0:nth:3"}, {"KOILA_INJECT_OOM", "random:0.02:7"}, {"KOILA_LOG", "warn"}, {"KOILA_MICROBATCH", "8"}, {"KOILA_POLICY", "pow2"}};
  Environment environment;
  for (const auto& [name, value] : values) environment.emplace_back(one_in(20) ? mutated(name) : name, one_in(2) ? mutated(value) : value);
  for (const VariableForm& form : variable_forms()) environment.emplace_back(form.name, nasty_text());
  std::string text;
  for (const auto& [name, value] : environment) text += name + "=" + value + '\0';
  write_file("last", text);
  const ParsedConfig parsed = parse_config(environment);
  for (const ConfigProblem& problem : parsed.problems) expect(is_plain(printable(problem.text)), "a problem is not plain");
  for (const auto& [name, value] : environment) {
    expand_path(value);
    parse_bytes(value);
    parse_percent(value);
    const std::string masked = masked_command({name + "=" + value, "--token", value, value});
    printable(masked);
  }
  check_variables({}, environment);
}

void attack_program() {
  static const std::string elf = read_bytes("/proc/self/exe").substr(0, 1 << 20);
  static const std::string small = read_bytes("/bin/true");
  std::string text = one_in(2) && !small.empty() ? small : elf;
  for (std::size_t n = 1 + any(20); n > 0; --n) text[any(one_in(2) ? 4096 : text.size()) % text.size()] = static_cast<char>(one_in(3) ? 0xff : any(256));
  if (one_in(4)) text.resize(any(text.size()));
  if (one_in(4)) text = mutated("#!/usr/bin/env -S python3 -s\n");
  write_file("last", text);
  const std::string path = folder + "/last";
  chmod(path.c_str(), 0755);
  if (const auto facts = read_elf(path)) {
    for (const std::string& needed : facts->needed) printable(needed);
    for (const std::string& run_path : facts->run_path) printable(run_path);
  }
  defines_any(path, {"cudaMalloc", "main"}, one_in(2));
  find_program({path, "x.py"}, "/usr/bin:/bin");
  const std::string version = mutated("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = \"13.0\"\n");
  parse_version_py(version, "__version__");
}

struct Kind {
  const char* name;
  void (*attack)();
};
constexpr Kind kKinds[] = {{"record", attack_record}, {"report", attack_report}, {"cache", attack_cache}, {"rules", attack_rules}, {"variables", attack_variables}, {"program", attack_program}};

}  // namespace
}  // namespace koila::tool

int main(int argc, char** argv) {
  using namespace koila::tool;
  if (argc != 4) return std::fprintf(stderr, "attack SECONDS SEED FOLDER\n"), 2;
  const double seconds = std::atof(argv[1]);
  random_bits.seed(std::strtoull(argv[2], nullptr, 10));
  folder = argv[3];
  const auto begin = std::chrono::steady_clock::now();
  std::map<std::string, std::int64_t> tries;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds) {
    const Kind& kind = kKinds[any(std::size(kKinds))];
    write_file("kind", kind.name);
    kind.attack();
    ++tries[kind.name];
  }
  for (const auto& [name, n] : tries) std::printf("%s %lld\n", name.c_str(), static_cast<long long>(n));
  return 0;
}
