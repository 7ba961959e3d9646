// Whether koila is in the process, and its report (docs/report.md).
//
// Any thread. C++17; header-only over LibTorch.
#ifndef KOILA_REPORT_H_
#define KOILA_REPORT_H_

#include <c10/util/Exception.h>

#include <string>

#include "koila/detail/abi.h"

namespace koila {

// Whether a libkoila.so of these headers is in the process, preloaded or linked. It may still stay out of it (KOILA_MODE=off, another torch): koila::memory tells whether
// it counts.
inline bool loaded() { return static_cast<bool>(detail::Abi::get()); }

// Of the libkoila.so in the process, such as "0.1.0"; "" where there is none.
inline std::string version() { return loaded() ? detail::Abi::get().version() : ""; }

// Writes the report of the run so far. The suffix says in which form: .txt, .json, .html, .csv or .pickle; %p in the path is the process' number, %h the host. Throws
// c10::Error where koila is not in the process, and where it cannot be written.
inline void report(const std::string& path) {
  const int problem = detail::need_koila("koila::report").write_report(path.c_str());
  TORCH_CHECK(problem == 0, "koila::report: nothing was written to ", path, "; expected is a path to a folder that can be written to, with the suffix .txt, .json, "
              ".html, .csv or .pickle, and a koila that does not stay out of the process (its log says more)");
}

}  // namespace koila

#endif  // KOILA_REPORT_H_
