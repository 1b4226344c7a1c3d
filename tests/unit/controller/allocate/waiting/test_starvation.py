"""Big requests and small ones: devices are set aside for a pod that has waited for long. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from controller_harness import NS, Harness, claim, cluster_of, inline, node, pod, pool, request
from examples import share
from late_answers import late
from starvation_world import PATIENCE, Stream, create, end, is_served, occupied, play, served_after

from dra_driver.api.core import NODES, PODS
from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.kube.clock import rfc3339


async def one_is_set_aside(h: Harness) -> None:
    """One of two devices is free, and a small pod does not get it, for a big one has waited for long."""
    await occupied(h)
    create(h, "small")
    end(h, "a")
    await asyncio.sleep(5.0)
    assert not is_served(h, "small")


@pytest.mark.parametrize("seed", share([1, 2, 3], 1))
@pytest.mark.parametrize(
    "answers",
    [pytest.param(late(0.2), id="late"), pytest.param(inline, id="at once", marks=pytest.mark.long)],
)
def test_a_stream_of_small_pods_does_not_starve_one_that_needs_the_whole_node(
    seed: int, answers: Any
) -> None:
    cluster = cluster_of(n1=(40,) * 4, n2=(40,) * 4)

    async def scenario(h: Harness) -> None:
        stream = Stream(h, seed, running=12, seconds=(20.0, 90.0))
        await asyncio.sleep(200.0)
        create(h, "big", 4)
        took = await served_after(h, "big", 1000.0)
        # It waits, and then until the last of the pods on one node has ended.
        assert took is not None
        assert took < PATIENCE + 90.0 + 5.0
        begun = h.clock.monotonic() - took
        # Devices elsewhere are used as before.
        while_waiting = sum(begun < at < begun + took for at in stream.done)
        before = sum(begun - took < at < begun for at in stream.done)
        assert while_waiting > 0.5 * before
        await stream.stop()

    play(cluster, scenario, answers_of=answers)


@pytest.mark.long
def test_without_it_the_big_pod_starves() -> None:
    cluster = cluster_of(n1=(40,) * 4, n2=(40,) * 4)

    async def scenario(h: Harness) -> None:
        stream = Stream(h, 1, running=12, seconds=(20.0, 90.0))
        await asyncio.sleep(200.0)
        create(h, "big", 4)
        assert await served_after(h, "big", 500.0) is None
        await stream.stop()

    play(cluster, scenario, starvation_seconds=0.0)


def test_a_group_is_not_starved_either() -> None:
    cluster = cluster_of(n1=(40,) * 2, n2=(40,) * 2, n3=(40,) * 2)

    async def scenario(h: Harness) -> None:
        stream = Stream(h, 5, running=9, seconds=(20.0, 60.0))
        await asyncio.sleep(100.0)
        labels = {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2"}
        for name in ("g1", "g2"):
            create(h, name, 2, metadata={"labels": labels})
        took = await served_after(h, "g1", 1000.0)
        assert took is not None
        assert took < PATIENCE + 60.0 + 5.0
        await stream.stop()

    play(cluster, scenario)


def test_pods_of_higher_priority_go_before_it_and_see_no_difference() -> None:
    cluster = cluster_of(n1=(40,) * 2)

    async def scenario(h: Harness) -> None:
        await one_is_set_aside(h)
        assert any("set aside" in text for text in h.events("FailedAllocation"))
        create(h, "urgent", priority=10)
        await asyncio.sleep(5.0)
        assert is_served(h, "urgent")
        end(h, "urgent")
        await asyncio.sleep(5.0)
        assert not is_served(h, "small")
        end(h, "b")
        await asyncio.sleep(5.0)
        assert (is_served(h, "big"), is_served(h, "small")) == (True, False)
        end(h, "big")
        await asyncio.sleep(5.0)
        assert is_served(h, "small")

    play(cluster, scenario)


def test_a_pod_that_kube_scheduler_has_bound_is_not_kept_waiting() -> None:
    cluster = cluster_of(n1=(40,) * 2)

    async def scenario(h: Harness) -> None:
        await occupied(h)
        end(h, "a")
        create(h, "small")
        create(h, "bound", gated=False)
        await asyncio.sleep(5.0)
        assert (is_served(h, "small"), is_served(h, "bound")) == (False, False)
        h.cluster.edit(PODS, "bound", {"spec": {"nodeName": "n1"}}, NS)
        await asyncio.sleep(5.0)
        assert (is_served(h, "small"), is_served(h, "bound")) == (False, True)

    play(cluster, scenario)


def test_a_pod_that_was_made_with_a_node_leaves_what_is_set_aside() -> None:
    cluster = cluster_of(n1=(40,) * 2)

    async def scenario(h: Harness) -> None:
        await occupied(h)
        end(h, "a")
        create(h, "made", nodeName="n1", gated=False)
        await asyncio.sleep(5.0)
        assert not is_served(h, "made")
        assert "set aside" in h.reason("made").message
        end(h, "b")
        await asyncio.sleep(5.0)
        assert (is_served(h, "big"), is_served(h, "made")) == (True, False)
        end(h, "big")
        await asyncio.sleep(5.0)
        assert is_served(h, "made")

    play(cluster, scenario)


def test_it_ends_with_the_pod() -> None:
    cluster = cluster_of(n1=(40,) * 2)

    async def scenario(h: Harness) -> None:
        await one_is_set_aside(h)
        end(h, "big")
        await asyncio.sleep(3.0)
        assert is_served(h, "small")

    play(cluster, scenario)


def test_it_ends_after_a_while_and_comes_again_for_twice_as_long() -> None:
    cluster = cluster_of(n1=(40,) * 2)

    async def scenario(h: Harness) -> None:
        for name in ("service", "a"):
            create(h, name)
        create(h, "big", 2)
        await asyncio.sleep(PATIENCE + 5.0)
        end(h, "a")
        spans = []
        for number in range(2):
            start = h.clock.monotonic()
            create(h, f"small-{number}")
            while not is_served(h, f"small-{number}"):
                await asyncio.sleep(0.5)
            spans.append(h.clock.monotonic() - start)
            await asyncio.sleep(PATIENCE + 5.0)
            end(h, f"small-{number}")
        assert PATIENCE < spans[0] < 2 * PATIENCE + 5.0
        assert 2 * PATIENCE < spans[1] < 4 * PATIENCE + 5.0

    play(cluster, scenario)


def test_big_pods_that_are_never_served_do_not_starve_small_ones_by_turns() -> None:
    cluster = cluster_of(n1=(40,) * 3)

    async def scenario(h: Harness) -> None:
        for name in ("service", "a"):
            create(h, name)
        for number in range(3):
            create(h, f"big-{number}", 3 - number % 2)
            await asyncio.sleep(PATIENCE + 5.0)
        for number in range(5):
            create(h, f"small-{number}")
            assert await served_after(h, f"small-{number}", 3600.0 + PATIENCE) is not None
            await asyncio.sleep(5.0)
            end(h, f"small-{number}")

    play(cluster, scenario)


def test_nothing_is_set_aside_for_what_would_fit_nowhere() -> None:
    cluster = cluster_of(n1=(40,) * 2)

    async def scenario(h: Harness) -> None:
        for name in ("a", "b"):
            create(h, name)
        create(h, "never", 3)
        create(h, "big", 2)
        await asyncio.sleep(PATIENCE + 5.0)
        assert len(h.events("DevicesSetAside")) == 1
        end(h, "a")
        end(h, "b")
        await asyncio.sleep(5.0)
        assert is_served(h, "big")

    play(cluster, scenario)


def test_it_is_set_aside_where_claims_are_young_not_where_a_service_runs() -> None:
    cluster = cluster_of(n1=(40,) * 2, n2=(40,) * 2)

    async def scenario(h: Harness) -> None:
        for name in ("service", "s1"):
            create(h, name)
            await asyncio.sleep(100.0)
        node_of_service = h.devices("service")[0][0]
        for name in ("s2", "s3", "big"):
            create(h, name, 2 if name == "big" else 1)
            await asyncio.sleep(2.0)
        await asyncio.sleep(PATIENCE + 5.0)
        young = [n for n in ("s1", "s2", "s3") if h.devices(n)[0][0] != node_of_service]
        for name in young:
            end(h, name)
            create(h, f"after-{name}")
            await asyncio.sleep(5.0)
        assert is_served(h, "big")

    play(cluster, scenario)


def test_a_node_that_goes_ends_it_and_another_one_is_found() -> None:
    cluster = cluster_of(n1=(40,) * 2, n2=(40,) * 2)

    async def scenario(h: Harness) -> None:
        for name in "abcd":
            create(h, name)
            await asyncio.sleep(10.0)
        create(h, "big", 2)
        await asyncio.sleep(PATIENCE + 5.0)
        cluster.edit(NODES, "n2", {"spec": {"unschedulable": True}})
        await asyncio.sleep(5.0)
        for name in "abcd":
            if h.devices(name)[0][0] == "n1":
                end(h, name)
                create(h, f"after-{name}")
                await asyncio.sleep(5.0)
        assert [pool for pool, _ in h.devices("big")] == ["n1", "n1"]

    play(cluster, scenario)


def test_cpu_is_kept_for_it_too() -> None:
    cluster = cluster_of()
    node(cluster, "n1", cpu="4")
    pool(cluster, "n1", 40, 40, 40, 40)

    async def scenario(h: Harness) -> None:
        create(h, "a")
        create(h, "b")
        claim(cluster, "big", request(count=3))
        stamp = {"creationTimestamp": rfc3339(h.clock.now())}
        pod(cluster, "big", "big", "big-2", metadata=stamp)
        claim(cluster, "big-2", request(count=1))
        await asyncio.sleep(PATIENCE + 5.0)
        end(h, "a")
        create(h, "small")
        await asyncio.sleep(5.0)
        assert not is_served(h, "small")
        end(h, "b")
        await asyncio.sleep(5.0)
        assert is_served(h, "big")
        assert is_served(h, "big-2")

    play(cluster, scenario)


def test_a_controller_that_starts_anew_goes_on_at_once() -> None:
    cluster = cluster_of(n1=(40,) * 2)

    async def before(h: Harness) -> None:
        await occupied(h)

    play(cluster, before)

    async def after(h: Harness) -> None:
        await asyncio.sleep(5.0)
        create(h, "small")
        end(h, "a")
        await asyncio.sleep(5.0)
        assert not is_served(h, "small")
        end(h, "b")
        await asyncio.sleep(5.0)
        assert is_served(h, "big")

    play(cluster, after, since=PATIENCE + 10.0)
