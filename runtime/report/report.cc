#include "runtime/report/report.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "runtime/quiet_write.h"
#include "runtime/whole_file.h"

namespace koila {

bool ReportData::is_worth_a_line() const {
  const bool has_budget = std::any_of(devices.begin(), devices.end(), [](const DeviceFigures& d) { return d.budget_bytes > 0; });
  const bool used_cuda = std::any_of(devices.begin(), devices.end(), [](const DeviceFigures& d) {
    return d.device >= 0 && (d.allocations > 0 || d.failed_allocations > 0);
  });
  return has_budget || used_cuda || events.steps > 0 || !events.oom_events.empty();
}

std::optional<double> ReportData::seconds_per_step() const {
  if (steps.size() < 2) return std::nullopt;
  const StepSample &first = steps.front(), &last = steps.back();
  if (last.step <= first.step || last.seconds <= first.seconds) return std::nullopt;
  return (last.seconds - first.seconds) / static_cast<double>(last.step - first.step);
}

std::string device_name(int device) {
  switch (device) {
    case KOILA_CPU: return "cpu";
    case KOILA_PINNED: return "pinned";
    case KOILA_MANAGED: return "managed";
  }
  return "cuda:" + std::to_string(device);
}

const char* phase_name(int phase) {
  switch (phase) {
    case KOILA_FORWARD: return "forward";
    case KOILA_BACKWARD: return "backward";
    case KOILA_NO_GRAD: return "no_grad";
  }
  return "unknown";
}

const char* rung_name(int rung) {
  switch (rung) {
    case KOILA_RUNG_RETRY: return "retry";
    case KOILA_RUNG_SPLIT: return "micro-batches";
    case KOILA_RUNG_OFFLOAD: return "offload";
    default: return "refuse";
  }
}

const char* mode_name(int mode) {
  switch (mode) {
    case KOILA_MODE_OFF: return "off";
    case KOILA_MODE_TRACK: return "track";
    case KOILA_MODE_RESCUE: return "rescue";
    case KOILA_MODE_LAZY: return "lazy";
  }
  return "unknown";
}

const char* category_name(int category) {
  switch (category) {
    case KOILA_PARAMETERS: return "parameters";
    case KOILA_GRADIENTS: return "gradients";
    case KOILA_OPTIMIZER_STATE: return "optimizer state";
    case KOILA_INPUTS: return "inputs";
    case KOILA_ACTIVATIONS: return "activations";
    case KOILA_WORKSPACE: return "workspace";
    default: return "other";
  }
}

const char* category_key(int category) { return category == KOILA_OPTIMIZER_STATE ? "optimizer_state" : category_name(category); }

const char* end_name(RunEnd end) {
  switch (end) {
    case RunEnd::kExited: return "exited";
    case RunEnd::kRunning: return "running";
    case RunEnd::kCutOff: return "cut off";
  }
  return "unknown";
}

TextStyle style_of(int descriptor) {
  if (isatty(descriptor) == 0) return {};
  const auto variable = [](const char* name) -> std::string_view {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  winsize size = {};
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0) size.ws_col = 0;
  const bool colour = variable("NO_COLOR").empty() && !variable("TERM").empty() && variable("TERM") != "dumb";
  // Long lines are hard to read, however wide the window is.
  return {colour, std::min<int>(size.ws_col, kTextColumns)};
}

std::string write_report(const ReportTarget& target, const ReportData& data) {
  if (target.kind == ReportTarget::Kind::kStderr) {
    if (StandardError::is_there()) StandardError::write(report_text(data, style_of(STDERR_FILENO)));
    return "";
  }
  const auto written = [&] {
    switch (target.kind) {
      case ReportTarget::Kind::kJson: return report_json(data);
      case ReportTarget::Kind::kHtml: return report_html(data);
      case ReportTarget::Kind::kCsv: return report_csv(data);
      case ReportTarget::Kind::kPickle: return report_pickle(data);
      case ReportTarget::Kind::kText:
      case ReportTarget::Kind::kStderr: break;
    }
    return report_text(data);
  };
  const std::string path = expand_path(target.path);
  std::string text;
  try {
    text = written();
  } catch (const std::exception& error) {  // other reports may come through
    return "cannot make the report " + path + ": " + error.what();
  }
  const int error = write_whole_file(path, text);
  return error == 0 ? "" : "cannot write the report " + path + ": " + file_problem(error);
}

}  // namespace koila
