"""Devices stay with their claim until it is proved that no process of its pods is left."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_client import FakeClient
from kubelet_calls import checkpointed, prepare, unprepare
from listing_kubelet import ListingKubelet, cgroup, listing, process
from node_agent import DRIVER, Node, add_claim, claim, device, eventually, inventory, running

from dra_driver.api.core import EVENTS
from dra_driver.api.resource import RESOURCE_CLAIMS
from kubelet_plugin.claims.planning import Timing
from kubelet_plugin.claims.reconciliation import Intervals
from kubelet_plugin.usage import claim_use

OFTEN = Intervals(first=0.02, every=0.05, confirm=0.15)
SHORT = Timing(budget=5.0, patience=0.2)
POD, LATER = "11111111-2222-4333-8444-555555555555", "66666666-7777-4888-9999-aaaaaaaaaaaa"
FORCED = "its pod still has processes (cgroup /kubepods.slice/"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_use, "_ENDING_SECONDS", 0.0)


def used(name: str, *pods: str, template: bool = False, **more: Any) -> dict[str, Any]:
    """A claim to ``gpu-0`` of a template or shared, with its pods."""
    body = claim(name, "gpu-0", **more)
    body["status"]["reservedFor"] = [{"resource": "pods", "name": f"pod-{u[0]}", "uid": u} for u in pods]
    if template:
        body["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    return body


@contextlib.asynccontextmanager
async def node_with(
    root: Path, body: dict[str, Any], **more: Any
) -> AsyncIterator[tuple[Node, ListingKubelet]]:
    """A node that has prepared a claim, in whose procfs no pods are seen, with a kubelet that lists it."""
    kube = more.pop("kube", None) or FakeClient()
    add_claim(kube, body)
    process(root / "proc", 1)
    settings = {"procfs_root": root / "proc", **more.pop("settings", {})}
    async with (
        listing(root / "pod-resources.sock") as kubelet,
        running(root, kube, [device(0)], settings=settings, timing=SHORT, **more) as node,
    ):
        assert not (await prepare(node, body))[body["metadata"]["uid"]].error
        await node.register()
        list_claim(node, kubelet, body)
        yield node, kubelet


def list_claim(node: Node, kubelet: ListingKubelet, body: dict[str, Any]) -> None:
    records = {r.uid: r for r in node.plugin._preparer.claims}
    names = [n for d in records[body["metadata"]["uid"]].devices for n in d.cdi_device_ids]
    kubelet.pods = {("ns", "pod-1"): (body["metadata"]["name"], DRIVER, names)}


async def error_of(node: Node, call: Any, body: dict[str, Any]) -> str:
    answer = (await call(node, body))[body["metadata"]["uid"]]
    return str(answer.error)


@pytest.mark.parametrize("template", [True, False])
def test_a_pod_that_was_deleted_by_force_keeps_its_devices_until_its_processes_have_ended(
    tmp_path: Path, template: bool
) -> None:
    """The kubelet forgets it at once and unprepares its claims within a minute, while its containers run."""

    async def main() -> None:
        body, next_one = used("one", POD, template=template), used("two", LATER, template=template)
        folder = cgroup(tmp_path / "cgroup", POD)
        async with node_with(tmp_path, body, intervals=OFTEN) as (node, kubelet):
            kubelet.pods = {}
            assert FORCED in await error_of(node, unprepare, body)
            node.kube.remove(RESOURCE_CLAIMS, "one", "ns")
            add_claim(node.kube, next_one)
            assert "is held by another claim" in await error_of(node, prepare, next_one)
            seen = node.plugin._reconciler.rounds
            await eventually(lambda: node.plugin._reconciler.rounds >= seen + 8)
            assert {c["name"] for c in checkpointed(node).values()} == {"one"}
            # The runtime has killed what did not end by itself.
            shutil.rmtree(folder)
            assert await error_of(node, unprepare, body) == ""
            assert await error_of(node, prepare, next_one) == ""
            assert {c["name"] for c in checkpointed(node).values()} == {"two"}

    asyncio.run(main())


def test_what_stays_is_told_until_it_is_released(tmp_path: Path) -> None:
    async def main() -> None:
        body = used("one", POD, template=True)
        folder = cgroup(tmp_path / "cgroup", POD)
        async with node_with(tmp_path, body) as (node, _):
            for _ in range(3):
                assert await error_of(node, unprepare, body)
            assert node.plugin.notices.counts["ClaimGoneInUse"] == 1
            metrics = node.plugin.observation.metrics.render(()).decode()
            assert "dra_driver_claims_gone_in_use 1.0" in metrics
            assert "dra_driver_pod_processes_visible 1.0" in metrics
            (event,) = await eventually(
                lambda: [e for e in node.kube.all(EVENTS) if e.reason == "ClaimGoneInUse"]
            )
            assert FORCED in event.message
            assert "End the processes or reboot the node" in event.message

            def conditions() -> list[dict[str, Any]]:
                found = inventory(node.kube) or {}
                return [h for d in found["spec"]["devices"] for h in d.get("health", ())]

            (condition,) = await eventually(conditions)
            assert (condition["reason"], condition["severity"]) == ("ClaimGoneInUse", "degraded")
            assert FORCED in condition["message"]
            (folder / "cgroup.events").write_text("populated 0\n")
            assert await error_of(node, unprepare, body) == ""
            await eventually(lambda: not conditions())
            assert "dra_driver_claims_gone_in_use 0.0" in node.plugin.observation.metrics.render(()).decode()

    asyncio.run(main())


def test_what_is_shared_is_not_kept_from_others_for_what_one_of_them_does(tmp_path: Path) -> None:
    async def main() -> None:
        body = used("one", POD, template=True, shareID="9a0b3c52-5c1f-4c8a-8a8e-3e64b4a3b8a1")
        cgroup(tmp_path / "cgroup", POD)
        async with node_with(tmp_path, body) as (node, _):
            assert FORCED in await error_of(node, unprepare, body)
            assert node.plugin._use.kept == 1
            assert {n: c.severity for n, c in node.plugin._use.conditions().items()} == {"gpu-0": "info"}

    asyncio.run(main())


def test_a_pod_whose_last_process_is_just_being_reaped_costs_no_second_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_use, "_ENDING_SECONDS", 10.0)

    async def main() -> None:
        body = used("one", POD, template=True)
        folder = cgroup(tmp_path / "cgroup", POD)
        async with node_with(tmp_path, body) as (node, _):
            asyncio.get_running_loop().call_later(0.3, shutil.rmtree, folder)
            assert await error_of(node, unprepare, body) == ""
            assert node.plugin.notices.counts["ClaimGoneInUse"] == 0

    asyncio.run(main())


def test_a_restarted_agent_knows_whose_processes_to_look_for(tmp_path: Path) -> None:
    async def main() -> None:
        kube, body = FakeClient(), used("one", POD, template=True)
        cgroup(tmp_path / "cgroup", POD)
        async with node_with(tmp_path, body, kube=kube) as (node, _):
            assert FORCED in await error_of(node, unprepare, body)
        kube.remove(RESOURCE_CLAIMS, "one", "ns")
        settings = {"procfs_root": tmp_path / "proc"}
        async with running(tmp_path, kube, [device(0)], settings=settings, timing=SHORT) as node:
            assert FORCED in await error_of(node, unprepare, body)
            assert len(checkpointed(node)) == 1

    asyncio.run(main())


def test_a_pod_that_joined_a_shared_claim_later_keeps_its_devices(tmp_path: Path) -> None:
    """The kubelet prepares a claim once, for the first pod; the second one is in no record of that time."""

    async def main() -> None:
        body = used("one", POD)
        later = cgroup(tmp_path / "cgroup", LATER)
        async with node_with(tmp_path, body) as (node, kubelet):
            uid = body["metadata"]["uid"]
            body["status"]["reservedFor"].append({"resource": "pods", "name": "pod-6", "uid": LATER})
            node.kube.put(RESOURCE_CLAIMS, body)
            names = {n for _, _, listed in kubelet.pods.values() for n in listed}
            kubelet.pods = {("ns", p): ("one", DRIVER, names) for p in ("pod-1", "pod-6")}
            await node.plugin.observation._reservations.follow()
            kubelet.pods = {}
            assert FORCED in await error_of(node, unprepare, body)
            assert uid in checkpointed(node)
            shutil.rmtree(later)
            assert await error_of(node, unprepare, body) == ""

    asyncio.run(main())


def test_without_any_view_of_pods_the_kubelets_word_counts_only_while_it_lists_the_claim(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        body = used("one", POD, template=True)
        async with node_with(tmp_path, body) as (node, kubelet):
            await node.plugin._use.list()
            kubelet.pods = {}
            assert "cannot be seen from here" in await error_of(node, unprepare, body)
            assert (
                "dra_driver_pod_processes_visible 0.0" in node.plugin.observation.metrics.render(()).decode()
            )
            # It lists the pod while it ends it in order, after its containers have stopped.
            list_claim(node, kubelet, body)
            assert await error_of(node, unprepare, body) == ""

    asyncio.run(main())


@pytest.mark.parametrize("gone", [True, False])
def test_an_administrator_may_release_what_nobody_can_see(tmp_path: Path, gone: bool) -> None:
    async def main() -> None:
        body = used("one", POD, template=True)
        async with node_with(tmp_path, body, intervals=OFTEN) as (node, kubelet):
            await node.plugin._use.list()
            kubelet.pods = {}
            assert await error_of(node, unprepare, body)
            file = node.config.state / "unused" / body["metadata"]["uid"]
            (event,) = await eventually(
                lambda: [e for e in node.kube.all(EVENTS) if e.reason == "ClaimGoneInUse"]
            )
            assert str(file) in event.message
            file.parent.mkdir()
            file.touch()
            if gone:
                node.kube.remove(RESOURCE_CLAIMS, "one", "ns")
                await eventually(lambda: not checkpointed(node))
            else:
                assert await error_of(node, unprepare, body) == ""
            await eventually(lambda: not file.exists())

    asyncio.run(main())


def test_an_administrators_word_does_not_outweigh_what_is_seen(tmp_path: Path) -> None:
    async def main() -> None:
        body = used("one", POD, template=True)
        cgroup(tmp_path / "cgroup", POD)
        async with node_with(tmp_path, body, intervals=OFTEN) as (node, kubelet):
            file = node.config.state / "unused" / body["metadata"]["uid"]
            file.parent.mkdir()
            file.touch()
            kubelet.pods = {}
            assert FORCED in await error_of(node, unprepare, body)
            node.kube.remove(RESOURCE_CLAIMS, "one", "ns")
            seen = node.plugin._reconciler.rounds
            await eventually(lambda: node.plugin._reconciler.rounds >= seen + 8)
            assert file.exists()
            assert len(checkpointed(node)) == 1

    asyncio.run(main())


def test_a_claim_that_a_pod_has_again_is_kept_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        body = used("one", POD)
        cgroup(tmp_path / "cgroup", POD)
        async with node_with(tmp_path, body) as (node, _):
            assert await error_of(node, unprepare, body)
            assert node.plugin._use.kept == 1
            assert await error_of(node, prepare, body) == ""
            assert node.plugin._use.kept == 0

    asyncio.run(main())


def test_a_claim_that_another_agent_has_unprepared_is_kept_no_more(tmp_path: Path) -> None:
    """During a rolling update two agents share the records."""

    async def main() -> None:
        body = used("one", POD, template=True)
        folder = cgroup(tmp_path / "cgroup", POD)
        kube = FakeClient()
        async with node_with(tmp_path, body, kube=kube, settings={"instance_id": "old"}) as (old, _):
            assert await error_of(old, unprepare, body)
            shutil.rmtree(folder)
            settings = {"procfs_root": tmp_path / "proc", "instance_id": "new"}
            async with running(tmp_path, kube, [device(0)], settings=settings, timing=SHORT) as new:
                assert await error_of(new, unprepare, body) == ""
            await old.plugin._preparer.prepared()
            await old.plugin._use.list()
            assert old.plugin._use.kept == 0

    asyncio.run(main())
