// Sizes as people write and read them.
#ifndef KOILA_RUNTIME_BYTES_H_
#define KOILA_RUNTIME_BYTES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace koila {

// "512MiB", "1.5 GiB", "200MB", "64B": a positive number and a unit of B KiB MiB GiB TiB KB MB GB TB, in any case. A bare number is
// refused, for one who writes 200 rarely means bytes. Nothing when `text` is not of that form or does not fit 63 bits.
std::optional<std::int64_t> parse_bytes(std::string_view text);

// "50%" as 0.5; above 0 up to 100.
std::optional<double> parse_percent(std::string_view text);

// "12.3 MiB": one decimal from KiB on, whole bytes below.
std::string format_bytes(std::int64_t bytes);

}  // namespace koila

#endif  // KOILA_RUNTIME_BYTES_H_
