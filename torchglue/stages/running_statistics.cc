#include "torchglue/stages/running_statistics.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"
#include "torchglue/oom/oom.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/step/session.h"

namespace koila {

void update_running_statistics(const std::vector<RunningUpdate>& updates, double momentum, bool counted) {
  for (const RunningUpdate& u : updates) {
    if (!u.running.defined()) continue;
    session().before_write(storage_of(u.running));
    session().pin([&](Tape& tape) { tape.before_silent_write(u.running); });
  }
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  std::vector<RunningUpdate> next;
  for (const RunningUpdate& u : updates) {
    if (!u.running.defined()) continue;
    const at::Tensor data = u.running.variable_data();
    next.push_back({data, u.value.detach().mul(momentum).add_(data, 1 - momentum)});  // in the type of the value, which may be the wider one
  }
  std::vector<at::Tensor> written;
  for (const RunningUpdate& u : next) written.push_back(u.running);
  const SilentWrite silent(std::move(written));
  for (const RunningUpdate& u : next) u.running.copy_(u.value);
  if (!counted) return;
  for (const RunningUpdate& u : updates) {
    if (u.running.defined() && !u.running.is_inference()) torch::autograd::impl::bump_version(u.running);
  }
}

SavedStatistics::SavedStatistics(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  if (!uses_batch_statistics(schema, arguments)) return;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& t : running_statistics(schema, arguments)) {
    Saved saved{t, {}, {}};
    if (t.is_cpu() && t.is_contiguous()) {
      const auto* data = static_cast<const char*>(t.const_data_ptr());
      saved.bytes.assign(data, data + t.nbytes());
    } else {
      try {
        saved.copy = t.variable_data().clone();
      } catch (const std::exception& error) {
        if (!is_out_of_memory(error)) throw;
        complete_ = false;
      }
    }
    saved_.push_back(std::move(saved));
  }
}

bool SavedStatistics::restore() const {
  if (!complete_) return false;
  const NoInterceptGuard no_intercept;
  const at::NoGradGuard no_grad;
  for (const Saved& saved : saved_) {
    const at::Tensor data = saved.tensor.variable_data();
    if (saved.copy.defined()) {
      data.copy_(saved.copy);
    } else {
      std::memcpy(data.mutable_data_ptr(), saved.bytes.data(), saved.bytes.size());
    }
  }
  return true;
}

}  // namespace koila
