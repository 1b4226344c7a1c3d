"""What shares of a GPU get by MPS, and which of them go together."""

from __future__ import annotations

from typing import Any

import msgspec
from node_agent import DRIVER, NODE, claim

from dra_driver.api import codec
from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.resource import ResourceClaim
from dra_driver.cdi import ContainerEdits
from dra_driver.preparation import NodeDevice, PreparedClaim, plan, renewed
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
