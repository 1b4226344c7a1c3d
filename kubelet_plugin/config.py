"""Settings of the node agent, checked as a whole before anything starts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver import discovery
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.policy import WITHHOLD
from dra_driver.errors import ConfigurationError
from dra_driver.ports import DeviceBackend
from dra_driver.preparation import EVERY_NAMESPACE, PassthroughPolicy
from kubelet_plugin.core import files
from kubelet_plugin.core.addresses import parse_address

__all__ = ["MAX_SOCKET_PATH", "Configuration", "Timings"]

# sockaddr_un has 108 bytes, the last one is NUL.
MAX_SOCKET_PATH: Final = 107

_INSTANCE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Waiting times of the process at its start, at its end and between looks, in seconds.

    No flags: other values are for tests. How long a call waits is in ``claims.planning.Timing``.

    Attributes:
        lock: for another instance of the same name to release the state directory, at the start.
        restoring: for calls to GPUs at the start, all together, when claims are put in order.
        first_scan: for the first look at the hardware before the kubelet may call: a library that hangs must
            not keep the kubelet from unpreparing.
        silence: for the kubelet to ask for the plugin, before a warning.
        guard: between two looks at our sockets.
        handover: at the end, while another instance serves. The kubelet looks for removed registrars once a
            second; until then it may call the one that ends.
        shutdown: for calls to end. Longer than any call may take; the DaemonSet's grace period is longer
            still.
        withdrawal: at the end, for writing to the API server that the plugin is gone.
        closing: at the end, for libraries to be closed; one that hangs is not waited for.
        renew: between two looks at documents when discovery finds nothing new.
        renew_again: likewise while some documents could not be written: a container runtime tries a container
            again after about 12 s.
        first_leftovers: after the start, for the first look at what no claim holds.
        leftovers: between two such looks.
        confirm_leftovers: likewise after a finding. Longer than any prepare takes.
        occupied: between two looks at which partitions no claim holds, if no hardware is changed.
    """

    lock: float = 10.0
    restoring: float = 60.0
    first_scan: float = 10.0
    silence: float = 30.0
    guard: float = 1.0
    handover: float = 1.5
    shutdown: float = 45.0
    withdrawal: float = 5.0
    closing: float = 2.0
    renew: float = 60.0
    renew_again: float = 10.0
    first_leftovers: float = 10.0
    leftovers: float = 300.0
    confirm_leftovers: float = 60.0
    occupied: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """All settings of the node agent.

    Attributes:
        node_name: name of the Node, which is also the name of its pool.
        kubeconfig: path; if None, the KUBECONFIG variable counts, then the pod's service account.
        plugins_dir: the kubelet's ``plugins``; our socket is in ``<plugins_dir>/<driver>``.
        registry_dir: the kubelet's ``plugins_registry``.
        pod_resources_socket: where the kubelet says which pods have which claims; it need not be there.
        state_dir: where the checkpoint is; if None, beside the socket.
        backends: ``NAME[=ARG]``; if empty, every built-in backend that finds its hardware.
        procfs_root: where procfs is; the boot ID is read there, and which processes have devices open.
        cgroup_root: where the host's cgroup file system is; which pods have processes is read there.
        instance_id: makes the sockets of two plugins of one driver on one node different, for updates without
            a gap; the pod's UID. If empty, there is one plugin at a time.
        rescan_seconds: time between two looks at the hardware.
        scan_deadline: seconds after which a backend counts as hanging that does not answer.
        busy_percent: a device whose load reaches it is busy, and idle below half of it.
        busy_seconds: over which the load is taken, and for which it must stay before it is reported.
        host_root: where the host's file system is, with NVIDIA's CDI document and driver files.
        nvidia_driver_root: where NVIDIA's driver is on the host: a path, or ``auto`` for the usual places.
        nvidia_cdi_hook: path of NVIDIA's hook program on the host; if empty, the usual places are looked at.
        metrics_address: ``HOST:PORT`` for metrics and probes; if empty, none are served.
        http_authorization: ``none``, or ``rbac``: metrics and state need a token whose account may get their
            path, by a rule for ``nonResourceURLs``; probes do not.
        device_metadata: containers get files that describe their devices (KEP-5304).
        nvidia_smi: sets time slices; a path, or a name to be found in PATH.
        mps_control: NVIDIA's MPS control daemon; likewise. If it is missing, nothing is shared by MPS.
        passthrough: claims may have devices bound to vfio-pci.
        destroy_unowned_partitions: at the start, destroy the partitions that no claim holds and no
            administrator owns (``gpu.owned_partitions``).
        passthrough_class_namespaces: namespaces whose claims may if a DeviceClass asks for it; if empty,
            every one.
        passthrough_claim_namespaces: namespaces whose claims may if their own parameters ask for it; ``*``
            stands for every one.
        publish: which part publishes the node's slices: ``controller`` or ``node``.
        beside_device_plugin: with ``node``: whether devices that a device plugin hands out are withheld.
        beside_other_driver: with ``node``: whether devices that another DRA driver publishes are withheld.
        mps_launcher: what keeps the daemons running: ``systemd``, ``session`` or ``auto``.
        mps_shared_memory: that the clients of one daemon may use together as ``/dev/shm``, in bytes.
    """

    node_name: str
    driver_name: str = DEFAULT_DRIVER_NAME
    kubeconfig: Path | None = None
    plugins_dir: Path = Path("/var/lib/kubelet/plugins")
    registry_dir: Path = Path("/var/lib/kubelet/plugins_registry")
    pod_resources_socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path | None = None
    backends: tuple[str, ...] = ()
    sysfs_root: Path = Path("/sys")
    dev_root: Path = Path("/dev")
    procfs_root: Path = Path("/proc")
    cgroup_root: Path = Path("/sys/fs/cgroup")
    instance_id: str = ""
    rescan_seconds: float = 60.0
    scan_deadline: float = 60.0
    busy_percent: float = 5.0
    busy_seconds: float = 60.0
    host_root: Path = Path("/")
    nvidia_driver_root: str = "auto"
    nvidia_cdi_hook: str = ""
    metrics_address: str = ""
    http_authorization: str = "none"
    device_metadata: bool = True
    nvidia_smi: str = "nvidia-smi"
    mps_control: str = "nvidia-cuda-mps-control"
    mps_launcher: str = "auto"
    mps_shared_memory: int = 8 << 30
    passthrough: bool = False
    destroy_unowned_partitions: bool = False
    passthrough_class_namespaces: tuple[str, ...] = ()
    passthrough_claim_namespaces: tuple[str, ...] = ()
    publish: str = "controller"
    beside_device_plugin: str = WITHHOLD
    beside_other_driver: str = WITHHOLD

    @property
    def roots(self) -> dict[str, Path]:
        """Where backends look: arguments of ``discovery.open_backends``."""
        return {
            "sysfs_root": self.sysfs_root,
            "procfs_root": self.procfs_root,
            "dev_root": self.dev_root,
            "host_root": self.host_root,
            "nvidia_driver_root": Path(self.nvidia_driver_root),
        }

    @property
    def passthrough_policy(self) -> PassthroughPolicy:
        """Whose claims may have devices as bare PCI functions, where that is on."""
        return PassthroughPolicy(
            class_namespaces=frozenset(self.passthrough_class_namespaces or (EVERY_NAMESPACE,)),
            claim_namespaces=frozenset(self.passthrough_claim_namespaces),
        )

    @property
    def plugin_dir(self) -> Path:
        """Directory of our socket."""
        return self.plugins_dir.absolute() / self.driver_name

    @property
    def dra_socket(self) -> Path:
        """Path of the socket that the kubelet calls; absolute, because the kubelet uses it as it is."""
        return self.dra_socket_of(self.instance)

    @property
    def registrar_socket(self) -> Path:
        """Path of the socket by which the kubelet finds the plugin."""
        return self.registrar_socket_of(self.instance)

    @property
    def instance(self) -> str:
        """The instance ID as it stands in file names: whole, or ten digits of its SHA-256 where too long."""
        paths = (self.dra_socket_of(self.instance_id), self.registrar_socket_of(self.instance_id))
        if not self.instance_id or all(len(str(p).encode()) <= MAX_SOCKET_PATH for p in paths):
            return self.instance_id
        return hashlib.sha256(self.instance_id.encode()).hexdigest()[:10]

    def dra_socket_of(self, instance: str) -> Path:
        """Return ``dra_socket`` of any instance."""
        return self.plugin_dir / f"dra{'-' if instance else ''}{instance}.sock"

    def registrar_socket_of(self, instance: str) -> Path:
        """Return ``registrar_socket`` of any instance."""
        name = f"{self.driver_name}{'-' if instance else ''}{instance}-reg.sock"
        return self.registry_dir.absolute() / name

    @property
    def state(self) -> Path:
        """Directory of the checkpoint."""
        return self.state_dir.absolute() if self.state_dir is not None else self.plugin_dir

    @property
    def metadata_dir(self) -> Path:
        """Directory of the device metadata files."""
        return self.plugin_dir / "dra-device-metadata"

    @property
    def checkpoint(self) -> Path:
        """Path of the checkpoint."""
        return self.state / "checkpoint.json"

    @property
    def health_memory(self) -> Path:
        """Path of the file that keeps health conditions which hardware does not report twice."""
        return self.state / "health.json"

    def findings(self, backends: Sequence[DeviceBackend] = ()) -> tuple[str, ...]:
        """Return everything that is wrong. Looks at the file system and leaves nothing behind.

        Args:
            backends: those that the settings name, opened. What depends on them is not checked if there are
                none, as when one cannot be opened.
        """
        names = tuple(self._name_findings())
        # A name that is wrong must not become a path.
        return names or (*self._value_findings(backends), *self._directory_findings())

    def create_directories(self) -> None:
        """Create the directories that are missing.

        Raises:
            ConfigurationError: one cannot be created.
        """
        for flag, path, mode in self._directories():
            try:
                files.make_directory(path, mode)
            except OSError as e:
                raise ConfigurationError(f"{flag}: cannot create {path}: {e.strerror}") from e

    def _name_findings(self) -> Iterator[str]:
        if not _SUBDOMAIN.fullmatch(self.node_name) or len(self.node_name) > 253:
            yield (
                f"--node-name {self.node_name[:80]!r}: expected the name of a Node "
                "(a-z, 0-9, '-' and '.', up to 253 characters)"
            )
        if not _SUBDOMAIN.fullmatch(self.driver_name) or len(self.driver_name) > 63:
            yield (
                f"--driver-name {self.driver_name[:80]!r}: expected a DNS subdomain such as "
                f"{DEFAULT_DRIVER_NAME} (a-z, 0-9, '-' and '.', up to 63 characters)"
            )

        if self.instance_id and not _INSTANCE.fullmatch(self.instance_id):
            yield (
                f"--instance-id {self.instance_id[:80]!r}: expected 1 to 63 letters, digits and dashes, "
                "such as the UID of a pod"
            )

    def _value_findings(self, backends: Sequence[DeviceBackend]) -> Iterator[str]:
        for flag, path in (("--plugins-dir", self.dra_socket), ("--registry-dir", self.registrar_socket)):
            length = len(str(path).encode())
            if length > MAX_SOCKET_PATH:
                yield (
                    f"{flag}: the socket {path} has {length} bytes, a Unix socket path has at most "
                    f"{MAX_SOCKET_PATH}; choose a shorter directory or --driver-name"
                )
        if not self.rescan_seconds >= 1:
            yield f"--rescan-interval {self.rescan_seconds:g}: expected 1 second or more"
        if not self.scan_deadline >= 1:
            yield f"--scan-deadline {self.scan_deadline:g}: expected 1 second or more"
        if not 0 < self.busy_percent <= 100:
            yield f"--busy-threshold {self.busy_percent:g}: expected more than 0 and at most 100 percent"
        # Writes about devices that exist must stay rare.
        least = 1 if all(discovery.is_simulated(b) for b in backends) else 60
        if not self.busy_seconds >= least:
            yield f"--busy-seconds {self.busy_seconds:g}: expected {least} or more"

        if self.nvidia_driver_root != "auto" and not self.nvidia_driver_root.startswith("/"):
            yield f"--nvidia-driver-root {self.nvidia_driver_root[:80]!r}: expected auto or an absolute path"
        hook = self.nvidia_cdi_hook
        if hook and not (hook.startswith("/") and (self.host_root / hook.strip("/")).is_file()):
            yield f"--nvidia-cdi-hook {hook[:80]!r}: there is no such file below --host-root {self.host_root}"
        for flag, value, field_ in (
            ("--beside-device-plugin", self.beside_device_plugin, "besideDevicePlugin"),
            ("--beside-other-driver", self.beside_other_driver, "besideOtherDriver"),
        ):
            if value != WITHHOLD and self.publish != "node":
                yield (
                    f"{flag} {value}: needs --publish=node; where the controller publishes, a DevicePolicy "
                    f"says it ({field_})"
                )
        yield from self._passthrough_findings()
        if self.metrics_address:
            try:
                parse_address(self.metrics_address)
            except ValueError as e:
                yield f"--metrics-address {self.metrics_address[:80]!r}: {e}"

    def _passthrough_findings(self) -> Iterator[str]:
        for flag, namespaces in (
            ("--passthrough-class-namespace", self.passthrough_class_namespaces),
            ("--passthrough-claim-namespace", self.passthrough_claim_namespaces),
        ):
            if namespaces and not self.passthrough:
                yield f"{flag}: has no effect without --passthrough"
            for name in namespaces:
                if name != EVERY_NAMESPACE and not _LABEL.fullmatch(name):
                    yield (
                        f"{flag} {name[:80]!r}: expected the name of a namespace, or {EVERY_NAMESPACE} for "
                        "every one"
                    )

    def _directories(self) -> Sequence[tuple[str, Path, int]]:
        return (
            ("--plugins-dir", self.plugin_dir, 0o700),
            ("--registry-dir", self.registry_dir.absolute(), 0o755),
            ("--cdi-dir", self.cdi_dir.absolute(), 0o755),
            ("--state-dir", self.state, 0o700),
        )

    def _directory_findings(self) -> Iterator[str]:
        for flag, path, _ in self._directories():
            try:
                files.probe(path)
            except OSError as e:
                yield f"{flag}: cannot write in {path}: {e.strerror}"
