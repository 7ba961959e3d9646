#include "runtime/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
#include <memory>

#include "runtime/config.h"

namespace koila::log {
namespace {

// Never freed: a thread may log while the process exits, and in the child of a fork the old one's lock may be held for ever.
std::atomic<spdlog::logger*> logger{nullptr};

std::shared_ptr<spdlog::sinks::sink> stderr_sink() {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  sink->set_pattern("koila: %v");
  return sink;
}

std::shared_ptr<spdlog::sinks::sink> file_sink(const std::string& path) {
  auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %P %l %v");
  return sink;
}

}  // namespace

void open(int level, const std::string& path) {
  try {
    std::shared_ptr<spdlog::sinks::sink> sink;
    std::string problem;
    try {
      sink = path.empty() ? stderr_sink() : file_sink(expand_path(path));
    } catch (const std::exception&) {
      problem = "cannot write KOILA_LOG_FILE=" + path + "; logging to stderr";
      sink = stderr_sink();
    }
    auto* opened = new spdlog::logger("koila", std::move(sink));
    opened->set_level(static_cast<spdlog::level::level_enum>(level));
    opened->flush_on(spdlog::level::trace);
    logger.store(opened, std::memory_order_release);
    if (!problem.empty()) opened->warn(problem);
  } catch (...) {
    // Out of memory for a log: go on without one.
  }
}

void write(int level, const std::string& message) {
  spdlog::logger* current = logger.load(std::memory_order_acquire);
  if (current == nullptr) return;
  try {
    current->log(static_cast<spdlog::level::level_enum>(level), "{}", message);
  } catch (...) {
    // spdlog hands its own errors to a handler; what is left is out of memory.
  }
}

bool enabled(int level) {
  spdlog::logger* current = logger.load(std::memory_order_acquire);
  return current != nullptr && current->should_log(static_cast<spdlog::level::level_enum>(level));
}

}  // namespace koila::log
