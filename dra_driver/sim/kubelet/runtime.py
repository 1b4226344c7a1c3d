"""A stand-in for the container runtime: sandboxes and containers that are only data.

Nothing is executed. What a container would see is computed from the pod's spec and the CDI specs of the node.
How long it lives is read from its command: with ``sleep 2`` it ends after two seconds, with the code of
``exit 3``; without either it runs until it is stopped. The runtime outlives restarts of the kubelet.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.sim.cdi_reader import CdiRegistry, ContainerView
from dra_driver.sim.objects import RunContainer

__all__ = ["RunningContainer", "Sandbox", "SimRuntime"]

_SLEEP = re.compile(r"\bsleep (\d+(?:\.\d+)?)\b")
_EXIT = re.compile(r"\bexit (\d{1,3})\b")
# A container with a longer sleep than this runs until it is stopped.
FOREVER_FROM = 600.0


@dataclass(slots=True)
class RunningContainer:
    """One container, running or ended.

    Attributes:
        view: environment, device nodes and mounts as the container sees them.
        started: monotonic seconds.
        ends: monotonic seconds at which the command is over; None if it does not end by itself.
        exit_code: exit code of the command.
        restarts: how often it was started again.
    """

    name: str
    view: ContainerView
    started: float
    ends: float | None
    exit_code: int
    restarts: int = 0

    def ended(self, now: float) -> bool:
        """Return whether its command is over."""
        return self.ends is not None and now >= self.ends

    def output(self) -> str:
        """Return what ``env; ls /dev`` would print in the container."""
        lines = [f"{k}={v}" for k, v in sorted(self.view.env.items())]
        lines += sorted(d.path for d in self.view.devices)
        return "\n".join(lines) + "\n"


@dataclass(slots=True)
class Sandbox:
    """A pod's sandbox and its containers by name."""

    namespace: str
    pod: str
    containers: dict[str, RunningContainer] = field(default_factory=dict)


@dataclass(slots=True)
class SimRuntime:
    """The runtime of one node.

    Attributes:
        cdi: the CDI specs of the node.
        cgroups: directory of the node's cgroups; those of pods say whether they have processes.
        sandboxes: the sandboxes by pod UID.
        stubborn: UIDs of pods whose processes do not end when they are stopped.
    """

    cdi: CdiRegistry
    cgroups: Path
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    stubborn: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Make the cgroup above those of all pods, as the kubelet does when it starts."""
        self._write_cgroup(self.cgroups / "kubepods", populated=bool(self.sandboxes))

    def run_sandbox(self, uid: str, namespace: str, pod: str) -> Sandbox:
        """Return the pod's sandbox; make it if there is none."""
        self._write_cgroup(self._cgroup(uid), populated=True)
        return self.sandboxes.setdefault(uid, Sandbox(namespace, pod))

    def start_container(
        self, uid: str, container: RunContainer, cdi_devices: Sequence[str]
    ) -> RunningContainer:
        """Create and start a container; one of the same name that has ended is replaced.

        Raises:
            CdiError: the devices cannot be injected; the text is the runtime's.
        """
        sandbox = self.sandboxes[uid]
        self.cdi.refresh()
        view = self.cdi.inject(cdi_devices, ContainerView(env={e.name: e.value for e in container.env}))
        old = sandbox.containers.get(container.name)
        now = time.monotonic()
        seconds, code = _life(container)
        running = RunningContainer(
            container.name,
            view,
            now,
            None if seconds is None else now + seconds,
            code,
            old.restarts + 1 if old is not None else 0,
        )
        sandbox.containers[container.name] = running
        return running

    def end_processes(self, uid: str) -> None:
        """End the processes of the pod, the sandbox's own too; what is known of its containers stays."""
        if uid not in self.stubborn and self._cgroup(uid).exists():
            self._write_cgroup(self._cgroup(uid), populated=False)

    def stop_sandbox(self, uid: str) -> None:
        """Stop and remove everything of the pod; an unknown pod is ignored."""
        self.sandboxes.pop(uid, None)
        if uid not in self.stubborn:
            shutil.rmtree(self._cgroup(uid), ignore_errors=True)

    def _cgroup(self, uid: str) -> Path:
        return self.cgroups / "kubepods" / f"pod{uid}"

    @staticmethod
    def _write_cgroup(folder: Path, *, populated: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Read at any time: never half-written.
        new = folder / ".new"
        new.write_text(f"populated {int(populated)}\nfrozen 0\n", encoding="ascii")
        new.replace(folder / "cgroup.events")


def _life(container: RunContainer) -> tuple[float | None, int]:
    text = " ".join((*container.command, *container.args))
    sleep, exit_code = _SLEEP.search(text), _EXIT.search(text)
    code = int(exit_code[1]) if exit_code else 0
    if sleep is not None:
        seconds = float(sleep[1])
        return (None if seconds >= FOREVER_FROM else seconds), code
    return (0.0 if exit_code else None), code
