"""A backend of a third party whose devices are cut into halves, and goes wrong in whatever way tests want."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from node_agent import NODE, claim

from dra_driver import sdk

__all__ = ["CutNpu", "dev", "half", "half_claim"]

_HALF = 1


class CutNpu:
    """NPUs of two halves each, in a table that outlives the agent.

    Attributes:
        in_partitions: called with what is to be answered, and gives the answer; likewise ``in_create``.
        in_destroy: called before anything is destroyed.
        names: of NPUs in /dev, by their serial numbers, where they are others; halves are called after them.
    """

    simulated = False

    def __init__(self, name: str = "acme", serials: Sequence[str] = ("S0", "S1")) -> None:
        self.name = self.vendor = name
        self.serials = list(serials)
        self.made: dict[str, dict[int, sdk.Partition]] = {}
        self.in_partitions: Callable[[str, list[sdk.Partition] | None], Any] = lambda uuid, found: found
        self.in_create: Callable[[str, sdk.Partition], Any] = lambda uuid, made: made
        self.in_destroy: Callable[[str, int], None] = lambda uuid, instance: None
        self.names: dict[str, str] = {}

    @property
    def left(self) -> list[str]:
        """The partitions that there are."""
        return sorted(p.uuid for made in self.made.values() for p in made.values())

    def discover(self) -> Sequence[sdk.DiscoveredDevice]:
        profile = sdk.partition_profile("half", _HALF, (0, 1), 1, {"type": "slice"}, {"memory": 2**33})
        return [
            sdk.DiscoveredDevice(
                device=sdk.describe_device(
                    f"{self.name}-{serial.lower()}",
                    {"type": "npu", "vendor": self.vendor, "uuid": serial},
                    {"memory": 2**34},
                    partitions=[profile],
                ),
                uuid=serial,
                material=sdk.ContainerEdits(device_nodes=(sdk.DeviceNode(self._node(serial)),)),
                own_nodes=(self._node(serial),),
            )
            for serial in self.serials
        ]

    def close(self) -> None:
        pass

    def partitions(self, uuid: str) -> Sequence[sdk.Partition] | None:
        found = list(self.made.get(uuid, {}).values()) if uuid in self.serials else None
        if found and self.names:
            found = [dataclasses.replace(p, device_nodes=self._nodes(uuid, p.start)) for p in found]
        answer: Sequence[sdk.Partition] | None = self.in_partitions(uuid, found)
        return answer

    def create_partition(self, uuid: str, profile_id: int, start: int, size: int) -> sdk.Partition:
        nodes = self._nodes(uuid, start)
        made = sdk.Partition(start, profile_id, start, size, uuid=f"{uuid}-{start}", device_nodes=nodes)
        self.made.setdefault(uuid, {}).setdefault(start, made)
        answer: sdk.Partition = self.in_create(uuid, made)
        return answer

    def destroy_partition(self, uuid: str, instance_id: int) -> None:
        self.in_destroy(uuid, instance_id)
        self.made.get(uuid, {}).pop(instance_id, None)

    def _node(self, serial: str) -> str:
        return f"/dev/{self.names.get(serial, serial)}"

    def _nodes(self, serial: str, start: int) -> tuple[sdk.DeviceNode, ...]:
        return (sdk.DeviceNode(f"{self._node(serial)}p{start}"),)


def half(serial: str, start: int, name: str = "acme") -> str:
    """The name of the device that is one half."""
    return f"{name}-{serial.lower()}-slice-half-{start}"


def half_claim(name: str, serial: str, start: int, **more: Any) -> dict[str, Any]:
    """An allocated claim of one half."""
    return claim(name, half(serial, start), pool=NODE, **more)


def dev(root: Path, *names: str) -> Path:
    """A folder with the device nodes of two NPUs and their halves, as files, and with others."""
    folder = root / "dev"
    folder.mkdir(exist_ok=True)
    for name in (*(f"S{i}{part}" for i in range(2) for part in ("", "p0", "p1")), *names):
        (folder / name).touch()
    return folder
