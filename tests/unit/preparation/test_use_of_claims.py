"""Whether the devices of a claim that is gone may still be used."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra_driver import cdi
from dra_driver.api.meta import PoolName, Uid
from dra_driver.preparation import (
    ClaimState,
    NodeProcess,
    PodReference,
    PreparedClaim,
    PreparedDevice,
    ProcessView,
    Use,
    exclusive_nodes,
    judge,
    judge_unprepare,
)

CLAIM, POD, OTHER = Uid("c-1"), Uid("p-1"), Uid("p-2")
GPU, CONTROL = "/dev/nvidia0", "/dev/nvidiactl"
METADATA = cdi.ContainerEdits(
    mounts=(cdi.Mount(host_path=f"/m/{CLAIM}/gpu/metadata.json", container_path="/x"),)
)


def record(*, metadata: bool = False, **more: Any) -> PreparedClaim:
    nodes = tuple(cdi.DeviceNode(p) for p in (CONTROL, GPU))
    return PreparedClaim(
        uid=CLAIM,
        namespace="ns",
        name="one",
        state=ClaimState.COMPLETED,
        devices=(
            PreparedDevice(
                requests=("gpu",),
                pool=PoolName("node-a"),
                device="gpu-0",
                cdi_device_ids=("k8s.d/claim=c-1-gpu",),
                own_nodes=(GPU,),
                own=METADATA if metadata else None,
            ),
        ),
        spec=cdi.Spec(
            cdi_version="0.5.0",
            kind="k8s.d/claim",
            devices=(cdi.Device(name="c-1-gpu", container_edits=cdi.ContainerEdits(device_nodes=nodes)),),
        ),
        **more,
    )


ONE_POD: dict[str, Any] = {"pods": (PodReference(name="p", uid=POD),)}
FROM_TEMPLATE = {**ONE_POD, "pod_claim": "gpu"}
NOTHING = ProcessView()
BLIND = ProcessView(complete=False)


def seen(pod: Uid, node: str = GPU, *claims: Uid) -> ProcessView:
    process = NodeProcess(20, pod, frozenset(claims))
    return ProcessView({pod: (process,)}, {node: (process,)})


def grouped(pod: Uid) -> ProcessView:
    """Processes of a pod by its cgroup alone."""
    return ProcessView(cgroups={pod: f"/kubepods/pod{pod}"}, complete=False)


def test_only_nodes_of_single_devices_count() -> None:
    assert exclusive_nodes(record()) == {GPU}


@pytest.mark.parametrize(
    ("claim", "listed", "view", "use"),
    [
        # The kubelet has the last word where it lists the claim.
        (record(), True, NOTHING, Use.IN_USE),
        # That it does not list the claim proves nothing where no process can be seen.
        (record(), False, None, Use.UNKNOWN),
        (record(**ONE_POD), False, None, Use.UNKNOWN),
        (record(**FROM_TEMPLATE), False, None, Use.UNKNOWN),
        (record(), False, NOTHING, Use.FREE),
        (record(), False, BLIND, Use.UNKNOWN),
        (record(**ONE_POD), False, BLIND, Use.FREE),
        (record(**FROM_TEMPLATE), False, BLIND, Use.FREE),
        (record(), None, None, Use.UNKNOWN),
        (record(), None, NOTHING, Use.FREE),
        (record(), None, BLIND, Use.UNKNOWN),
        (record(**ONE_POD), None, BLIND, Use.UNKNOWN),
        (record(**FROM_TEMPLATE), None, BLIND, Use.FREE),
        # A pod that was deleted by force, and whose processes do not end.
        (record(**ONE_POD), False, seen(POD, "/dev/null"), Use.IN_USE),
        (record(**FROM_TEMPLATE), False, seen(POD, "/dev/null"), Use.IN_USE),
        (record(**ONE_POD), False, grouped(POD), Use.IN_USE),
        (record(**FROM_TEMPLATE), None, grouped(POD), Use.IN_USE),
        (record(**FROM_TEMPLATE), None, grouped(OTHER), Use.FREE),
        # A pod that joined later, or monitoring: what tells them apart is the file of the claim.
        (record(**ONE_POD), False, seen(OTHER), Use.IN_USE),
        (record(**FROM_TEMPLATE), False, seen(OTHER), Use.FREE),
        (record(metadata=True, **ONE_POD), False, seen(OTHER), Use.FREE),
        (record(metadata=True, **ONE_POD), False, seen(OTHER, GPU, CLAIM), Use.IN_USE),
        (record(**ONE_POD), False, seen(OTHER, CONTROL), Use.FREE),
    ],
)
def test_what_is_seen_and_what_follows(
    claim: PreparedClaim, listed: bool | None, view: ProcessView | None, use: Use
) -> None:
    verdict = judge(claim, listed=listed, view=view)
    assert verdict.use is use
    assert bool(verdict.why) == (use is not Use.FREE)


def test_pods_of_other_claims_may_have_the_same_device_open() -> None:
    beside = msgspec.structs.replace(record(), uid=Uid("c-2"), pods=(PodReference(name="q", uid=OTHER),))
    assert judge(record(**ONE_POD), listed=False, view=seen(OTHER), others=[beside]).use is Use.FREE


def test_a_claim_of_a_pod_group_is_not_one_of_a_single_pod() -> None:
    """It is made from a template, too, but reserved for the PodGroup: any of its pods may use it."""
    of_group = record(pod_claim="gpu")
    assert judge(of_group, listed=None, view=seen(POD)).use is Use.IN_USE
    assert judge(of_group, listed=None, view=BLIND).use is Use.UNKNOWN
    assert judge(of_group, listed=False, view=BLIND).use is Use.UNKNOWN
    assert judge(of_group, listed=False, view=NOTHING).use is Use.FREE


@pytest.mark.parametrize(
    ("claim", "listed", "view", "use"),
    [
        # Of a pod that was deleted by force the kubelet unprepares claims while its containers run.
        (record(**FROM_TEMPLATE), None, grouped(POD), Use.IN_USE),
        (record(**FROM_TEMPLATE), True, grouped(POD), Use.IN_USE),
        (record(**ONE_POD), None, seen(POD, "/dev/null"), Use.IN_USE),
        (record(metadata=True, **ONE_POD), False, seen(OTHER, GPU, CLAIM), Use.IN_USE),
        # Monitoring has all devices open, for ever.
        (record(**ONE_POD), False, seen(OTHER), Use.FREE),
        (record(**FROM_TEMPLATE), False, grouped(OTHER), Use.FREE),
        (record(**ONE_POD), False, BLIND, Use.FREE),
        # Its word counts while it lists the pod, and where nothing else is known.
        (record(**FROM_TEMPLATE), True, None, Use.FREE),
        (record(), True, BLIND, Use.FREE),
        (record(**FROM_TEMPLATE), None, None, Use.FREE),
        # It has listed the claim before, and does not any more.
        (record(**FROM_TEMPLATE), False, None, Use.UNKNOWN),
        (record(), False, BLIND, Use.UNKNOWN),
        (record(), False, NOTHING, Use.FREE),
    ],
)
def test_a_kubelet_that_unprepares_is_believed_where_the_node_does_not_contradict(
    claim: PreparedClaim, listed: bool | None, view: ProcessView | None, use: Use
) -> None:
    verdict = judge_unprepare(claim, listed=listed, view=view)
    assert verdict.use is use
    assert bool(verdict.why) == (use is not Use.FREE)
