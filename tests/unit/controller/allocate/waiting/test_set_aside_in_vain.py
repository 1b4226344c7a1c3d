"""Devices are not set aside in vain: for pods that kube-scheduler cannot place, or that keep devices idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from controller_harness import NS, Harness, cluster_of
from starvation_world import PATIENCE, create, end, is_served, occupied, play, served_after

from dra_driver.api.core import NODES, PODS
from dra_driver.api.names import CANNOT_ALLOCATE, NOT_ON_NODE, SET_ASIDE_CONDITION
from dra_driver.api.scheduling import pod_groups

NO_NODE = "0/1 nodes are available: 1 node(s) didn't match pod affinity rules."
NOT_HERE = f"0/1 nodes are available: 1 {NOT_ON_NODE}."
NO_CLAIMS = f"0/1 nodes are available: 1 {CANNOT_ALLOCATE}."
LONG = 1500.0


def metric(h: Harness, name: str) -> float:
    full = f"dra_driver_controller_{name}"
    # Only this one: some tests ask each second.
    families = h.controller.metrics.registry.restricted_registry([full]).collect()
    return next((s.value for f in families for s in f.samples if s.name == full), 0.0)


def condition(h: Harness, name: str) -> tuple[str, str]:
    found = h.cluster.obj(PODS, name, NS).status.conditions
    mine = [c for c in found if c["type"] == SET_ASIDE_CONDITION]
    return (str(mine[0]["status"]), str(mine[0].get("message", ""))) if mine else ("", "")


async def seconds_aside(h: Harness, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> float:
    """Return for how many of the seconds devices were set aside."""
    start, found = h.clock.monotonic(), 0.0
    while h.clock.monotonic() - start < seconds:
        meanwhile()
        await asyncio.sleep(1.0)
        found += metric(h, "set_aside_devices") > 0
    return found


def turn_down(h: Harness, message: str) -> None:
    """Do as kube-scheduler with big pods, which it finds no node for; the small ones it binds."""
    for pod in h.cluster.all(PODS):
        name = pod.metadata.name
        if pod.spec.node_name or pod.spec.scheduling_gates or not is_served(h, name):
            continue
        if name.startswith("big"):
            h.report(name, message)
        else:
            h.bind(name, h.devices(name)[0][0])


async def turned_down(h: Harness, message: str, **spec: Any) -> None:
    """Have "big" get its devices in its turn, and lose them; "c" and "d" have them in the end."""
    await occupied(h, **spec)
    assert metric(h, "set_aside_devices") == 2
    for name in ("a", "b"):
        h.bind(name, "n1")
        end(h, name)
    assert await served_after(h, "big", 5.0) is not None
    for name in ("c", "d"):
        create(h, name)
    await asyncio.sleep(0.2)  # less than a second: it waits again before the next look
    turn_down(h, message)
    assert await served_after(h, "d", 5.0) is not None
    turn_down(h, message)


@pytest.mark.long
@pytest.mark.parametrize("message", [NO_NODE, NOT_HERE])
def test_nothing_is_set_aside_again_for_a_pod_that_could_not_be_placed(message: str) -> None:
    """Until kube-scheduler reports that more nodes would suit it."""

    async def scenario(h: Harness) -> None:
        await turned_down(h, message)
        assert await seconds_aside(h, LONG, lambda: turn_down(h, message)) == 0
        h.report("big", NO_CLAIMS.replace("1 ", "2 "))
        assert await seconds_aside(h, 10.0) > 0

    play(cluster_of(n1=(40,) * 2), scenario)


@pytest.mark.long
@pytest.mark.parametrize(("policy", "is_left_out"), [("basic", False), ("gang", True)])
def test_pods_of_a_pod_group_are_left_out_together_where_they_start_together(
    policy: str, is_left_out: bool
) -> None:
    of_group = {"schedulingGroup": {"podGroupName": "job"}}
    cluster = cluster_of(n1=(40,) * 2)
    terms = {"minCount": 1} if policy == "gang" else {}
    body = {"schedulingPolicy": {policy: terms}}
    cluster.put(pod_groups("v1alpha2"), {"metadata": {"name": "job", "namespace": NS}, "spec": body})

    async def scenario(h: Harness) -> None:
        await turned_down(h, NO_NODE, **of_group)
        create(h, "other", 2, tolerations=[{"key": "other", "operator": "Exists"}], **of_group)
        assert (await seconds_aside(h, LONG, lambda: turn_down(h, NO_NODE)) == 0) is is_left_out

    play(cluster, scenario)


def test_nothing_is_set_aside_for_pods_that_take_the_place_of_one_that_could_not_be_placed() -> None:
    async def scenario(h: Harness) -> None:
        await turned_down(h, NO_NODE)
        for number in range(10):
            last = "big" if number == 0 else f"big-{number - 1}"
            end(h, last)
            create(h, f"big-{number}", 2)
            await asyncio.sleep(2.0)
            # Each of them waits long enough for a turn of its own.
            aside = await seconds_aside(h, 1.2 * PATIENCE, lambda: turn_down(h, NO_NODE))
            assert aside == 0 or number > 0, number
            if aside:
                break
        # Its time has doubled each time that one of them was turned down.
        assert number > 0

    play(cluster_of(n1=(40,) * 2), scenario)


def test_a_pod_that_was_bound_in_its_turn_is_not_charged_for_it() -> None:
    async def scenario(h: Harness) -> None:
        for _ in range(3):
            await occupied(h)
            for name in ("a", "b"):
                h.bind(name, "n1")
                end(h, name)
            assert await served_after(h, "big", 5.0) is not None
            h.bind("big", "n1")
            await asyncio.sleep(2 * PATIENCE)
            end(h, "big")
            await asyncio.sleep(5.0)

    play(cluster_of(n1=(40,) * 2), scenario)


@pytest.mark.long
def test_nothing_is_set_aside_on_a_node_that_takes_no_pods() -> None:
    async def scenario(h: Harness) -> None:
        for name in ("a", "b"):
            create(h, name)
        h.cluster.edit(NODES, "n1", {"spec": {"unschedulable": True}})
        create(h, "big", 2)
        assert await seconds_aside(h, LONG) == 0
        h.cluster.edit(NODES, "n1", {"spec": {"unschedulable": None}})
        assert await seconds_aside(h, LONG) > 0

    play(cluster_of(n1=(40,) * 2), scenario)


def test_nothing_is_set_aside_for_a_pod_that_others_hold_back() -> None:
    async def scenario(h: Harness) -> None:
        for name in ("a", "b"):
            create(h, name)
        create(h, "big", 2, other_gates=("kueue.x-k8s.io/admission",))
        assert await seconds_aside(h, LONG) == 0
        gates = [{"name": "dra-driver.dev/allocation"}]
        h.cluster.edit(PODS, "big", {"spec": {"schedulingGates": gates}}, NS)
        assert await seconds_aside(h, PATIENCE - 5.0) == 0, "it has waited for us for that long"
        assert await seconds_aside(h, 10.0) > 0

    play(cluster_of(n1=(40,) * 2), scenario)


def test_it_is_shown_for_which_pod_devices_are_set_aside() -> None:
    async def scenario(h: Harness) -> None:
        await occupied(h)
        assert metric(h, "set_aside_devices") == 2
        assert PATIENCE < metric(h, "longest_wait_seconds") < PATIENCE + 10.0
        status, message = condition(h, "big")
        assert status == "True"
        assert message.startswith("until 2027-")
        assert message.endswith("at the latest: n1: gpu-0, gpu-1")
        assert "n1: gpu-0, gpu-1" in h.events("DevicesSetAside")[0]
        assert h.reason("big").reason == "FailedAllocation", "both conditions stand beside each other"
        h.cluster.edit(NODES, "n1", {"spec": {"unschedulable": True}})
        await asyncio.sleep(5.0)
        assert condition(h, "big") == ("False", "")
        assert metric(h, "set_aside_devices") == 0

    play(cluster_of(n1=(40,) * 2), scenario)


def test_a_controller_that_starts_ends_what_the_one_before_has_shown() -> None:
    cluster = cluster_of(n1=(40,) * 2)
    play(cluster, occupied)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(5.0)
        assert condition(h, "big")[0] == "False"

    play(cluster, scenario, starvation_seconds=0.0)


def test_a_pod_whose_turn_is_over_waits_again_after_a_restart() -> None:
    cluster = cluster_of(n1=(40,) * 2)

    async def before(h: Harness) -> None:
        await occupied(h)
        await seconds_aside(h, 2 * PATIENCE)
        assert condition(h, "big")[0] == "False"

    play(cluster, before)

    async def after(h: Harness) -> None:
        assert await seconds_aside(h, PATIENCE - 10.0) == 0
        assert await seconds_aside(h, 20.0) > 0

    play(cluster, after, since=3 * PATIENCE + 5.0)
