"""What shares of a GPU get by MPS, and which of them go together."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from node_agent import DRIVER, NODE, claim

from dra_driver.api import codec
from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.resource import ResourceClaim
from dra_driver.cdi import ContainerEdits
from dra_driver.preparation import Holdings, NodeDevice, PreparedClaim, plan, renewed
from dra_driver.preparation.files.document import documented
from dra_driver.preparation.sharing import MPS_PIPES

GPU = NodeDevice("gpu-0", "GPU-0", "GPU-0", mps_directory="/state/mps/gpu-0")


def shared(
    number: int, *configs: dict[str, Any], namespace: str = "ns", gpu: NodeDevice = GPU
) -> PreparedClaim:
    """Return the plan of a claim for a share of the GPU."""
    uid = f"00000000-0000-4000-8000-00000000000{number}"
    body = claim(f"c{number}", gpu.name, uid=uid, shareID=f"10000000-0000-4000-8000-00000000000{number}")
    body["metadata"]["namespace"] = namespace
    body["status"]["allocation"]["devices"]["config"] = list(configs)
    made = codec.convert(ResourceClaim, body)
    return plan(made, Uid(uid), driver=DRIVER, pool=PoolName(NODE), devices={gpu.name: gpu})


def options(record: PreparedClaim) -> dict[str, tuple[str, ...]]:
    """Return the options of the mounts of a claim's document."""
    assert record.spec is not None
    edits = [record.spec.container_edits, *(d.container_edits for d in record.spec.devices)]
    return {m.container_path: m.options for e in edits for m in e.mounts}


def test_pipes_are_read_only_and_nothing_there_can_be_run() -> None:
    made = options(shared(0))
    assert {"ro", "nosuid", "nodev", "noexec"} < set(made[MPS_PIPES])
    assert {"rw", "nosuid", "nodev", "noexec"} < set(made["/dev/shm"])


def test_documents_of_earlier_versions_become_read_only() -> None:
    """A container that is restarted must not be able to write among the pipes of a daemon that is new."""
    record = shared(0)
    (device,) = record.devices
    assert device.own is not None
    old = tuple(msgspec.structs.replace(m, options=("rw", "rbind")) for m in device.own.mounts)
    device = msgspec.structs.replace(device, own=msgspec.structs.replace(device.own, mounts=old))
    before = documented(DRIVER, msgspec.structs.replace(record, devices=(device,)), [ContainerEdits()])
    assert options(before)[MPS_PIPES] == ("rw", "rbind")
    after = options(renewed(DRIVER, before, {GPU.name: GPU}))
    assert "ro" in after[MPS_PIPES]
    assert after["/dev/shm"] == ("rw", "rbind")


def config(source: str = "FromClaim", kind: str = "ShareConfig", **fields: Any) -> dict[str, Any]:
    parameters = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": kind, **fields}
    return {"source": source, "opaque": {"driver": DRIVER, "parameters": parameters}}


NONE = config(enforcement="None")
OWN = config(sharedWith="OwnNamespace")
BY_CLASS = config("FromClass", sharedWith="OwnNamespace")
ADVICE = "ask for another device, or wait until that claim has ended"


def refusal(held: PreparedClaim, asked: PreparedClaim) -> str:
    """Return why one claim is refused beside another one; empty if it is not."""
    conflict = Holdings([held]).conflict(asked.uid, asked.namespace, asked.devices, asked.settings)
    return "" if conflict is None else str(conflict)


def test_shares_with_and_without_mps_name_each_other_and_the_way_out() -> None:
    mode = "under MPS a GPU is in mode EXCLUSIVE_PROCESS, in which nothing else runs on it"
    assert refusal(shared(0, NONE), shared(1)) == (
        f"device gpu-0 is held without MPS by another claim (c0): {mode}; give this claim a ShareConfig with "
        f"enforcement None, as that one has, or {ADVICE}"
    )
    assert refusal(shared(0), shared(1, NONE)) == (
        f"device gpu-0 is held under MPS by another claim (c0): {mode}; leave enforcement None and "
        f"timeSlicing out, or {ADVICE}"
    )
    assert refusal(shared(0), shared(1)) == ""
    assert refusal(shared(0, NONE), shared(1, NONE)) == ""


@pytest.mark.parametrize("how", [NONE, config()])
def test_claims_of_other_namespaces_are_not_named(how: dict[str, Any]) -> None:
    other = config() if how is NONE else NONE
    text = refusal(shared(0, how, namespace="secret"), shared(1, other))
    assert "by another claim (of another namespace): " in text
    assert "c0" not in text
    assert "secret" not in text


@pytest.mark.parametrize("demand", [OWN, BY_CLASS])
def test_a_gpu_for_one_namespace(demand: dict[str, Any]) -> None:
    """Whoever comes first, the one that demands it has only claims of its namespace beside it."""
    assert refusal(shared(0, demand), shared(1)) == ""
    assert refusal(shared(0), shared(1, demand)) == ""
    assert refusal(shared(0, demand), shared(1, namespace="other")) == (
        "device gpu-0 is held for its namespace alone (sharedWith OwnNamespace) by another claim (of another "
        f"namespace): {ADVICE}"
    )
    assert refusal(shared(0, namespace="other"), shared(1, demand)) == (
        "device gpu-0 is held with other namespaces by another claim (of another namespace): this claim or "
        f"its class demands sharedWith OwnNamespace; {ADVICE}"
    )
    assert refusal(shared(0, config(sharedWith="Any")), shared(1, namespace="other")) == ""


@pytest.mark.parametrize("enforcement", ["Auto", "MPS", "None"])
def test_a_claim_cannot_take_back_what_its_class_demands(enforcement: str) -> None:
    own = config(enforcement=enforcement, sharedWith="Any")
    held = shared(0, BY_CLASS, own)
    assert "for its namespace alone" in refusal(held, shared(1, own, namespace="other"))
    assert refusal(held, shared(1, own)) == ""


def test_the_demand_is_in_the_record_and_records_of_before_have_none() -> None:
    record = shared(0, OWN)
    assert codec.decode(PreparedClaim, codec.encode(record)).settings == record.settings
    (setting,) = record.settings
    assert setting.own_namespace
    text = codec.encode(shared(0))
    assert b"ownNamespace" not in text
    assert not codec.decode(PreparedClaim, text).settings[0].own_namespace


def test_a_time_sliced_share_may_demand_it_too() -> None:
    sliced = config(enforcement="None", timeSlicing={"interval": "Short"}, sharedWith="OwnNamespace")
    gpu = dataclasses.replace(GPU, controllable=True)
    held, asked = shared(0, sliced, gpu=gpu), shared(1, NONE, gpu=gpu, namespace="other")
    assert "for its namespace alone" in refusal(held, asked)
