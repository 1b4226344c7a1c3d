"""The directories of a simulated node, and the delays of its kubelet."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SOCKET_PATH_BYTES", "KubeletSettings", "NodeLayout"]

# sockaddr_un.sun_path has 108 bytes with the closing zero.
SOCKET_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The directories of one node below its root, which stands for ``/``, with short names."""

    root: Path

    @property
    def kubelet(self) -> Path:
        """Stands for ``/var/lib/kubelet``."""
        return self.root / "k"

    @property
    def registry(self) -> Path:
        """Stands for ``/var/lib/kubelet/plugins_registry``."""
        return self.kubelet / "r"

    @property
    def pod_resources(self) -> Path:
        """Stands for ``/var/lib/kubelet/pod-resources/kubelet.sock``."""
        return self.kubelet / "pod-resources" / "kubelet.sock"

    @property
    def plugins(self) -> Path:
        """Stands for ``/var/lib/kubelet/plugins``."""
        return self.kubelet / "p"

    @property
    def cdi(self) -> Path:
        """Stands for ``/var/run/cdi``."""
        return self.root / "cdi"

    @property
    def state(self) -> Path:
        """Directory of the plugin's checkpoint."""
        return self.root / "s"

    @property
    def dev(self) -> Path:
        """Stands for ``/dev``."""
        return self.root / "dev"

    @property
    def hardware(self) -> Path:
        """File with the profile of the node's simulated hardware."""
        return self.root / "hardware.yaml"

    @property
    def nics(self) -> Path:
        """Directory with ``sys`` and ``dev`` of the node's RDMA NICs, if it has any."""
        return self.root / "n"

    @property
    def proc(self) -> Path:
        """Stands for ``/proc``, of which only the boot ID is there."""
        return self.root / "proc"

    @property
    def cgroups(self) -> Path:
        """Stands for ``/sys/fs/cgroup``, of which only the cgroups of pods are there."""
        return self.root / "cg"

    @property
    def checkpoint(self) -> Path:
        """The kubelet's own checkpoint of prepared claims."""
        return self.kubelet / "dra_manager_state"

    def create(self) -> None:
        """Make the directories."""
        made = (self.registry, self.plugins, self.pod_resources.parent, self.cdi, self.state, self.dev)
        for directory in made:
            directory.mkdir(parents=True, exist_ok=True, mode=0o750)
        if not self.proc.exists():
            self.boot()

    def boot(self) -> None:
        """Write a new boot ID, as after a boot of the node."""
        file = self.proc / "sys/kernel/random/boot_id"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{uuid.uuid4()}\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Delays of the kubelet, in seconds. The defaults are those of the real one, as recorded.

    Attributes:
        registry_tick: time between two looks at the registry directory.
        registration_backoff: first delay after a failed registration; it doubles up to ``registration_cap``.
        registration_cap: longest delay after a failed registration.
        get_info_timeout: deadline of GetInfo.
        notify_timeout: deadline of NotifyRegistrationStatus.
        call_timeout: deadline of NodePrepareResources and NodeUnprepareResources.
        startup_wipe: delay after the start until the slices of the node are deleted; if None, they are not.
        wipe_delay: delay after a plugin is lost until its slices are deleted.
        prepare_retry: delay before a failed prepare is tried again.
        unprepare_retry: delay before a failed unprepare is tried again for the first time.
        unprepare_retry_later: delay before it is tried again every further time.
        create_retry: delay before a container that could not be created is tried again.
        restart_backoff: delay before a container that has ended is started again.
        health_retry: delay before an ended health stream is opened again.
        stop_delay: time that containers take to stop; at most the pod's grace period.
        exit_detection: delay until the end of a container is noticed.
        reconcile: time between two searches for claims of deleted pods.
        heartbeat: time between two updates of the Node's Ready condition.
    """

    registry_tick: float = 1.0
    registration_backoff: float = 0.5
    registration_cap: float = 122.0
    get_info_timeout: float = 1.0
    notify_timeout: float = 5.0
    call_timeout: float = 45.0
    startup_wipe: float | None = 0.35
    wipe_delay: float = 30.0
    prepare_retry: float = 65.0
    unprepare_retry: float = 0.8
    unprepare_retry_later: float = 10.0
    create_retry: float = 12.0
    restart_backoff: float = 10.0
    health_retry: float = 5.0
    stop_delay: float = 0.5
    exit_detection: float = 1.0
    reconcile: float = 60.0
    heartbeat: float = 10.0

    @classmethod
    def quick(cls) -> KubeletSettings:
        """Return shorter delays, for the demo and for tests."""
        return cls(
            registry_tick=0.1,
            registration_backoff=0.2,
            registration_cap=2.0,
            startup_wipe=0.05,
            wipe_delay=3.0,
            prepare_retry=2.0,
            unprepare_retry=0.3,
            unprepare_retry_later=1.0,
            create_retry=1.0,
            restart_backoff=0.5,
            health_retry=1.0,
            stop_delay=0.0,
            exit_detection=0.1,
            reconcile=5.0,
        )
