// Phrases that the forms of the text report share.
#ifndef KOILA_RUNTIME_REPORT_PHRASES_H_
#define KOILA_RUNTIME_REPORT_PHRASES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/report/data.h"

namespace koila {

constexpr const char* kInMicroBatch = "a micro-batch";  // the operator of an out-of-memory in one

constexpr double kNoTime = 0.0005;  // seconds that are not worth telling

std::string plural(std::int64_t n, const char* what);                // "1 step", "3 steps"
std::string rows(std::int64_t micro_batch, std::int64_t batch);      // "16 of 64 rows"
std::string duration(double seconds);                                // "12 ms", "3.4 s", "17 min", "12.5 h"
std::string step_time(double seconds);                               // the same with three digits: "0.34 s"
std::string share(std::int64_t part, std::int64_t whole);            // "(72%)"
std::string innermost(const std::string& where);                     // the innermost frame: the others are in the JSON
std::string shortened(const std::string& name);                      // of a C++ template's name both ends
std::int64_t sum_of(const CategoryBytes& bytes);

// What was there at the peak of a device by what it was for, the largest first. On CUDA the tensors lie inside what was got from the device, and that is
// not all that is in use there.
std::vector<std::pair<std::int64_t, std::string>> parts_of_peak(const DeviceFigures& device);

std::string holder_line(const Holder& holder);
// Those who held most first, at their peaks: at exit most has been given back. "" when nobody held any.
std::string sources_line(const ReportData& data, int device);
std::string outside_line(const DeviceFigures& device);
std::string leak_line(const Leak& leak);
// Operators for want of a rule, those with the most bytes first.
std::string full_batch_line(const EventList& events);

// Of all rescues and refusals.
double seconds_of_running_out(const ReportData& data);

// "next: ..."; "" where there is nothing, or where the first refusal says it already, in its "do:".
std::string next_line(const ReportData& data);

// The CPU, the devices, then what CUDA gives outside them; of like ones in their order.
std::vector<const DeviceFigures*> in_order(const ReportData& data);

}  // namespace koila

#endif  // KOILA_RUNTIME_REPORT_PHRASES_H_
