// The two C interfaces over the runtime: the table that the adapter gets (abi.h) and the public functions (koila/koila.h).
#include "runtime/cabi.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include "koila/koila.h"
#include "runtime/cuda_use.h"
#include "runtime/report/report.h"
#include "runtime/log.h"
#include "runtime/rule_book.h"
#include "runtime/rule_text.h"
#include "runtime/runtime.h"

namespace koila {
namespace {

std::string text_of(const char* text) { return text != nullptr ? text : ""; }

// Nothing may be thrown over the C boundary, and what is only said must not break what is done: out of memory for an event loses it.
template <typename F>
void quietly(F f) noexcept {
  try {
    f();
  } catch (...) {}
}

void log_message(int level, const char* message) {
  quietly([&] { log::write(level, text_of(message)); });
}

int reserve(int device, std::size_t bytes) { return Runtime::get()->reserve(device, static_cast<std::int64_t>(bytes)); }
void release(int device, std::size_t bytes) { Runtime::get()->release(device, static_cast<std::int64_t>(bytes)); }

std::int64_t live_bytes(int device) { return is_device(device) ? Runtime::get()->ledger().of(device).live() : 0; }
std::int64_t peak_bytes(int device) { return is_device(device) ? Runtime::get()->ledger().of(device).peak() : 0; }
std::int64_t budget_bytes(int device) { return is_device(device) ? Runtime::get()->ledger().of(device).budget() : 0; }

std::int64_t failed_allocations(int device) { return Runtime::get()->pressure(device); }
std::int64_t tensor_bytes(int device) { return is_device(device) ? Runtime::get()->tensors(device).live() : 0; }
void mark_peak(int device) {
  if (is_device(device)) Runtime::get()->tensors(device).mark_peak();
}
std::int64_t marked_peak(int device) { return is_device(device) ? Runtime::get()->tensors(device).marked_peak() : 0; }

void on_tensor(int device, std::uintptr_t address, std::int64_t bytes, koila_origin origin) {
  quietly([&] {
    Runtime* runtime = Runtime::get();
    runtime->on_tensors(device, bytes);
    runtime->tensor_book().add(device, address, bytes, origin);
    if (is_device(device)) runtime->on_sample(device);
  });
}

void on_tensor_gone(int device, std::uintptr_t address, std::int64_t bytes) {
  quietly([&] {
    Runtime::get()->tensor_book().remove(device, address);
    Runtime::get()->on_tensors(device, -bytes);
    if (device >= 0 && is_device(device)) Runtime::get()->on_sample(device);
  });
}

void give_back(int device, std::uintptr_t address, std::size_t bytes) {
  quietly([&] {
    Runtime* runtime = Runtime::get();
    runtime->tensor_book().remove(device, address);
    runtime->on_tensors(device, -static_cast<std::int64_t>(bytes));
    runtime->release(device, static_cast<std::int64_t>(bytes));
  });
}

void set_category(std::uintptr_t address, int category) {
  quietly([&] { Runtime::get()->tensor_book().set_category(address, static_cast<koila_category>(category)); });
}

std::uint16_t op_number(const char* op) {
  std::uint16_t number = 0;
  quietly([&] { number = static_cast<std::uint16_t>(Runtime::get()->tensor_book().ops().number(text_of(op))); });
  return number;
}

std::uint32_t place_number(const char* place) {
  std::uint32_t number = 0;
  quietly([&] { number = Runtime::get()->tensor_book().places().number(text_of(place)); });
  return number;
}

void begin_backward() {
  quietly([] { Runtime::get()->tensor_book().begin_backward(); });
}

void on_outside(int device, std::int64_t change) { Runtime::get()->on_outside(device, change); }

void on_oom(const koila_oom_event* event) {
  quietly([&] {
    Runtime::get()->on_oom({event->device, event->phase, text_of(event->op), event->requested_bytes, event->live_bytes,
                            event->budget_bytes, event->outcome, text_of(event->reason), event->micro_batch, event->batch, event->rung, event->seconds});
  });
}

void on_mismatch(const char* json) {
  quietly([&] { Runtime::get()->on_mismatch(text_of(json)); });
}

void on_region(const koila_region_event* event) {
  quietly([&] { Runtime::get()->events().add_region(*event); });
}

void on_step() {
  quietly([] { Runtime::get()->on_step(); });
}

void on_full_batch(const char* op, std::int64_t bytes) {
  quietly([&] { Runtime::get()->events().add_full_batch(text_of(op), bytes); });
}

void on_note(const char* note) {
  quietly([&] { Runtime::get()->events().add_note(text_of(note)); });
}

void on_fact(int fact, std::int64_t value) {
  quietly([&] { Runtime::get()->findings().add_fact(fact, value); });
}

void on_leak(const koila_leak* leak) {
  quietly([&] {
    Runtime::get()->findings().add_leak({leak->device, leak->category, text_of(leak->op), text_of(leak->where), text_of(leak->holder), leak->bytes,
                                       leak->bytes_per_step, leak->first_step, leak->graph_nodes});
  });
}

int leak_to_name(koila_leak* leak, std::uintptr_t* addresses, int at_most) {
  int count = 0;
  quietly([&] {
    static thread_local std::optional<Leak> asked;
    asked = Runtime::get()->leak_watch().to_name();
    if (!asked) return;
    *leak = {asked->device, asked->category, asked->op.c_str(), asked->where.c_str(), "", asked->bytes, asked->bytes_per_step, asked->first_step, asked->graph_nodes};
    for (const std::uintptr_t address : Runtime::get()->tensor_book().addresses(*asked, static_cast<std::size_t>(at_most))) addresses[count++] = address;
  });
  return count;
}

int captures = 0;
std::atomic<void (*)()> before_capture{nullptr};

void set_before_capture(void (*function)()) { before_capture.store(function); }

std::atomic<const koila_threads*> threads{nullptr};

void set_threads(const koila_threads* functions) { threads.store(functions); }

void set_rules(void (*add)(const char*, const char*)) {
  quietly([&] { rule_book().set_reader(add); });
}

// Constant-initialised: the library's constructor may hand it over before its C++ objects are made.
constinit koila_runtime table = {
    .version = KOILA_ABI_VERSION,
    .settings = nullptr,
    .log = log_message,
    .reserve = reserve,
    .release = release,
    .live_bytes = live_bytes,
    .peak_bytes = peak_bytes,
    .budget_bytes = budget_bytes,
    .failed_allocations = failed_allocations,
    .tensor_bytes = tensor_bytes,
    .mark_peak = mark_peak,
    .marked_peak = marked_peak,
    .on_tensor = on_tensor,
    .on_tensor_gone = on_tensor_gone,
    .set_category = set_category,
    .op_number = op_number,
    .place_number = place_number,
    .begin_backward = begin_backward,
    .on_outside = on_outside,
    .torch_uses_cuda = &torch_uses_cuda,
    .on_earlier_segment = on_earlier_segment,
    .captures = &captures,
    .set_before_capture = set_before_capture,
    .set_threads = set_threads,
    .set_rules = set_rules,
    .on_oom = on_oom,
    .on_region = on_region,
    .on_step = on_step,
    .on_full_batch = on_full_batch,
    .on_note = on_note,
    .on_fact = on_fact,
    .on_leak = on_leak,
    .leak_to_name = leak_to_name,
    .on_mismatch = on_mismatch,
    .give_back = give_back,
};

}  // namespace

bool start_runtime() {
  static std::once_flag once;
  quietly([&] {
    std::call_once(once, [] {
      if (Runtime::start()) table.settings = &Runtime::get()->settings();
    });
  });
  return Runtime::get() != nullptr;
}

const koila_runtime* runtime_table() { return &table; }

const koila_threads* threads_told() { return threads.load(std::memory_order_acquire); }

void capture_begins() {
  if (auto* function = before_capture.load(); function != nullptr) function();
  __atomic_add_fetch(&captures, 1, __ATOMIC_ACQ_REL);
}

void capture_ends() {
  int now = __atomic_load_n(&captures, __ATOMIC_ACQUIRE);
  while (now > 0 && !__atomic_compare_exchange_n(&captures, &now, now - 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
  }
}

void process_ends() {
  if (Runtime* runtime = Runtime::get(); runtime != nullptr) quietly([&] { runtime->process_ends(); });
}

void runtime_attached(const char* torch_version) {
  quietly([&] { Runtime::get()->attached(text_of(torch_version)); });
}

}  // namespace koila

using koila::is_device;
using koila::Runtime;

#define KOILA_API extern "C" __attribute__((visibility("default")))

KOILA_API const char* koila_version() { return KOILA_VERSION; }

KOILA_API std::int64_t koila_live_bytes(int device) { return Runtime::get() != nullptr ? koila::live_bytes(device) : 0; }

KOILA_API std::int64_t koila_peak_bytes(int device) { return Runtime::get() != nullptr ? koila::peak_bytes(device) : 0; }

KOILA_API std::int64_t koila_allocations(int device) {
  return Runtime::get() != nullptr && is_device(device) ? Runtime::get()->ledger().of(device).requests() : 0;
}

KOILA_API void koila_reset_peak(int device) {
  Runtime* runtime = Runtime::get();
  if (runtime == nullptr || !is_device(device)) return;
  runtime->ledger().of(device).reset_peak();
  runtime->tensors(device).reset_peak();
}

KOILA_API const char* koila_category_name(int category) { return koila::category_name(category); }

KOILA_API int koila_memory(int device, koila_memory_figures* figures) {
  Runtime* runtime = Runtime::get();
  if (runtime == nullptr || figures == nullptr || !runtime->counts_tensors(device)) return 1;
  const koila::Account& tensors = runtime->tensors(device);
  const koila::Account& given = runtime->ledger().of(device);
  koila_memory_figures now = {};
  now.size = std::min(figures->size, sizeof now);
  now.live_bytes = tensors.live();
  now.peak_bytes = tensors.peak();
  now.run_peak_bytes = tensors.run_peak();
  now.reserved_bytes = given.live();
  now.reserved_peak_bytes = given.peak();
  now.budget_bytes = given.budget();
  now.outside_bytes = runtime->outside(device).live();
  now.outside_peak_bytes = runtime->outside(device).run_peak();
  now.allocations = tensors.allocations();
  const koila::CategoryBytes bytes = runtime->tensor_book().live(device);
  static_assert(KOILA_CATEGORIES <= std::size(decltype(now.by_category){}));
  std::copy(bytes.begin(), bytes.end(), now.by_category);
  std::memcpy(figures, &now, now.size);
  return 0;
}

KOILA_API int koila_set_budget(int device, std::int64_t bytes) {
  // A program may set a device's before it uses CUDA for the first time.
  if (device >= 0) koila::start_runtime();
  Runtime* runtime = Runtime::get();
  if (runtime == nullptr || !runtime->accounts_for(device) || bytes < 0) return 1;
  runtime->budgets().set(device, bytes);
  return 0;
}

KOILA_API std::uint64_t koila_begin_budget(int device, std::int64_t bytes) {
  if (device >= 0) koila::start_runtime();
  Runtime* runtime = Runtime::get();
  std::uint64_t number = 0;
  if (runtime == nullptr || !runtime->accounts_for(device) || bytes < 1) return number;
  koila::quietly([&] { number = runtime->budgets().begin(device, bytes); });
  return number;
}

KOILA_API void koila_end_budget(std::uint64_t budget) {
  if (Runtime::get() != nullptr) Runtime::get()->budgets().end(budget);
}

KOILA_API std::uint64_t koila_begin_track(int device) {
  Runtime* runtime = Runtime::get();
  std::uint64_t number = 0;
  if (runtime == nullptr || !runtime->counts_tensors(device)) return number;
  koila::quietly([&] { number = runtime->peak_tracks().begin(runtime->tensors(device)); });
  return number;
}

KOILA_API std::int64_t koila_track_peak(std::uint64_t track) { return Runtime::get() != nullptr ? Runtime::get()->peak_tracks().peak(track) : 0; }

KOILA_API std::int64_t koila_end_track(std::uint64_t track) { return Runtime::get() != nullptr ? Runtime::get()->peak_tracks().end(track) : 0; }

KOILA_API int koila_live_groups(int device, void (*each)(void*, const koila_live_group*), void* context) {
  Runtime* runtime = Runtime::get();
  if (runtime == nullptr || each == nullptr || !runtime->counts_tensors(device)) return 1;
  std::vector<koila::Holder> holders;
  bool listed = false;
  koila::quietly([&] {
    holders = runtime->tensor_book().holders(device);
    listed = true;
  });
  if (!listed) return 1;
  for (const koila::Holder& h : holders) {
    const koila_live_group group = {sizeof group, h.category, h.op.c_str(), h.where.c_str(), h.bytes, h.count, h.step};
    each(context, &group);
  }
  return 0;
}

KOILA_API std::uint64_t koila_add_listener(int kinds, void (*function)(void*, const koila_event*), void* context) {
  std::uint64_t number = 0;
  koila::quietly([&] {
    if (function != nullptr && koila::start_runtime()) number = Runtime::get()->event_feed().add(kinds, function, context);
  });
  return number;
}

KOILA_API void koila_remove_listener(std::uint64_t listener) {
  koila::quietly([&] {
    if (Runtime::get() != nullptr) Runtime::get()->event_feed().remove(listener);
  });
}

KOILA_API std::int64_t koila_budget_bytes(int device) {
  Runtime* runtime = Runtime::get();
  return runtime != nullptr && runtime->accounts_for(device) ? runtime->ledger().of(device).budget() : 0;
}

KOILA_API int koila_set_inject(const char* text) {
  int result = 1;
  koila::quietly([&] {
    Runtime* runtime = Runtime::get();
    if (runtime == nullptr) return;
    const std::string value = koila::text_of(text);
    const auto spec = koila::parse_inject(value);
    if (!spec && !value.empty()) return;
    runtime->injector().set(spec, runtime->ledger());
    result = 0;
  });
  return result;
}

KOILA_API int koila_write_report(const char* path) {
  int result = 1;
  koila::quietly([&] {
    const auto target = koila::parse_report_target(koila::text_of(path));
    if (Runtime::get() == nullptr || !target) return;
    const std::string problem = koila::write_report(*target, Runtime::get()->report_data(koila::RunEnd::kRunning, target->kind == koila::ReportTarget::Kind::kPickle));
    if (problem.empty()) result = 0;
    else koila::log::write(KOILA_LOG_ERROR, problem);
  });
  return result;
}

KOILA_API int koila_add_rule(const char* rule, const char* where) {
  int result = 1;
  koila::quietly([&] {
    const std::string text = koila::text_of(rule);
    const std::string place = where != nullptr && *where != '\0' ? where : "koila_add_rule";
    const koila::ParsedRule parsed = koila::parse_rule(text);
    std::string problem = parsed.error;
    if (parsed.rule) {
      if (koila::rule_book().add({text, place})) result = 0;
      else problem = "there are " + std::to_string(koila::kRulesAtMost) + " rules already; this one is left out";
    } else if (problem.empty()) {
      problem = "the text is empty, expected a rule such as mylib::op(x: Shard(0)) -> Shard(0)";
    }
    if (result == 0 || !koila::start_runtime()) return;
    problem = place + ": " + problem;
    koila::log::write(KOILA_LOG_WARN, problem);
    Runtime::get()->events().add_note(problem);
  });
  return result;
}
