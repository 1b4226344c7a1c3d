"""What the node agent finds and puts in order is reported: Events on the Node, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fake_client import FakeClient
from kubelet_calls import prepare
from node_agent import IMPATIENT, add_claim, claim, configuration, device, eventually, running

from dra_driver.api.core import EVENTS, Event
from dra_driver.discovery import open_backend
from dra_driver.discovery.core.hotplug import fingerprint
from dra_driver.hardware import DiscoveredDevice
from kubelet_plugin.core.notices import CHECKPOINT_DAMAGED, ORPHANED_CDI_FILE
from kubelet_plugin.devices.hotplug import RELEASE_FILE, watched


def events(kube: FakeClient) -> list[Event]:
    return kube.all(EVENTS)


def reported(kube: FakeClient, reason: str) -> list[str]:
    return [e.message for e in events(kube) if e.reason == reason]


def two_prepared(root: Path, kube: FakeClient) -> list[dict[str, Any]]:
    """Two claims; the agent has ended."""
    claims = [add_claim(kube, claim(f"c{i}", f"gpu-{i}")) for i in range(2)]

    async def main() -> None:
        async with running(root, kube, [device(0), device(1)]) as node:
            for c in claims:
                answer = (await prepare(node, c))[c["metadata"]["uid"]]
                assert not answer.error

    asyncio.run(main())
    return claims


def test_a_damaged_checkpoint_is_told_and_costs_no_claim(tmp_path: Path) -> None:
    kube = FakeClient()
    two_prepared(tmp_path, kube)
    configuration(tmp_path).checkpoint.write_bytes(b"{")
    (configuration(tmp_path).state / "checkpoint.json.journal").unlink()

    async def main() -> None:
        async with running(tmp_path, kube, [device(0), device(1)], timing=IMPATIENT) as node:
            (text,) = await eventually(lambda: reported(kube, CHECKPOINT_DAMAGED))
            assert "cannot be used" in text
            # The version before has no claim, and its journal was lost too; their CDI files are there.
            assert "recovered 0 claims from the previous version and 2 from CDI files" in text
            assert node.plugin.notices.counts[CHECKPOINT_DAMAGED] == 1
            thief = add_claim(kube, claim("thief", "gpu-1"))
            answer = (await prepare(node, thief))[thief["metadata"]["uid"]]
            assert "held by another claim" in answer.error
            metrics = node.plugin.observation.metrics.render(()).decode()
            assert 'dra_driver_findings_total{kind="CheckpointDamaged"} 1.0' in metrics
            assert 'dra_driver_findings_total{kind="ClaimGone"} 0.0' in metrics

    asyncio.run(main())


def test_an_event_waits_for_the_api_server(tmp_path: Path) -> None:
    kube = FakeClient()
    two_prepared(tmp_path, kube)
    folder = configuration(tmp_path).cdi_dir
    checkpoint = configuration(tmp_path).checkpoint
    checkpoint.with_name("checkpoint.json.previous").unlink()
    stray = next(folder.iterdir())
    (folder / stray.name.replace("-claim_", "-claim_0")).write_bytes(stray.read_bytes())
    checkpoint.unlink()

    async def main() -> None:
        kube.down = True
        async with running(tmp_path, kube, [device(0), device(1)]) as node:
            assert node.plugin.notices.counts[CHECKPOINT_DAMAGED] == 1
            assert events(kube) == []

    asyncio.run(main())


def test_an_orphaned_cdi_file_is_told(tmp_path: Path) -> None:
    kube = FakeClient()
    two_prepared(tmp_path, kube)
    config = configuration(tmp_path)
    for name in ("checkpoint.json", "checkpoint.json.previous"):
        (config.state / name).unlink()
    kept = {p.name: p.read_bytes() for p in config.cdi_dir.iterdir()}
    for path in config.cdi_dir.iterdir():
        path.unlink()

    async def main() -> None:
        async with running(tmp_path, kube, [device(0), device(1)]) as node:
            # A backup of somebody's brings files back that belong to no claim any more.
            for name, data in kept.items():
                (config.cdi_dir / name).write_bytes(data)
            await node.plugin._preparer.tidy()
            assert node.specs() == []
            await eventually(lambda: len(reported(kube, ORPHANED_CDI_FILE)) == 2)

    asyncio.run(main())


class Library:
    """A backend with something that can be closed."""

    name = "library"
    simulated = True

    def __init__(self) -> None:
        self.open = False
        self.looks = 0
        self.devices = [device(0)]

    def discover(self) -> Sequence[DiscoveredDevice]:
        self.open = True
        self.looks += 1
        return self.devices

    def close(self) -> None:
        self.open = False


def test_libraries_are_let_go_of_while_somebody_asks_for_it(tmp_path: Path) -> None:
    library = Library()
    kube = FakeClient()

    async def main() -> None:
        async with running(tmp_path, kube, backend=library) as node:
            assert library.open
            file = node.config.state / RELEASE_FILE
            file.touch()
            await eventually(lambda: not library.open)
            await node.plugin._table.scan()
            assert not library.open
            # What was found stays, and what needs no change of a GPU is still prepared.
            one = add_claim(kube, claim("one", "gpu-0"))
            assert not (await prepare(node, one))[one["metadata"]["uid"]].error
            file.unlink()
            await eventually(lambda: library.open)

    asyncio.run(main())


def test_libraries_are_not_opened_by_an_agent_that_starts_meanwhile(tmp_path: Path) -> None:
    library = Library()
    library.devices = [device(0), device(1)]
    kube = FakeClient()
    two_prepared(tmp_path, kube)
    file = configuration(tmp_path).state / RELEASE_FILE
    file.touch()

    async def main() -> None:
        async with running(tmp_path, kube, backend=library) as node:
            assert library.looks == 0
            # What was prepared stays, and is answered for.
            assert len(node.plugin._preparer.claims) == 2
            file.unlink()
            await eventually(lambda: library.open)

    asyncio.run(main())


def test_a_device_that_is_plugged_in_is_found_at_once(tmp_path: Path) -> None:
    library = Library()
    sysfs = tmp_path / "sys"
    (sysfs / "bus/pci/devices").mkdir(parents=True)

    async def main() -> None:
        settings = {"sysfs_root": sysfs, "dev_root": tmp_path / "dev"}
        async with running(tmp_path, FakeClient(), backend=library, settings=settings) as node:
            library.devices = [device(0), device(1)]
            (sysfs / "bus/pci/devices/0000:01:00.0").touch()
            await eventually(lambda: "gpu-1" in node.plugin._table.for_prepare)

    asyncio.run(main())


def test_the_fingerprint_changes_with_device_nodes_of_drivers_only(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    nvml = open_backend("nvml", sysfs_root=tmp_path / "sys", dev_root=tmp_path / "dev", node_name="n")
    places = watched(tmp_path / "sys", [nvml]).folders
    before = fingerprint(places)
    (tmp_path / "dev/tty0").touch()
    assert fingerprint(places) == before
    (tmp_path / "dev/nvidia0").touch()
    assert fingerprint(places) != before
