// What counts as out of memory: by type first, by text last. One table, one place.
#pragma once

#include <exception>

namespace koila {

bool is_out_of_memory(const std::exception& error) noexcept;

// Whether it is one that Python code in the backward pass (an autograd.Function, a hook) has let through.
bool ran_out_in_python(const std::exception& error) noexcept;

}  // namespace koila
