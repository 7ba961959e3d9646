// What a person can do about a refusal, by its reason.
#ifndef KOILA_RUNTIME_REPORT_REMEDY_H_
#define KOILA_RUNTIME_REPORT_REMEDY_H_

#include <string>

namespace koila {

// One sentence without a full stop, for the "do:" part; "" where the reason is none of koila's.
std::string remedy(const std::string& reason);

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_REMEDY_H_
