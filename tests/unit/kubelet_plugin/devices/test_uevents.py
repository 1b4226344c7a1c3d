"""Hardware that comes and goes: what the kernel tells wakes the agent, and lists of directories do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from node_agent import device, eventually

from dra_driver.discovery.core.hotplug import HotplugHints
from dra_driver.hardware import DiscoveredDevice
from kubelet_plugin.devices.hotplug import Hotplug, watched
from kubelet_plugin.devices.table import DeviceTable
from kubelet_plugin.devices.uevents import concerns_us, heard, open_uevents


def event(action: str, path: str, subsystem: str) -> bytes:
    fields = {"ACTION": action, "DEVPATH": path, "SUBSYSTEM": subsystem, "SEQNUM": "4711"}
    return (
        b"\0".join([f"{action}@{path}".encode(), *(f"{k}={v}".encode() for k, v in fields.items())]) + b"\0"
    )


ADDED = event("add", "/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", "pci")


class Announcing:
    """A backend with a driver of its own."""

    name = "acme"

    def discover(self) -> Sequence[DiscoveredDevice]:
        return ()

    def close(self) -> None:
        """Nothing is open."""

    def hotplug(self) -> HotplugHints:
        return HotplugHints(modules=frozenset({"acme"}), subsystems=frozenset({"acme"}))


@pytest.mark.parametrize(
    ("datagram", "ours"),
    [
        (ADDED, True),
        (event("bind", "/devices/pci0000:3a/0000:3b:00.0", "pci"), True),
        (event("remove", "/devices/pci0000:3a/0000:3b:00.0/drm/card1", "drm"), True),
        (event("add", "/module/acme", "module"), True),
        (event("add", "/devices/pci0000:3a/0000:3b:00.0/acme/npu0", "acme"), True),
        (event("add", "/module/loop", "module"), False),
        (event("add", "/devices/virtual/net/veth1", "net"), False),
        (event("move", "/devices/pci0000:3a/0000:3b:00.0", "pci"), False),
        (b"", False),
        (b"\0\0=\0ACTION\0\xff\xfe=\xff\0", False),
        (b"add@/x\0ACTION=add\0SUBSYSTEM=pc\xff\0", False),
    ],
)
def test_only_devices_and_drivers_that_concern_us_count(datagram: bytes, ours: bool) -> None:
    hints = watched(Path("/sys"), [Announcing()])
    assert concerns_us(datagram, hints) == ours


def test_only_what_the_backends_name_counts_beside_pci_functions() -> None:
    hints = watched(Path("/sys"), [])
    assert concerns_us(ADDED, hints)
    assert not concerns_us(event("add", "/module/acme", "module"), hints)
    assert hints.folders == ((Path("/sys/bus/pci/devices"), ""),)


class Backend:
    name = "test"

    def __init__(self) -> None:
        self.looks = 0

    def discover(self) -> Sequence[DiscoveredDevice]:
        self.looks += 1
        return (device(0),)

    def close(self) -> None:
        """Nothing is open."""


def test_a_burst_of_events_is_one_look_and_lists_are_the_fallback(tmp_path: Path) -> None:
    async def scenario() -> None:
        kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        backend = Backend()
        (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
        with kernel:
            table = DeviceTable([backend])
            await table.scan()
            hotplug = Hotplug(
                table=table,
                file=tmp_path / "release",
                hints=watched(tmp_path / "sys", [backend]),
                hold=lambda _: None,
                listen=lambda: ours,
            )
            running = asyncio.create_task(hotplug.run())
            await asyncio.sleep(0)
            # A driver that is loaded tells of a dozen things at once.
            for _ in range(12):
                kernel.send(ADDED)
                await asyncio.sleep(0.01)
            await eventually(lambda: backend.looks == 2, seconds=20)
            kernel.send(event("add", "/devices/virtual/net/veth1", "net"))
            # Nothing is told of this one.
            (tmp_path / "sys/bus/pci/devices/0000:3b:00.0").mkdir()
            await eventually(lambda: backend.looks == 3, seconds=20)
            running.cancel()
            await asyncio.wait([running])
        assert ours.fileno() == -1, "left open"

    asyncio.run(scenario())


def test_a_source_that_fails_costs_only_the_hint() -> None:
    async def scenario() -> None:
        kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        told: list[int] = []
        hints = watched(Path("/sys"), [])
        with heard(ours, hints, lambda: told.append(1)):
            kernel.send(ADDED)
            await eventually(lambda: told == [1])
            kernel.close()
            await asyncio.sleep(0.05)
        with heard(None, hints, lambda: told.append(2)):
            await asyncio.sleep(0)
        assert told == [1]

    asyncio.run(scenario())


def test_the_kernels_own_socket_can_be_opened_where_it_is() -> None:
    """In a namespace without it there is none, and that is an answer too."""
    found = open_uevents()
    if found is not None:
        with found:
            assert found.family == socket.AF_NETLINK
