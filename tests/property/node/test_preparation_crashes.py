"""A crash or a full disk at any effect, then restart and repetition, ends as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from crashing_stores import Crash, Disk, DiskCheckpoints, DiskSpecs
from examples import examples
from fake_client import FakeClient
from hypothesis import given, settings
from hypothesis import strategies as st
from node_agent import DRIVER, NODE, claim

from dra_driver import cdi
from dra_driver.api.meta import PoolName
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import PrepareError
from dra_driver.preparation import Checkpoint, ClaimState, NodeDevice
from kubelet_plugin.claims.planning import ClaimReference, Timing
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reservations import DeviceReservations

UIDS = [f"00000000-0000-4000-8000-00000000000{i}" for i in range(4)]
# Claims 0 and 1 want the same device; 2 has one of its own and one with admin access; 3 has none of ours.
CLAIMS = [
    claim("c0", "gpu-0", uid=UIDS[0]),
    claim("c1", "gpu-0", "gpu-1", uid=UIDS[1]),
    claim("c2", "gpu-2", uid=UIDS[2]),
    claim("c3", "x", uid=UIDS[3], driver="other.example.com"),
]
DEVICES = {
    f"gpu-{i}": NodeDevice(
        name=f"gpu-{i}", uuid=f"U{i}", published_uuid=f"U{i}", edits=cdi.ContainerEdits(env=(f"G={i}",))
    )
    for i in range(3)
}
Call = tuple[str, int]
calls = st.lists(st.tuples(st.sampled_from(["prepare", "unprepare"]), st.integers(0, 3)), max_size=8)


def preparer(disk: Disk) -> Preparer:
    kube = FakeClient()
    for body in CLAIMS:
        kube.put(RESOURCE_CLAIMS, body)
    return Preparer(
        driver=DRIVER,
        pool=PoolName(NODE),
        client=kube,
        reservations=DeviceReservations(DiskCheckpoints(disk)),
        specs=DiskSpecs(disk),
        devices=lambda: DEVICES,
        timing=Timing(budget=5.0, patience=0.0),
    )


async def call(to: Preparer, what: Call) -> object:
    verb, i = what
    reference = ClaimReference("ns", f"c{i}", UIDS[i])
    try:
        return await (to.prepare(reference) if verb == "prepare" else to.unprepare(reference))
    except PrepareError as e:
        return str(e)


async def play(disk: Disk, script: Sequence[Call]) -> list[object]:
    """Plays the kubelet: after a crash the plugin starts anew, and the call is repeated."""
    answers: list[object] = []
    alive: Preparer | None = None
    for what in script:
        while True:
            try:
                if alive is None:
                    fresh = preparer(disk)
                    await fresh.restore()
                    check_consistent(disk)
                    alive = fresh
                answers.append(await call(alive, what))
                break
            except Crash:
                alive = None
                # Nothing on the node without a durable record of it.
                assert disk.specs.keys() <= disk.claims().keys()
            except OSError:
                if what[0] == "prepare":
                    assert UIDS[what[1]] not in disk.specs
                    assert UIDS[what[1]] not in disk.claims()
    await preparer(disk).restore()
    check_consistent(disk)
    return answers


def check_consistent(disk: Disk) -> None:
    """What must hold after every start, unless the disk refused to be put in order."""
    records = list(Checkpoint.decode(disk.checkpoint))
    assert {r.state for r in records} <= {ClaimState.COMPLETED}
    assert disk.specs.keys() == {r.uid for r in records if r.spec is not None}
    held = [d.device for r in records for d in r.devices if not d.admin_access]
    assert len(held) == len(set(held))


@settings(max_examples=examples(150), deadline=None)
@given(script=calls, data=st.data())
def test_crash_at_any_effect(script: list[Call], data: st.DataObject) -> None:
    calm = Disk()
    expected = asyncio.run(play(calm, script))
    disk = Disk(
        trouble_at=data.draw(st.integers(0, max(calm.effects, 1))),
        after=data.draw(st.booleans()),
    )
    assert asyncio.run(play(disk, script)) == expected
    assert (disk.claims(), disk.specs) == (calm.claims(), calm.specs)


@settings(max_examples=examples(100), deadline=None)
@given(script=calls, data=st.data())
def test_error_at_any_effect(script: list[Call], data: st.DataObject) -> None:
    calm = Disk()
    expected = asyncio.run(play(calm, script))
    disk = Disk(trouble_at=data.draw(st.integers(0, max(calm.effects, 1))), error=True)
    assert asyncio.run(play(disk, script)) == expected
    assert (disk.claims(), disk.specs) == (calm.claims(), calm.specs)


@given(script=calls, position=st.integers(0, 7))
@settings(max_examples=examples(50), deadline=None)
def test_a_repeated_call_changes_nothing(script: list[Call], position: int) -> None:
    repeated = [c for i, c in enumerate(script) for c in [c] * (2 if i == position else 1)]
    once, twice = Disk(), Disk()
    asyncio.run(play(once, script))
    asyncio.run(play(twice, repeated))
    assert (once.claims(), once.specs) == (twice.claims(), twice.specs)


def test_every_effect_of_a_full_life() -> None:
    script = [
        ("prepare", 0),
        ("prepare", 2),
        ("prepare", 1),
        ("prepare", 0),
        ("unprepare", 0),
        ("prepare", 1),
        ("unprepare", 2),
        ("unprepare", 1),
        ("unprepare", 1),
    ]
    calm = Disk()
    expected = asyncio.run(play(calm, script))
    assert calm.effects == 15  # three claims: intent, file, completion; file, record
    for trouble_at in range(calm.effects):
        for after, error in ((False, False), (True, False), (False, True)):
            disk = Disk(trouble_at=trouble_at, after=after, error=error)
            assert asyncio.run(play(disk, script)) == expected
            assert disk.trouble_at is None
            assert (disk.claims(), disk.specs) == ({}, {})
