"""Makes the manual page of the command from its --help.

    man.py COMMAND PAGE
"""

import pathlib
import subprocess
import sys


def said(command: str, *words: str) -> str:
    return subprocess.run([command, *words], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def escaped(text: str) -> str:
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in lines)


def main() -> None:
    command, page = sys.argv[1:]
    version = said(command, "--version").split()[1]
    parts = [f'.TH KOILA 1 "" "koila {version}"', ".SH NAME", "koila \\- keeps an unmodified PyTorch program alive when memory runs out",
             ".SH SYNOPSIS", ".nf", escaped(said(command, "help")), ".fi"]
    for name in said(command, "--list-commands").split():
        parts += [f'.SH "KOILA {name.upper()}"', ".nf", escaped(said(command, name, "--help")), ".fi"]
    pathlib.Path(page).write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
