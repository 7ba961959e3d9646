#include <cmath>
#include <cstdio>

#include "runtime/report/report.h"

namespace koila {
namespace {

// The step that was under way at a moment: the first that ended then or later. Of merged steps only the last is known.
class StepsSoFar {
 public:
  explicit StepsSoFar(const std::vector<StepSample>& steps) : steps_(steps) {}

  // Moments may only go forward.
  const StepSample* at(double seconds) {
    while (next_ < steps_.size() && steps_[next_].seconds < seconds) rescues_ += steps_[next_++].rescues;
    return next_ < steps_.size() ? &steps_[next_] : nullptr;
  }
  std::int64_t rescues() const { return rescues_; }  // in steps that had ended

 private:
  const std::vector<StepSample>& steps_;
  std::size_t next_ = 0;
  std::int64_t rescues_ = 0;
};

void add_row(std::string& text, int device, const Sample& sample, StepsSoFar& steps) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.6f", std::isfinite(sample.seconds) ? sample.seconds : 0.0);
  text += seconds + ("," + device_name(device)) + "," + std::to_string(sample.live_bytes);
  for (const std::int64_t bytes : sample.by_category) text += "," + std::to_string(bytes);
  // Nothing, where nothing is known: it is no zero.
  const StepSample* step = steps.at(sample.seconds);
  text += "," + (step != nullptr ? std::to_string(step->step) : "");
  text += "," + (step != nullptr && step->device == device ? std::to_string(step->peak_bytes) : "");
  text += "," + (step != nullptr && step->batch > 0 ? std::to_string(step->batch) : "");
  text += "," + (step != nullptr && step->micro_batch > 0 ? std::to_string(step->micro_batch) : "");
  text += "," + std::to_string(steps.rescues()) + "\n";
}

}  // namespace

std::string report_csv(const ReportData& data) {
  std::string text = "seconds,device,live_bytes";
  for (int category = 0; category < KOILA_CATEGORIES; ++category) text += std::string(",") + category_key(category) + "_bytes";
  text += ",step,step_peak_bytes,batch,micro_batch,rescues\n";
  for (const DeviceFigures& device : data.devices) {
    StepsSoFar steps(data.steps);
    for (const Sample& sample : device.timeline) add_row(text, device.device, sample, steps);
    // How it was at the end, which is all there is where no tensors are followed.
    const Sample last = {data.seconds, device.live_bytes, device.live_by_category};
    if (device.timeline.empty() || device.timeline.back().seconds < data.seconds) add_row(text, device.device, last, steps);
  }
  return text;
}

}  // namespace koila
