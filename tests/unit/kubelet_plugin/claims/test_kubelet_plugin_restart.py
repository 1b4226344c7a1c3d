"""A plugin that starts anew: lost CDI files, corrupt checkpoints, strangers' files, configuration."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from fake_client import FakeClient
from kubelet_calls import checkpointed, prepare, unprepare
from manifest_files import documents
from node_agent import (
    DRIVER,
    IMPATIENT,
    NODE,
    Backend,
    add_claim,
    claim,
    configuration,
    device,
    eventually,
    inventory,
    running,
)
from paths import PROJECT

from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DeviceHealth, DeviceInventorySpec, InventoryDevice
from dra_driver.errors import ApiUnavailable, DraError
from dra_driver.preparation import Checkpoint, ClaimState
from kubelet_plugin.app import Plugin
from kubelet_plugin.config import Configuration, Timings
from kubelet_plugin.core.notices import CHECKPOINT_DAMAGED, ORPHANED_CDI_FILE
from kubelet_plugin.devices.inventory import fit

INVENTORY_CRD: Final = PROJECT / "deploy/manifests/crds/deviceinventories.yaml"


def prepared(tmp_path: Path) -> tuple[FakeClient, dict[str, Any], dict[str, Any]]:
    """Two prepared claims, plugin ended."""

    async def main() -> tuple[FakeClient, dict[str, Any], dict[str, Any]]:
        kube = FakeClient()
        one, two = add_claim(kube, claim("one", "gpu-0")), add_claim(kube, claim("two", "gpu-1"))
        async with running(tmp_path, kube, [device(0), device(1)]) as node:
            answers = await prepare(node, one)
            answers = await prepare(node, two)
            assert not answers[two["metadata"]["uid"]].error
        return kube, one, two

    return asyncio.run(main())


def file_of(body: dict[str, Any]) -> str:
    return f"k8s.{DRIVER}-claim_{body['metadata']['uid']}.json"


def test_lost_cdi_files_are_written_again_without_api_server(tmp_path: Path) -> None:
    _, one, two = prepared(tmp_path)
    contents = {p.name: p.read_bytes() for p in (tmp_path / "cdi").iterdir()}
    assert set(contents) == {file_of(one), file_of(two)}
    for p in (tmp_path / "cdi").iterdir():
        p.unlink()
    (tmp_path / "cdi").rmdir()

    async def main() -> None:
        kube = FakeClient()
        kube.down = True
        async with running(tmp_path, kube, [device(0), device(1)]) as node:
            assert {p.name: p.read_bytes() for p in node.config.cdi_dir.iterdir()} == contents
            # And prepare of what is prepared does not need it either.
            answer = (await prepare(node, one))[one["metadata"]["uid"]]
            assert [d.device_name for d in answer.devices] == ["gpu-0"]

    asyncio.run(main())


def half_way(checkpoint: Path) -> None:
    """Make the previous version one that has the second claim half-way, and no journal of it."""
    now = Checkpoint.decode(checkpoint.read_bytes())
    (two,) = (c for c in now if c.name == "two")
    before = now.changed({two.uid: msgspec.structs.replace(two, state=ClaimState.STARTED)})
    checkpoint.with_name("checkpoint.json.previous").write_bytes(before.encode())


def test_a_journal_completes_the_previous_version(tmp_path: Path) -> None:
    """No record is lost where the document is damaged that the journal was folded into."""
    kube, one, two = prepared(tmp_path)
    checkpoint = configuration(tmp_path).checkpoint
    assert len(Checkpoint.decode(checkpoint.with_name("checkpoint.json.previous").read_bytes())) == 0
    checkpoint.write_bytes(b"{")
    for body in (one, two):
        (tmp_path / "cdi" / file_of(body)).unlink()

    async def main() -> None:
        async with running(tmp_path, kube, [device(0), device(1)]) as node:
            assert {c["state"] for c in checkpointed(node).values()} == {"PrepareCompleted"}
            assert node.specs() == sorted((file_of(one), file_of(two)))
            assert node.plugin.notices.counts[CHECKPOINT_DAMAGED] == 1

    asyncio.run(main())


@pytest.mark.parametrize("damage", ["truncated", "garbage", "gone", "both gone", "all corrupt"])
def test_a_lost_checkpoint_is_recovered(tmp_path: Path, damage: str) -> None:
    kube, one, two = prepared(tmp_path)
    checkpoint = configuration(tmp_path).checkpoint
    previous = checkpoint.with_name("checkpoint.json.previous")
    half_way(checkpoint)
    match damage:
        case "truncated":
            checkpoint.write_bytes(checkpoint.read_bytes()[:-50])
            previous.unlink()
        case "garbage":
            checkpoint.write_bytes(b"\0" * 4096)
            previous.write_bytes(b"")
        case "gone":
            checkpoint.unlink()
            previous.unlink()
        case "both gone":
            checkpoint.unlink()
            previous.unlink()
            (tmp_path / "cdi" / file_of(two)).unlink()
        case "all corrupt":
            checkpoint.write_bytes(b"x")
            previous.write_bytes(b"x")
            (tmp_path / "cdi" / file_of(two)).write_bytes(b"{}")
        case _:
            raise AssertionError(damage)

    async def main() -> None:
        async with running(tmp_path, kube, [device(0), device(1)], timing=IMPATIENT) as node:
            lost = damage in ("both gone", "all corrupt")
            assert {c["name"] for c in checkpointed(node).values()} == ({"one"} if lost else {"one", "two"})
            # Where there is nothing, nothing says that there was a checkpoint.
            failed = damage not in ("gone", "both gone")
            assert node.plugin._preparer.failures["checkpoint"] == failed
            thief = add_claim(kube, claim("thief", "gpu-0"))
            assert "is held by another claim" in (await prepare(node, thief))[thief["metadata"]["uid"]].error
            done = await unprepare(node, one, two)
            assert {d.error for d in done.values()} == {""}
            assert node.specs() == []
            assert checkpointed(node) == {}

    asyncio.run(main())


def test_a_corrupt_checkpoint_falls_back_to_the_previous_version(tmp_path: Path) -> None:
    kube, one, two = prepared(tmp_path)
    checkpoint = configuration(tmp_path).checkpoint
    half_way(checkpoint)
    good = checkpoint.read_bytes()
    checkpoint.write_bytes(good[:100])

    async def main() -> None:
        async with running(tmp_path, kube, [device(0), device(1)]) as node:
            # The second claim was half-way in the previous version. Its CDI file is written last: containers
            # may use it.
            assert {c["name"]: c["state"] for c in checkpointed(node).values()} == {
                "one": "PrepareCompleted",
                "two": "PrepareCompleted",
            }
            assert node.specs() == sorted((file_of(one), file_of(two)))
            assert not (await prepare(node, two))[two["metadata"]["uid"]].error
            assert (node.config.state / "checkpoint.json.corrupt").read_bytes() == good[:100]

    asyncio.run(main())


def test_orphans_of_ours_are_removed_and_strangers_files_are_not_touched(tmp_path: Path) -> None:
    _, one, two = prepared(tmp_path)
    folder = tmp_path / "cdi"
    orphan = json.loads((folder / file_of(one)).read_bytes())
    strays = [{"metadata": {"uid": f"99999999-000{i}"}} for i in range(2)]

    def leave() -> None:
        for stray in strays:
            text = json.dumps(orphan).replace(one["metadata"]["uid"], stray["metadata"]["uid"])
            (folder / file_of(stray)).write_text(text)

    leave()
    strangers = {
        "nvidia.yaml": b"cdiVersion: 0.5.0\n",
        "k8s.other.example.com-claim_99999999-0000.json": b"{}",
        file_of({"metadata": {"uid": "not-a-document"}}): b"what",
        file_of(
            {"metadata": {"uid": "other-kind"}}
        ): b'{"cdiVersion":"0.5.0","kind":"a.com/gpu","devices":[]}',
    }
    for name, data in strangers.items():
        (folder / name).write_bytes(data)
    (folder / f".{file_of(strays[0])}.0123abcd.tmp").write_bytes(b"cut short")

    async def main() -> None:
        async with running(tmp_path, FakeClient(), [device(0), device(1)]) as node:
            for removed in (2, 4):
                assert set(node.specs()) == {file_of(one), file_of(two), *strangers}
                assert {n: (folder / n).read_bytes() for n in strangers} == strangers
                assert node.plugin.notices.counts[ORPHANED_CDI_FILE] == removed
                # Now and then they are looked for as well.
                leave()
                await node.plugin._preparer.tidy()

    asyncio.run(main())


def test_a_device_that_was_replaced_under_its_name_is_refused(tmp_path: Path) -> None:
    kube, one, two = prepared(tmp_path)

    async def main() -> None:
        async with running(tmp_path, kube, [device(0, uuid_="GPU-new"), device(1)]) as node:
            answers = await prepare(node, one, two)
            assert answers[one["metadata"]["uid"]].error == (
                "device gpu-0 was prepared with uuid 'GPU-0', but the hardware now says 'GPU-new': "
                "it was replaced; delete the pod to get another device"
            )
            assert not answers[two["metadata"]["uid"]].error
            assert not (await unprepare(node, one))[one["metadata"]["uid"]].error

    asyncio.run(main())


def test_a_device_that_is_not_the_one_of_the_inventory_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        backend = Backend([device(0)])
        body = add_claim(kube, claim("one", "gpu-0"))
        uid = body["metadata"]["uid"]

        def unwritable(verb: str, kind: str, *_: str) -> None:
            if kind == "DeviceInventory" and verb not in ("get", "list", "watch"):
                raise ApiUnavailable("not now")

        async with running(tmp_path, kube, backend=backend, timing=IMPATIENT) as node:
            kube.before = unwritable
            # The allocation was made for the card that was in this place before.
            backend.devices = (device(0, uuid_="GPU-new"),)
            await node.plugin._table.scan()
            error = (await prepare(node, body))[uid].error
            assert "gpu-0 was published with uuid 'GPU-0', but the hardware now says 'GPU-new'" in error
            assert node.specs() == []
            kube.before = lambda *_: None
            await eventually(lambda: node.plugin._table.for_prepare["gpu-0"].published_uuid == "GPU-new")
            assert not (await prepare(node, body))[uid].error

    asyncio.run(main())


def test_a_rescan_reaches_the_inventory(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        backend = Backend([device(0)])
        async with running(tmp_path, kube, backend=backend) as node:
            await eventually(lambda: inventory(kube))
            table = node.plugin._table
            backend.devices = (device(0), device(1))
            await table.scan()
            await eventually(lambda: len((inventory(kube) or {})["spec"]["devices"]) == 2)

    asyncio.run(main())


def test_a_second_plugin_on_the_same_state_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        async with running(tmp_path, kube, [device(0)]) as node:
            second = Plugin(node.config, client=kube, backends=[], timings=Timings(lock=0.05))
            with pytest.raises(DraError, match="another kubelet-plugin of this driver runs on the node"):
                await second.run(asyncio.Event())

    asyncio.run(main())


def test_an_inventory_that_is_too_large_is_cut_and_says_so() -> None:
    devices = tuple(InventoryDevice(name=f"gpu-{i}") for i in range(100))
    whole = DeviceInventorySpec(node_name="n", driver=DriverName("d"), devices=devices)
    assert fit(whole) == whole
    cut = fit(whole, limit=1000)
    assert 0 < len(cut.devices) < 100
    assert cut.truncated == 100 - len(cut.devices)
    assert cut.devices == devices[: len(cut.devices)]
    assert fit(whole, most=7).truncated == 93


def test_conditions_of_a_third_party_do_not_make_the_inventory_invalid(tmp_path: Path) -> None:
    """One message that is too long would have the API server refuse the devices of the whole node."""

    def health(severity: str, message: str = "") -> DeviceHealth:
        return DeviceHealth(reason="Sick", severity=severity, message=message)

    long = health("failed", "ä" * 5000)
    found = device(0)
    talkative = msgspec.structs.replace(found.device, health=(*(health("info") for _ in range(20)), long))

    async def main() -> None:
        kube = FakeClient()
        backend = Backend([dataclasses.replace(found, device=talkative), device(1)])
        async with running(tmp_path, kube, backend=backend):
            first, second = (await eventually(lambda: inventory(kube)))["spec"]["devices"]
            (crd,) = documents(INVENTORY_CRD)
            limits = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            for name in ("spec", "devices", "health"):
                limits = limits.get("items", limits)["properties"][name]
            assert len(first["health"]) == limits["maxItems"]
            assert first["health"][0]["severity"] == "failed"
            assert len(first["health"][0]["message"]) == limits["items"]["properties"]["message"]["maxLength"]
            assert "health" not in second

    asyncio.run(main())


def test_configuration_names_every_mistake_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = Configuration(
        node_name=NODE,
        plugins_dir=tmp_path / ("x" * 100),
        registry_dir=tmp_path / "registry",
        cdi_dir=tmp_path / "file" / "cdi",
        state_dir=Path("/proc/nowhere"),
        rescan_seconds=0,
    )
    findings = config.findings()
    assert [f.split()[0].rstrip(":") for f in findings] == [
        "--plugins-dir",
        "--rescan-interval",
        "--cdi-dir",
        "--state-dir",
    ]
    assert "a Unix socket path has at most 107" in findings[0]
    assert f"cannot write in {tmp_path}/file/cdi: Not a directory" in findings[2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]
    bad = Configuration(node_name="A/../b", driver_name="../x").findings()
    assert [f.split()[0] for f in bad] == ["--node-name", "--driver-name"]
