"""The entry point of ``dra-driver``: it parses the command line and runs one subcommand.

A subcommand is a module of this package with ``add_arguments(parser)`` and ``run(args) -> int``. Only the
module of the chosen subcommand is imported, so that ``kubelet-plugin`` does not pay for the allocator's
libraries. Where 1 has a meaning for the subcommand, ``FAILURE`` is its exit status for failures.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Callable, Sequence

import dra_driver
from dra_driver.cli import common, completion
from dra_driver.cli.display.helps import CommandsFormatter, HelpFormatter
from dra_driver.cli.display.report import printable
from dra_driver.errors import ConfigurationError, DraError, InvalidInput
from dra_driver.suggestions import did_you_mean

__all__ = ["kubectl_complete", "kubectl_dra", "main"]

_DESCRIPTION = "Dynamic Resource Allocation for Kubernetes: pods ask for devices by what they are."

_EPILOG = """Without a cluster, dra-driver demo shows all of it. In a cluster, {prog} status shows the
fleet, and {prog} explain pod/NAME why a pod waits. Flags and examples of a command: {prog} COMMAND --help."""

# Name → (module below dra_driver.cli, one line of help). The help is kept here so that `dra-driver --help`
# imports nothing.
COMMANDS = {
    "demo": (
        "processes.demo",
        "the embedded cluster end to end: simulated nodes, example pods, and a table of their devices",
    ),
    "status": ("status", "the fleet: devices by model, node and state; the claims that wait, and why"),
    "explain": ("explain", "why a pod, a claim or a workload has its devices, or has none"),
    "plan": ("plan", "whether a workload fits, and what would make it fit"),
    "cel": ("cel", "evaluate a device selector: which devices it selects, and what it costs"),
    "devices": ("node.devices", "show the devices that discovery finds on this machine"),
    "cdi": (
        "node.cdi",
        "CDI documents of this node: list devices, validate documents, show what a device gives a container",
    ),
    "allocate": ("allocate", "run the allocator on manifests or recorded cases, and print its decisions"),
    "simulate": (
        "simulate",
        "replay a week of claims under first fit and best fit, and draw how fragmented the devices become",
    ),
    "bench": ("bench", "measure one part, and print the result as JSON or YAML"),
    "certificates": (
        "certificates",
        "create the certificate authority of the webhooks if Helm does not",
    ),
    "controller": (
        "processes.controller",
        "the cluster controller: publishes ResourceSlices, allocates ResourceClaims",
    ),
    "kubelet-plugin": (
        "processes.kubelet_plugin",
        "the node agent: discovery, registration, prepare and unprepare",
    ),
    "sim": ("processes.sim", "run one part of the embedded cluster alone: sim apiserver"),
    "fake-hardware": (
        "node.fake_hardware",
        "build sysfs, procfs and dev trees of a simulated machine from its profile",
    ),
    "completion": ("completion", "a function for bash, zsh or fish that completes commands and flags"),
    "version": ("version", "the versions of the driver and of Python, and the Kubernetes API in use"),
}

# How --help groups them; what only developers of the driver need is not listed.
GROUPS = {
    "ask a cluster": ("status", "explain", "plan", "cel"),
    "try without a cluster": ("demo", "allocate", "simulate"),
    "look at this machine": ("devices", "cdi"),
    "set up a cluster": ("certificates",),
    "run a part of the driver": ("controller", "kubelet-plugin"),
    "this command": ("completion", "version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 for success, 1 for a failure, 2 for bad usage or configuration.
    """
    return _main("dra-driver", list(COMMANDS), argv)


def kubectl_dra(argv: Sequence[str] | None = None) -> int:
    """Run ``kubectl dra``: kubectl does so if ``kubectl-dra`` is in the PATH. Same results as ``main``."""
    return _main("kubectl dra", ["status", "explain", "plan", "cel", "version"], argv)


def kubectl_complete(argv: Sequence[str] | None = None) -> int:
    """Complete a line of ``kubectl dra``: kubectl runs ``kubectl_complete-dra`` for that."""
    completion.set_kubectl_line(sys.argv[1:] if argv is None else argv)
    return kubectl_dra([])


def _main(prog: str, commands: Sequence[str], argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    words = completion.completed_words()
    chosen = next((a for a in words or arguments if not a.startswith("-")), None)
    args, run, failure = _parse(prog, commands, chosen, arguments)
    common.configure_logging(args.log_level, args.log_format)

    def report(error: object) -> None:
        # It may quote objects that others wrote, and what a server answers.
        print(printable(f"{prog} {chosen}: {error}"), file=sys.stderr)

    try:
        return int(run(args))
    except ConfigurationError as e:
        for finding in e.findings:
            report(finding)
        return 2
    except InvalidInput as e:
        report(e)
        return 2
    except DraError as e:
        report(e)
        return failure
    except BrokenPipeError:
        # The reader of the output has gone (``| head``): not an error to report.
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        return 130


def _parse(
    prog: str, commands: Sequence[str], chosen: str | None, arguments: list[str]
) -> tuple[argparse.Namespace, Callable[[argparse.Namespace], int], int]:
    """Parse the arguments with the flags of the chosen subcommand.

    Returns:
        The arguments, the ``run`` of the subcommand, and the exit status of its failures.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=_EPILOG.format(prog=prog),
        formatter_class=functools.partial(CommandsFormatter, groups=GROUPS),
    )
    parser.add_argument("--version", action="version", version=f"{prog} {dra_driver.__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    run, failure = None, 1
    command_parser = parser
    for name in commands:
        module, text = COMMANDS[name]
        sub = subparsers.add_parser(name, help=text, description=text, formatter_class=HelpFormatter)
        if name == chosen:
            try:
                loaded = importlib.import_module(f"dra_driver.cli.{module}")
            except ModuleNotFoundError as e:
                if e.name != "dra_driver.sim":
                    raise
                # deploy/Dockerfile leaves it out.
                sub.error("this image has no embedded cluster; install the package dra-driver")
            loaded.add_arguments(sub)
            if sub.epilog:
                # The examples are typed as the command was.
                sub.epilog = sub.epilog.replace("\n  dra-driver ", f"\n  {prog} ")
            common.add_logging_arguments(
                sub.add_argument_group("logging"), sub.get_default("log_level") or "info"
            )
            run = loaded.run
            failure = getattr(loaded, "FAILURE", 1)
            command_parser = sub
    if completion.completed_words() is not None:
        completion.complete(parser)
    elif chosen is not None and chosen not in commands:
        meant = did_you_mean(chosen, commands)
        parser.error(f"there is no command {printable(chosen[:80])!r}{meant or f'; see {prog} --help'}")
    if not arguments:
        parser.print_help(sys.stderr)
        parser.exit(2)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        # Print the usage of the subcommand, not that of the whole command.
        command_parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    assert run is not None  # argparse has refused everything else
    return args, run, failure


if __name__ == "__main__":
    sys.exit(main())
