"""`python -m koila`, and the script `koila` that pip installs: hand over to the command, in the same process."""

import os
import sys
from pathlib import Path


def main():
    command = Path(__file__).resolve().parent / "bin" / "koila"
    try:
        os.execv(command, ["koila", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"koila: cannot run {command}: {error.strerror}; an editable install has no command (docs/install.md)")


if __name__ == "__main__":
    main()
