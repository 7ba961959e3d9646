// What holds of every step in micro-batches, whatever the program does; looked at always, for it costs next to nothing.
#pragma once

namespace koila {

// Note [Invariants]
// One that does not hold is a bug of koila's: the rescue ends as a refusal with its name, and a file to send in. Nothing that has been computed since is shown to
// the program. Region::broken() takes note; the refusal follows where the program would get a value or a gradient.
namespace invariant {

inline constexpr const char* kNoKernelSeesDeferred = "no kernel sees a deferred tensor";
inline constexpr const char* kRowsOnce = "the rows of micro-batches cover the batch once";
inline constexpr const char* kSumsReachTheirCount = "sums over micro-batches reach their count";
inline constexpr const char* kPartsFit = "a micro-batch's part of a value has the rows that its placement says";
inline constexpr const char* kCapturesKeepTheirGraph = "what a region reads has the gradient that the program sees";
inline constexpr const char* kHandedOutIsReal = "what was handed out has its value when the step ends";
inline constexpr const char* kLeavesAreReached = "backward reaches the parameters that it reached before the step was split";
inline constexpr const char* kStatisticsStay = "splitting a step moves no running statistics";
inline constexpr const char* kMadeAgainIsTheSame = "what is made again at the full batch is what it was";

}  // namespace invariant

}  // namespace koila
