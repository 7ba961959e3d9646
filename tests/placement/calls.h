// From a case to a call that the checker can run.
#pragma once

#include "tests/placement/cases.h"
#include "tests/placement/checker.h"

namespace koila::cases {

// Makes the tensors, from the default generator.
conformance::Call call_of(const Case& c);

}  // namespace koila::cases
