// Source lines of the program (KOILA_STACKS=1).
#pragma once

#include <cstdint>
#include <string>

namespace koila {

// The number (koila_runtime::place_number) of the line that this thread is at: Python's frames where it runs Python, else C++'s; innermost first, one a line of the
// text, without PyTorch's own on top. 0: none is known. Takes the GIL, so it must not be called under a lock that a thread with the GIL may want. A place
// that was seen before costs some hundred nanoseconds a frame; a new one is looked up, in C++ in the program's debugging information.
uint32_t source_line_now();
// The same, but 0 where that would be C++'s.
uint32_t python_line_now();

// The innermost line of that place, as "file:line in function"; an empty text for the number 0.
std::string source_line_text(uint32_t number);

}  // namespace koila
