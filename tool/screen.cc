#include "tool/screen.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace koila::tool {
namespace {

constexpr const char* kEnter = "\033[?1049h\033[?25l\033[2J";
constexpr const char* kLeave = "\033[?25h\033[?1049l";

volatile sig_atomic_t quit = 0, resized = 0, stopped = 0;
termios before;
bool has_before = false;
sigset_t signals_before;

void put(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) at += static_cast<std::size_t>(n);
  }
}

void on_signal(int number) {
  if (number == SIGWINCH) resized = 1;
  else if (number == SIGTSTP) stopped = 1;
  else quit = 1;
}

void enter() {
  if (has_before) {
    termios raw = before;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  }
  put(kEnter);
}

void leave() {
  if (has_before) tcsetattr(STDIN_FILENO, TCSANOW, &before);
  put(kLeave);
}

// Ctrl-Z: the shell gets its terminal, until it wants us back.
void stop_and_come_back() {
  stopped = 0;
  leave();
  raise(SIGSTOP);
  enter();
}

}  // namespace

TerminalSize terminal_size() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

std::string cut(const std::string& text, int columns) {
  int seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (begins && seen++ == columns) return text.substr(0, i);
  }
  return text;
}

Screen::Screen() {
  quit = 0;
  resized = 0;
  stopped = 0;
  has_before = tcgetattr(STDIN_FILENO, &before) == 0;
  // They come while we wait, and at no other time: so none is lost between a look and the wait.
  sigset_t ours;
  sigemptyset(&ours);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP}) {
    sigaddset(&ours, number);
    sigaction(number, &action, nullptr);
  }
  sigprocmask(SIG_BLOCK, &ours, &signals_before);
  enter();
}

Screen::~Screen() {
  leave();
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP}) signal(number, SIG_DFL);
  sigprocmask(SIG_SETMASK, &signals_before, nullptr);
}

void Screen::draw(const std::vector<std::string>& lines) {
  std::string text = "\033[H";
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i > 0 ? "\r\n" : "") + lines[i] + "\033[K";
  put(text + "\033[J");
}

Screen::Event Screen::wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  bool has_keys = has_before;
  while (true) {
    if (quit) return Event::kQuit;
    if (stopped) {
      stop_and_come_back();
      return Event::kResize;
    }
    if (resized) {
      resized = 0;
      return Event::kResize;
    }
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now()).count();
    if (left <= 0) return Event::kTimeout;
    const timespec time = {static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
    pollfd keys = {STDIN_FILENO, POLLIN, 0};
    if (ppoll(&keys, has_keys ? 1 : 0, &time, &signals_before) <= 0) continue;
    char key[64];
    const ssize_t n = read(STDIN_FILENO, key, sizeof key);
    if (n <= 0) has_keys = false;  // the terminal is gone
    for (ssize_t i = 0; i < n; ++i)
      if (key[i] == 'q' || key[i] == 'Q' || key[i] == 3 || key[i] == 4) return Event::kQuit;
  }
}

}  // namespace koila::tool
