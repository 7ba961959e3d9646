// Text from outside, for a terminal or a line of the log: file names, variables, operators' names, whatever stands in a record or a report.
#ifndef KOILA_RUNTIME_PRINTABLE_H_
#define KOILA_RUNTIME_PRINTABLE_H_

#include <string>
#include <string_view>

namespace koila {

// Without what would move the cursor, change colours, end the line or show the rest in another order: a '?' stands for each control character (of C0, of C1,
// DEL), each byte that is no UTF-8, and each mark that turns the direction of text; a blank for a tab or the end of a line. What is left is one line of UTF-8.
std::string printable(std::string_view text);

// The same for several lines of one's own making: ends of lines stay.
std::string printable_lines(std::string_view text);

// For JSON, which may hold DEL and the characters of C1 as they are, and may go to a terminal.
std::string without_controls(std::string json);

}  // namespace koila

#endif  // KOILA_RUNTIME_PRINTABLE_H_
