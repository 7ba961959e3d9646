// A region that was found wrong, and what is said of it.

#include <c10/util/StringUtil.h>

#include <cmath>
#include <cstdio>
#include <sstream>

#include "torchglue/base/source_line.h"
#include "torchglue/oom/events.h"
#include "torchglue/proof/invariants.h"
#include "torchglue/proof/proof.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return json + "\"";
}

std::string number(double x) {
  if (!std::isfinite(x)) return quoted(std::to_string(x));
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", x);
  return text;
}

template <class Sizes>
std::string sizes_of(const Sizes& sizes) {
  std::string json = "[";
  for (size_t i = 0; i < sizes.size(); ++i) json += (i ? ", " : "") + std::to_string(sizes[i]);
  return json + "]";
}

std::string tensor_of(const Placement& placement, const std::string& sizes, at::ScalarType dtype, const std::string& name) {
  return "{\"name\": " + quoted(name) + ", \"placement\": " + quoted(to_string(placement)) + ", \"sizes\": " + sizes + ", \"dtype\": " + quoted(c10::toString(dtype)) + "}";
}

}  // namespace

// Operators, placements, sizes and types: what a step is made of, and nothing of what is in it.
static std::string describe_region(const std::vector<Instruction>& instructions, const std::vector<Value>& values, const std::vector<Use>& uses, const std::vector<Capture>& captures) {
  constexpr size_t kOperatorsAtMost = 4000;
  std::string json = "[";
  for (size_t i = 0; i < instructions.size() && i < kOperatorsAtMost; ++i) {
    const Instruction& in = instructions[i];
    json += (i ? ",\n  " : "\n  ") + ("{\"operator\": " + quoted(in.op.schema().name() + (in.op.schema().overload_name().empty() ? "" : "." + in.op.schema().overload_name())));
    if (in.in_place) json += ", \"in_place\": true";
    if (in.random) json += ", \"random\": true";
    if (const std::string line = source_line_text(in.line); !line.empty()) json += ", \"line\": " + quoted(line.substr(line.find_last_of("/\\") + 1));
    if (in.by_user) json += ", \"rule\": \"of the user's\"";
    json += ", \"inputs\": [";
    bool first = true;
    for (const Argument& argument : in.arguments) {
      for (const Operand& o : argument.operands) {
        if (o.kind == Operand::Kind::kUndefined) continue;
        if (!std::exchange(first, false)) json += ", ";
        if (o.kind == Operand::Kind::kValue) {
          json += tensor_of(values[o.id].placement, sizes_of(values[o.id].sizes), values[o.id].dtype, "v" + std::to_string(o.id));
        } else {
          const at::Tensor& t = captures[uses[o.id].capture].tensor;
          json += tensor_of(uses[o.id].placement, t.defined() ? sizes_of(t.sizes()) : "[]", t.defined() ? t.scalar_type() : at::kFloat, "c" + std::to_string(uses[o.id].capture));
        }
      }
    }
    json += "], \"outputs\": [";
    first = true;
    for (ValueId out : in.outputs) {
      if (out == kNoValue) continue;
      if (!std::exchange(first, false)) json += ", ";
      json += tensor_of(values[out].placement, sizes_of(values[out].sizes), values[out].dtype, "v" + std::to_string(out));
    }
    json += "]}";
  }
  return json + "]";
}

void Region::broken(const char* invariant, const std::string& detail, size_t instruction) {
  broken(Finding{invariant, instruction, detail, {}});
}

void Region::broken(const Finding& finding) {
  if (broken_ == nullptr && condemned_.empty()) broken_ = std::make_shared<Finding>(finding);
}

void Region::check_sound() {
  if (!condemned_.empty()) refuse(condemned_);
  if (broken_ != nullptr) condemn(*broken_);
}

void Region::condemn(const Finding& finding) {
  const bool known = finding.instruction < instructions_.size();
  const std::string op = known ? instructions_[finding.instruction].op.schema().name() : finding.op;
  const std::string line = source_line_text(known ? instructions_[finding.instruction].line : finding.line);
  const bool own = known && instructions_[finding.instruction].by_user;
  condemned_ = "a check found it wrong (" + finding.check + "): " + (op.empty() ? "" : op + " ") + finding.what + (line.empty() ? "" : " (called at " + line + ")") + "." +
               (own ? " Its placement rule is one of your own (KOILA_RULES, KOILA_RULE); where that is right, please report this as a bug of koila." : " Please report this as a bug of koila.");
  std::string json = "{\n \"check\": " + quoted(finding.check) + ",\n \"operator\": " + quoted(op) + ",\n \"number\": " + (known ? std::to_string(finding.instruction) : "-1") +
                     ",\n \"line\": " + quoted(line.substr(line.find_last_of("/\\") + 1)) + ",\n \"what\": " + quoted(finding.what) + ",\n \"batch\": " + std::to_string(batch_) + ",\n \"micro_batch\": " + std::to_string(micro_batch_) +
                     ",\n \"device\": " + quoted(c10::str(device_.type())) + ",\n \"numbers\": {";
  for (size_t i = 0; i < finding.numbers.size(); ++i) json += (i ? ", " : "") + quoted(finding.numbers[i].first) + ": " + number(finding.numbers[i].second);
  json += "},\n \"operators\": " + describe_region(instructions_, values_, uses_, captures_) + "}";
  session().runtime->on_mismatch(json.c_str());
  drop_first_frame();
  close();
  lose_handed_out();
  expected_.reset();
  // The next step of its kind would begin in micro-batches, and leave no witnesses.
  session().signatures = Signatures();
  session().proven = ProvenCalls();  // nor would it be looked at: what was wrong counts as looked at by now
  refuse(condemned_);
}

}  // namespace koila
