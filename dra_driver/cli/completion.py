"""``dra-driver completion``: completion of commands, flags and their choices by the shell.

The shell function calls the command itself with ``_ARGCOMPLETE`` in its environment; ``main`` hands its
parser to argcomplete then.
"""

from __future__ import annotations

import argparse
import os
import shlex
from typing import Final

__all__ = ["add_arguments", "complete", "completed_words", "run"]

_SHELLS: Final = ("bash", "zsh", "fish")
_PROGRAMS: Final = ("dra-driver", "kubectl-dra")
_EPILOG = """put it into the start-up file of the shell:
  bash    eval "$(dra-driver completion bash)"
  zsh     eval "$(dra-driver completion zsh)"
  fish    dra-driver completion fish | source"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=_SHELLS, help="which shell the function is for")


def run(args: argparse.Namespace) -> int:
    """Print the function for the shell."""
    import argcomplete.shell_integration

    print(argcomplete.shell_integration.shellcode(list(_PROGRAMS), shell=args.shell))
    return 0


def completed_words() -> list[str] | None:
    """Return the words of the line that is completed, without the program; None outside of completion."""
    if "_ARGCOMPLETE" not in os.environ:
        return None
    line = os.environ.get("COMP_LINE", "")
    try:
        return shlex.split(line)[1:]
    except ValueError:
        # A quote is still open.
        return line.split()[1:]


def complete(parser: argparse.ArgumentParser) -> None:
    """Write the completions of the line, and end the process."""
    import argcomplete

    argcomplete.autocomplete(parser)
