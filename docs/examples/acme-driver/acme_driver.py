"""Driver ``acme`` for an imaginary accelerator, the NPU-1, as a third party writes one: with the SDK alone.

The kernel shows each NPU as /sys/class/acme/npu0 (model, serial, state, temperature …), lets its power limit
be written there, and cuts it into two halves by the folder ``partitions``; containers open /dev/acme/npu0.
"""

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar

from dra_driver import sdk

NPU = re.compile("npu[0-9]+")
HALF = 1  # number of the one kind of partition that there is


class NpuConfig(sdk.Parameters, frozen=True):
    """Opaque parameters: the power that an NPU may draw while a claim has it."""

    API_VERSION: ClassVar[str] = "acme.example/v1"

    power_limit: Annotated[int, sdk.Meta(ge=50, le=400)]  # powerLimit, in watts


PARAMETERS = (NpuConfig,)


class AcmeBackend:
    """The NPUs of this machine."""

    name = "acme"
    vendor = "acme"
    parameters = PARAMETERS

    def __init__(self, sysfs_root: Path, *, simulated: bool = False) -> None:
        self.simulated = simulated
        self._sysfs_root = sysfs_root
        self._folder = sysfs_root / "class" / "acme"
        self._states: dict[str, str] = {}

    # --- discovery, with health and partitions ---

    def discover(self) -> Sequence[sdk.DiscoveredDevice]:
        """Every NPU, in a stable order; one that is broken is left out or incomplete."""
        if sdk.entries(self._folder) is None:
            raise sdk.HardwareAbsent(f"acme: {self._folder} is not there: the driver acme is not loaded")
        found = [self._device(folder) for folder in self._npus()]
        return [device for device in found if device is not None]

    def close(self) -> None:
        """Nothing is held."""

    def hotplug(self) -> sdk.HotplugHints:
        """NPUs are looked for again when these names change, also when that happens during a look."""
        return sdk.HotplugHints(((self._folder, ""),))

    def _npus(self) -> list[Path]:
        # Where a name leads to now: loading the driver anew may give it to another NPU.
        return [(self._folder / name).resolve() for name in sdk.children(self._folder, NPU)]

    def _device(self, folder: Path) -> sdk.DiscoveredDevice | None:
        serial = sdk.read_text(folder / "serial")
        if not serial:
            return None
        address = sdk.link_address(folder / "device")
        memory = sdk.read_number(folder / "memory_bytes")
        node = f"/dev/acme/{folder.name}"
        facts = {
            "type": "npu",
            "vendor": self.vendor,
            "uuid": serial,
            "model": sdk.read_text(folder / "model"),
            sdk.PCI_BUS_ID: str(address) if address else None,
            sdk.PCIE_ROOT: sdk.pcie_root(self._sysfs_root, address) if address else None,
            sdk.NUMA_NODE: sdk.numa_node(self._sysfs_root, address) if address else None,
        }
        of_half = {"memory": (memory or 0) // 2}
        half = sdk.partition_profile("half", HALF, (0, 1), 1, {"type": "slice"}, of_half)
        state = sdk.read_text(folder / "state") or "ok"
        fault = sdk.DeviceHealth(reason="NpuFault", severity="failed", message=state)
        return sdk.DiscoveredDevice(
            device=sdk.describe_device(
                sdk.device_name(address, "npu") if address else folder.name,
                facts,
                {"memory": memory},
                own={"tops": sdk.read_number(folder / "tops")},
                health=[] if state == "ok" else [fault],
                partitions=[half],
            ),
            uuid=serial,
            material=sdk.ContainerEdits(device_nodes=(sdk.DeviceNode(node),)),
            own_nodes=(node,),
        )

    def _by_serial(self, serial: str) -> Path | None:
        return next((f for f in self._npus() if sdk.read_text(f / "serial") == serial), None)

    # --- events, samples, metrics ---

    def wait_for_events(self, seconds: float) -> Sequence[sdk.HealthEvent]:
        """Watch the state of every NPU."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            now = {}
            for folder in self._npus():
                now[sdk.read_text(folder / "serial") or ""] = sdk.read_text(folder / "state") or "ok"
            before, self._states = self._states, now
            if events := [
                sdk.HealthEvent(serial, "NpuFault", "failed" if state != "ok" else "", state)
                for serial, state in now.items()
                if before.get(serial, "ok") != state
            ]:
                return events
            time.sleep(0.25)
        return ()

    def sample(self) -> Sequence[sdk.DeviceSample]:
        """What the standard metrics show."""
        return [
            sdk.DeviceSample(device.device.name, temperature=sdk.read_number(folder / "temperature"))
            for folder in self._npus()
            if (device := self._device(folder)) is not None
        ]

    def metrics(self) -> Sequence[sdk.BackendMetric]:
        """What only this driver measures: ``dra_driver_backend_acme_retrained_links_total``."""
        return [
            sdk.BackendMetric(
                "retrained_links", "Links that the NPU has trained anew", count, {"npu": f.name}, counter=True
            )
            for f in self._npus()
            if (count := sdk.read_number(f / "retrained_links")) is not None
        ]

    # --- for a claim ---

    def plan_device(self, use: sdk.DeviceUse) -> sdk.DevicePlan | None:
        """Decide what is set for a claim; nothing is changed yet."""
        config = use.parameters
        if not isinstance(config, NpuConfig):
            return None
        if use.profile:
            raise sdk.PrepareError("powerLimit is of a whole NPU, and the claim has half of one")
        folder = self._by_serial(use.uuid)
        before = sdk.read_number(folder / "power_limit_default") if folder else None
        if before is None:
            raise sdk.PrepareError(f"NPU {use.uuid} does not say its power limit", retryable=True)
        return sdk.DevicePlan(
            settings={"watts": config.power_limit, "before": before},
            edits=sdk.ContainerEdits(env=(f"ACME_POWER_LIMIT={config.power_limit}",)),
        )

    def prepare_device(self, work: sdk.DeviceWork) -> None:
        """Set what was planned. Doing it twice changes nothing."""
        folder = self._by_serial(work.uuid)
        if folder is None:
            raise sdk.PrepareError(f"NPU {work.uuid} is not there", retryable=True)
        (folder / "job").write_text(f"{work.claim_uid}\n")
        (folder / "power_limit").write_text(f"{work.settings['watts']}\n")

    def unprepare_device(self, work: sdk.DeviceWork) -> None:
        """Set it back, whether or not ``prepare_device`` came to its end. An NPU that is gone has nothing."""
        folder = self._by_serial(work.uuid)
        if folder is not None:
            (folder / "power_limit").write_text(f"{work.settings['before']}\n")
            (folder / "job").write_text("")

    # --- partitions ---

    def partitions(self, uuid: str) -> Sequence[sdk.Partition] | None:
        """The halves that exist; one without ``uuid`` is half made."""
        folder = self._by_serial(uuid)
        if folder is None:
            return None
        names = sdk.children(folder / "partitions", re.compile("[01]"))
        return [self._partition(folder, int(name)) for name in names]

    def create_partition(self, uuid: str, profile_id: int, start: int, size: int) -> sdk.Partition:
        """Make a half, or finish one."""
        folder = self._by_serial(uuid)
        if folder is None or (profile_id, size) != (HALF, 1):
            raise sdk.PrepareError(f"NPU {uuid} cannot be cut so")
        place = folder / "partitions" / str(start)
        place.mkdir(parents=True, exist_ok=True)
        (place / "uuid").write_text(f"{uuid}-{start}\n")
        return self._partition(folder, start)

    def destroy_partition(self, uuid: str, instance_id: int) -> None:
        """Destroy a half; success if there is none."""
        folder = self._by_serial(uuid)
        if folder is not None:
            # With any other error the half is still there; the agent tries again.
            with suppress(FileNotFoundError):
                shutil.rmtree(folder / "partitions" / str(instance_id))

    def _partition(self, folder: Path, start: int) -> sdk.Partition:
        identity = sdk.read_text(folder / "partitions" / str(start) / "uuid") or ""
        node = sdk.DeviceNode(f"/dev/acme/{folder.name}p{start}")
        return sdk.Partition(start, HALF, start, 1, uuid=identity, device_nodes=(node,))


def lay_out(sysfs_root: Path, serials: Mapping[str, str]) -> None:
    """Make the files of imaginary NPUs: serial numbers by their names."""
    for name, serial in serials.items():
        folder = sysfs_root / "class" / "acme" / name
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"model": "NPU-1", "serial": serial, "memory_bytes": 2**34, "tops": 400}
        sensors = {"temperature": 41, "retrained_links": 0}
        limits = {"power_limit": 300, "power_limit_default": 300}
        for file, value in {**facts, **sensors, **limits}.items():
            (folder / file).write_text(f"{value}\n")


class Factory:
    """The entry point, for ``--backend acme``; ``--backend acme=DIR`` makes imaginary NPUs."""

    def __call__(self, arg: str, *, sysfs_root: Path, dev_root: Path, node_name: str) -> sdk.DeviceBackend:
        """Make a backend; nothing is looked at yet."""
        if not arg:
            return AcmeBackend(sysfs_root)
        if not arg.startswith("/"):
            raise sdk.ConfigurationError(f"--backend acme={arg}: expected an absolute path, or no argument")
        root = Path(arg, node_name)
        if not root.exists():
            lay_out(root, {f"npu{i}": f"{node_name}-{i}" for i in range(2)})
        return AcmeBackend(root, simulated=True)

    def demo_argument(self, folder: Path) -> str:
        """What ``dra-driver demo --backend acme`` opens: imaginary NPUs in a folder of its own."""
        return str(folder)


factory = Factory()
