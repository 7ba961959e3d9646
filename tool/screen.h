// The whole terminal, as long as this object lives: another screen than the one with the shell's lines, which comes back with all its settings
// however it ends, but by SIGKILL.
#ifndef KOILA_TOOL_SCREEN_H_
#define KOILA_TOOL_SCREEN_H_

#include <string>
#include <vector>

namespace koila::tool {

struct TerminalSize {
  int columns = 80;
  int rows = 24;
};

// Of stdout.
TerminalSize terminal_size();

// Cut to so many columns, a character of UTF-8 each. Colours of one's own are added behind.
std::string cut(const std::string& text, int columns);

class Screen {
 public:
  // On stdin and stdout; one at a time in a process.
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void draw(const std::vector<std::string>& lines);

  enum class Event { kTimeout, kResize, kQuit };
  // Until a time, a key or a signal: q, Ctrl-C, Ctrl-D and the signals that end programs are kQuit; other keys are nothing.
  Event wait(double seconds);
};

}  // namespace koila::tool

#endif  // KOILA_TOOL_SCREEN_H_
