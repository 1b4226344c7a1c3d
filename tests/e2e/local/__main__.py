"""``python -m local --bin DIR [-- COMMAND…]``: a cluster while a command runs, by default the suite."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from local import binaries, configuration, host
from local.cluster import MOUNT_POINTS, known_gates

USAGE, FAILED = 2, 1
SUITE = Path(__file__).resolve().parent.parent
PROJECT = SUITE.parent.parent
NAMESPACES = ("--mount", "--propagation=slave", "--net", "--pid", "--ipc", "--uts", "--fork")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="local", description=__doc__)
    parser.add_argument(
        "--bin",
        action="append",
        default=[],
        metavar="DIR",
        help="folder of Kubernetes release binaries; may be repeated, the oldest first: the cluster begins "
        "with that, and the command may move it to the others",
    )
    parser.add_argument(
        "--gpus", default="examples", metavar="PROFILE", help="the node's simulated GPUs; default: examples"
    )
    parser.add_argument(
        "--gates",
        default="",
        metavar="GATES",
        help="feature gates of all components: default (as the release has them), all (those that concern "
        "the driver, as far as the release knows them), or names with commas between them; default: all, "
        "or default where the cluster is upgraded",
    )
    parser.add_argument("--logs", type=Path, default=PROJECT / "build" / "e2e-local", metavar="DIR")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="default: pytest on the suite")
    return parser.parse_args(arguments)


def refuse(text: str) -> NoReturn:
    """Ends with the status of bad usage."""
    print(f"local cluster: {text}", file=sys.stderr)
    sys.exit(USAGE)


def main(arguments: Sequence[str]) -> int:
    """Checks, makes the namespaces, runs what is inside, clears up."""
    options = parse(arguments)
    folders = [Path(name).absolute() for name in options.bin if name]
    if not folders:
        refuse("which binaries? make e2e CLUSTER=local BIN=DIR, a folder of Kubernetes release binaries")
    for folder in folders:
        if not folder.is_dir():
            refuse(f"BIN={folder}: no such folder; it should hold Kubernetes release binaries")
    if os.geteuid() != 0:
        refuse(f"needs root, for namespaces, mounts and cgroups; this is user {os.geteuid()}")
    try:
        found = [binaries.find(folder, binaries.search_path(os.environ)) for folder in folders]
        for release in found:
            configuration.gates_of(gates_for(options, found), known_gates(release["kube-apiserver"]))
    except (binaries.MissingBinariesError, ValueError) as e:
        refuse(str(e))
    for root in host.remove_stale():
        print(f"local cluster: removed {root}, left by a run that was killed", file=sys.stderr)
    with host.kernel_settings(), host.mount_points(*MOUNT_POINTS):
        root, lock = host.make_root()
        try:
            return run(found[0]["unshare"], settings_of(options, found, root), command_of(options), lock)
        finally:
            os.close(lock)
            host.remove_root(root)


def command_of(options: argparse.Namespace) -> list[str]:
    """What runs against the cluster."""
    return list(options.command) or [sys.executable, "-m", "pytest", "-m", "e2e", str(SUITE)]


def gates_for(options: argparse.Namespace, found: Sequence[object]) -> str:
    """Which feature gates are on: an upgrade is about what releases bring by themselves."""
    return options.gates or (configuration.ALL_GATES if len(found) == 1 else configuration.DEFAULT_GATES)


def settings_of(
    options: argparse.Namespace, found: Sequence[Mapping[str, Path]], root: Path
) -> dict[str, object]:
    """What the process in the namespaces has to know."""
    return {
        "root": str(root),
        "project": str(PROJECT),
        "logs": str(options.logs.absolute()),
        "releases": [{name: str(path) for name, path in release.items()} for release in found],
        "gpus": options.gpus,
        "gates": gates_for(options, found),
        "cgroup_version": host.cgroup_version(),
        "may_lower_oom_score": host.has_capability(host.CAP_SYS_RESOURCE),
        "outer_mounts": host.mount_namespace(),
        "snapshotter": host.snapshotter(root),
    }


def run(unshare: Path, settings: dict[str, object], command: Sequence[str], lock: int) -> int:
    """Runs ``local.inside`` in namespaces that die with us; it holds the lock of the root too."""
    # --kill-child: whatever ends this process, the kernel ends PID 1 of the namespace and all in it.
    line = [str(unshare), *NAMESPACES, "--kill-child", "--mount-proc", "--", sys.executable]
    line += ["-m", "local.inside", json.dumps(settings), *command]
    environment = {**os.environ, "PYTHONPATH": str(SUITE)}
    signal.signal(signal.SIGTERM, terminate)
    die = host.die_with_parent
    # ruff fears threads between fork and exec; this process has none.
    with subprocess.Popen(line, env=environment, pass_fds=(lock,), preexec_fn=die) as child:  # noqa: PLW1509
        try:
            return child.wait()
        except KeyboardInterrupt:
            # The terminal has told the worker as well, which stops the cluster.
            try:
                return child.wait(30)
            except (KeyboardInterrupt, subprocess.TimeoutExpired):
                return FAILED
        finally:
            child.kill()


def terminate(number: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM as an exception, so that everything is cleared up."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
