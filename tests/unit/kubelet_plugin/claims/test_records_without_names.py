"""Records by which a container would get no device: an error says which claim and device, and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_client import FakeClient
from kubelet_calls import checkpointed, prepare, unprepare
from node_agent import add_claim, claim, configuration, device, running

from dra_driver.preparation import Checkpoint, PreparedClaim

WAY_OUT = "delete the claim's pods: the claim is then unprepared, and prepared anew for new ones"


def _nameless(record: PreparedClaim) -> PreparedClaim:
    devices = tuple(msgspec.structs.replace(d, cdi_device_ids=()) for d in record.devices)
    return msgspec.structs.replace(record, devices=devices)


def _without_document(record: PreparedClaim) -> PreparedClaim:
    return msgspec.structs.replace(record, spec=None)


@pytest.mark.parametrize(
    ("edit", "missing"),
    [
        (_nameless, "its record has no CDI device name (cdiDeviceIDs)"),
        (_without_document, "its record has no CDI document (spec)"),
    ],
    ids=["name", "document"],
)
def test_a_record_without_what_containers_need_is_refused_by_name(
    tmp_path: Path, edit: Callable[[PreparedClaim], PreparedClaim], missing: str
) -> None:
    kube = FakeClient()
    one, two = (add_claim(kube, claim(n, f"gpu-{i}")) for i, n in enumerate(("one", "two")))
    uid, other = (body["metadata"]["uid"] for body in (one, two))
    devices = [device(0), device(1)]

    async def first() -> None:
        async with running(tmp_path, kube, devices) as node:
            for answer in (await prepare(node, one, two)).values():
                assert not answer.error

    async def then() -> dict[str, Any]:
        async with running(tmp_path, kube, devices) as node:
            error = (await prepare(node, one))[uid].error
            assert error == (
                f"claim ns/one (UID {uid}), device gpu-0: {missing}, "
                f"so that no container can be given the device; {WAY_OUT}"
            )
            # Another claim is not affected, and the way out is one.
            assert (await prepare(node, two))[other].devices[0].cdi_device_ids
            assert not (await unprepare(node, one))[uid].error
            answer = (await prepare(node, one))[uid]
            assert not answer.error
            assert answer.devices[0].cdi_device_ids
            return checkpointed(node)

    asyncio.run(first())
    file = configuration(tmp_path).checkpoint
    before = Checkpoint.decode(file.read_bytes())
    file.write_bytes(before.changed({c.uid: edit(c) for c in before if c.uid == uid}).encode())
    assert asyncio.run(then()).keys() == {uid, other}
