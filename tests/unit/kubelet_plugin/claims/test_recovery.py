"""What is read of CDI files where records of claims were lost."""

from __future__ import annotations

import pytest
from crashing_stores import Disk
from fake_client import FakeClient
from node_agent import DRIVER
from npu_backend import given, node, run

from dra_driver.api.meta import Uid
from dra_driver.preparation import Checkpoint, PreparedClaim
from kubelet_plugin.claims.recovery import Recovery
from kubelet_plugin.claims.reservations import NO_CHECKPOINT
from kubelet_plugin.core.notices import CHECKPOINT_DAMAGED

DAMAGED = "the checkpoint is damaged"


@pytest.fixture
def disk() -> Disk:
    """With one prepared claim."""
    disk = Disk()

    async def scenario(kube: FakeClient, _: Disk) -> None:
        await node(disk, kube).prepare(given(kube, "one", "gpu-0"))

    run(scenario)
    return disk


def record_of(disk: Disk) -> PreparedClaim:
    (record,) = Checkpoint.decode(disk.checkpoint)
    return record


def test_a_file_counts_where_no_record_says_that_the_claim_is_prepared(disk: Disk) -> None:
    record, recovery = record_of(disk), Recovery(DRIVER, lambda *_: None)
    assert [r.uid for r in recovery.recover(DAMAGED, [], disk.specs)] == [record.uid]
    assert recovery.recover(DAMAGED, [record], disk.specs) == []


def test_a_file_with_the_record_of_another_claim_is_neither_recovered_nor_removed(disk: Disk) -> None:
    """What it says would hold the other claim's devices under a name that nothing ends."""
    recovery, other = Recovery(DRIVER, lambda *_: None), Uid("00000000-0000-4000-8000-000000000001")
    (data,) = disk.specs.values()
    assert recovery.recover(DAMAGED, [], {other: data}) == []
    assert not recovery.is_orphan(other, data)
    assert recovery.is_orphan(record_of(disk).uid, data)


@pytest.mark.parametrize(("problem", "reported"), [(DAMAGED, [CHECKPOINT_DAMAGED]), (NO_CHECKPOINT, [])])
def test_a_damaged_checkpoint_is_reported_where_nothing_is_left_too(
    problem: str, reported: list[str]
) -> None:
    told: list[str] = []
    assert Recovery(DRIVER, lambda kind, _: told.append(kind)).recover(problem, [], {}) == []
    assert told == reported
