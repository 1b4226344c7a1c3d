"""``dra-driver completion``: completion of commands, flags and their choices by the shell.

The shell function calls the command itself with ``_ARGCOMPLETE`` in its environment; ``main`` hands its
parser to argcomplete then. kubectl has a protocol of its own: it runs ``kubectl_complete-dra`` with the
words, the last of which is not finished, and reads a line for each completion and a directive.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Final

__all__ = ["add_arguments", "complete", "completed_words", "run", "set_kubectl_line"]

_SHELLS: Final = ("bash", "zsh", "fish")
_PROGRAMS: Final = ("dra-driver", "kubectl-dra")
# Of cobra's shell completion: no names of files where there are no completions.
_NO_FILES: Final = ":4"
_FOR_KUBECTL: Final = "_ARGCOMPLETE_FOR_KUBECTL"
_EPILOG = """put it into the start-up file of the shell:
  bash    eval "$(dra-driver completion bash)"
  zsh     eval "$(dra-driver completion zsh)"
  fish    dra-driver completion fish | source

kubectl's own completion completes `kubectl dra` where kubectl_complete-dra, which
is installed beside dra-driver, is in the PATH."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=_SHELLS, help="shell for which to print the function")


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


def set_kubectl_line(words: Sequence[str]) -> None:
    """Have this process complete for kubectl.

    Args:
        words: after ``kubectl dra``; the last one is completed.
    """
    *before, last = words or [""]
    line = f"{shlex.join(['kubectl-dra', *before])} {last}"
    os.environ.update(
        {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
            _FOR_KUBECTL: "1",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        }
    )


def complete(parser: argparse.ArgumentParser) -> None:
    """Write the completions of the line, and end the process."""
    import argcomplete

    from dra_driver.cli.offering import offer

    offer(parser)
    if _FOR_KUBECTL in os.environ:
        argcomplete.autocomplete(parser, output_stream=sys.stdout, exit_method=_end_for_kubectl)
    else:
        argcomplete.autocomplete(parser)


def _end_for_kubectl(status: int) -> None:
    print(f"\n{_NO_FILES}")
    sys.exit(status)
