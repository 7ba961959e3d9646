// What counts as out of memory: by type first, by text last. One table, one place.
#pragma once

#include <exception>

namespace koila {

bool is_out_of_memory(const std::exception& error) noexcept;

}  // namespace koila
