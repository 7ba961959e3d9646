#include "runtime/state_lacks.h"

#include <algorithm>

#include "runtime/bytes.h"

namespace koila {
namespace {

constexpr const char* kDoesNotFit = "The optimizer state does not fit.";  // as in torchglue/rescue/eager.cc

}  // namespace

bool is_about_state(const std::string& reason) { return reason.find(kDoesNotFit) != std::string::npos; }

std::string with_what_state_lacks(const OomEvent& event, std::int64_t parameters, std::int64_t made) {
  const std::size_t at = event.reason.find(kDoesNotFit);
  if (at == std::string::npos || parameters <= 0) return event.reason;
  const std::int64_t for_each = std::max<std::int64_t>(1, (made + event.requested_bytes + parameters - 1) / parameters);
  const std::int64_t whole = for_each * parameters;
  const std::int64_t room = event.budget_bytes > 0 ? std::max<std::int64_t>(0, event.budget_bytes - event.live_bytes) : 0;
  std::string text = "The optimizer state does not fit: for " + format_bytes(parameters) + " of parameters it comes to " + format_bytes(whole) + " at least, of which " +
                     format_bytes(made) + " were made";
  if (event.budget_bytes > 0 && whole > made + room) text += "; " + format_bytes(whole - made - room) + " more than there is room for";
  return event.reason.substr(0, at) + text + "." + event.reason.substr(at + std::string(kDoesNotFit).size());
}

}  // namespace koila
