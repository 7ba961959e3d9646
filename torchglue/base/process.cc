#include "torchglue/base/process.h"

namespace koila {

void Process::log(int level, const std::string& message) const {
  if (level >= runtime->settings->log_level) runtime->log(level, message.c_str());
}

void Process::warn(const std::string& message) const {
  runtime->log(KOILA_LOG_WARN, message.c_str());
  runtime->on_note(message.c_str());
}

}  // namespace koila
