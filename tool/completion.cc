// koila completion: what a shell reads to complete koila's commands and options. The scripts ask the command itself, so that they are never out of date.
#include <cstdio>

#include <CLI/App.hpp>

#include "tool/command_line.h"

namespace koila::tool {
namespace {

constexpr const char* kFooter = R"sh(
Examples:
  source <(koila completion bash)                                         in ~/.bashrc
  source <(koila completion zsh)                                          in ~/.zshrc, behind compinit
  koila completion fish > ~/.config/fish/completions/koila.fish)sh";

// Behind `--`, and behind the program's name, words are the program's: they are completed as its own.
constexpr const char* kBash = R"sh(_koila() {
  local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} at
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "$(koila --list-commands)" -- "$current"))
    return
  fi
  for ((at = 2; at < COMP_CWORD; ++at)); do
    if [[ ${COMP_WORDS[at]} == -- ]] && declare -F _command_offset > /dev/null; then
      _command_offset $((at + 1))
      return
    fi
    [[ ${COMP_WORDS[at]} == -- ]] && break
  done
  if [[ $current == -* ]] && ((at == COMP_CWORD)); then
    COMPREPLY=($(compgen -W "$(koila "$command" --list-options 2> /dev/null)" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}
complete -o filenames -F _koila koila
)sh";

constexpr const char* kZsh = "autoload -U +X bashcompinit && bashcompinit\n";

constexpr const char* kFish = R"sh(complete -c koila -n __fish_use_subcommand -f -a '(koila --list-commands)'
for command in (koila --list-commands)
  complete -c koila -n "__fish_seen_subcommand_from $command" -a "(koila $command --list-options 2> /dev/null)"
end
)sh";

}  // namespace

int completion_command(const Words& words) {
  CLI::App app{"Prints what a shell reads to complete koila's commands and options.", "koila completion"};
  app.footer(kFooter);
  std::string shell;
  app.add_option("shell", shell, "bash, zsh or fish")->type_name("SHELL");
  if (const auto status = parse(app, "koila completion bash|zsh|fish", words)) return *status;
  if (shell == "bash") std::fputs(kBash, stdout);
  else if (shell == "zsh") std::printf("%s%s", kZsh, kBash);
  else if (shell == "fish") std::fputs(kFish, stdout);
  else return fail("which shell? koila completion bash, zsh or fish");
  return kDone;
}

}  // namespace koila::tool
