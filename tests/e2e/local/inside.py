"""What runs in the namespaces, called by ``__main__`` only: ``python -m local.inside SETTINGS COMMAND…``.

As PID 1 of its namespace it adopts and buries what containers leave, while its child does the work.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from local import configuration, host
from local.binaries import TEST_DRIVER
from local.cluster import LocalCluster
from local.configuration import Node
from local.control import Control
from local.processes import NotUpError


def as_init(command: Sequence[str], settings: dict[str, object]) -> int:
    """Forks the worker and reaps everything until it ends; gives its status."""
    worker = os.fork()
    if worker == 0:
        os._exit(guarded(command, settings))
    # An interrupt from the terminal is the worker's to act on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pid, status = os.wait()
        if pid == worker:
            return os.waitstatus_to_exitcode(status)


def guarded(command: Sequence[str], settings: dict[str, object]) -> int:
    """The worker; never lets an exception out, for it is a fork."""
    try:
        return work(command, settings)
    except KeyboardInterrupt:
        return 130
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def work(command: Sequence[str], settings: dict[str, object]) -> int:
    """Starts the cluster, installs the driver, runs the command, stops."""
    root = Path(str(settings["root"]))
    node = Node(
        root=root,
        name=root.name,
        cgroup_version=int(str(settings["cgroup_version"])),
        may_lower_oom_score=bool(settings["may_lower_oom_score"]),
        snapshotter=str(settings["snapshotter"]),
    )
    releases = _releases(settings["releases"])
    cluster = LocalCluster(node, releases, Path(str(settings["project"])), str(settings["gates"]))
    logs = Path(str(settings["logs"]))
    if host.mount_namespace() == settings["outer_mounts"]:
        raise RuntimeError("still in the machine's own mount namespace; this is started by `python -m local`")
    started = time.monotonic()
    code = 1
    try:
        cluster.start(str(settings["gpus"]))
        report(f"node {node.name} is ready after {time.monotonic() - started:.0f} s")
        cluster.install()
        report(f"driver installed after {time.monotonic() - started:.0f} s")
        control = root / "control.sock"
        Control(cluster, control)
        environment = {
            **cluster.environment,
            "CLUSTER": "local",
            "E2E_CONTROL": str(control),
            "E2E_FILES": str(cluster.files.folder),
            "E2E_GATES": str(settings["gates"]),
            "E2E_IMAGE": configuration.SHELL_IMAGE,
            "E2E_RELEASES": " ".join(cluster.releases),
        }
        if TEST_DRIVER in releases[0]:
            environment["E2E_TEST_DRIVER"] = str(releases[0][TEST_DRIVER])
        code = subprocess.run(command, env=environment).returncode
        if dead := cluster.processes.dead():
            report(f"ended during the run: {', '.join(dead)}")
            code = code or 1
    except NotUpError as e:
        report(str(e))
    finally:
        if code:
            cluster.keep_logs(logs)
            report(f"failed; the logs are in {logs}")
        cluster.stop()
    return code


def _releases(value: object) -> list[dict[str, Path]]:
    assert isinstance(value, list)
    return [{name: Path(path) for name, path in release.items()} for release in value]


def report(text: str) -> None:
    """A line of the harness itself."""
    print(f"local cluster: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(as_init(sys.argv[2:], json.loads(sys.argv[1])))
