"""The pods of claims that several pods may share, followed without asking the API server again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fake_client import FakeClient
from node_agent import DRIVER, add_claim, claim

from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.preparation import ClaimState, PodReference, PreparedClaim, PreparedDevice
from kubelet_plugin.telemetry.reservations import Reservations
from kubelet_plugin.usage.pod_resources import KubeletList

NAMES = [f"k8s.{DRIVER}/claim=u-{i}-gpu" for i in range(8)]


def records() -> tuple[PreparedClaim, ...]:
    return tuple(
        PreparedClaim(
            uid=Uid(f"u-{i}"),
            namespace="ns",
            name=f"shared-{i}",
            state=ClaimState.COMPLETED,
            devices=(
                PreparedDevice(
                    requests=("gpu",), pool=PoolName("n"), device=f"gpu-{i}", cdi_device_ids=(NAMES[i],)
                ),
            ),
            pods=(PodReference(name="trainer", uid=Uid("p-1")),),
        )
        for i in range(8)
    )


def gets(kube: FakeClient) -> int:
    return sum(verb == "get" for verb, *_ in kube.calls)


def pods(reservations: Reservations) -> Sequence[tuple[str, str]]:
    return [(p.name, p.uid) for p in reservations.claims()[0].pods]


def test_the_kubelet_tells_the_pods_and_the_api_server_is_asked_once_for_each_that_joins() -> None:
    async def main() -> None:
        kube, held = FakeClient(), records()
        body = claim(held[0].name, "gpu-0", uid=held[0].uid)
        body["status"]["reservedFor"] = [
            {"resource": "pods", "name": name, "uid": uid}
            for name, uid in (("trainer", "p-1"), ("evaluator", "p-2"))
        ]
        add_claim(kube, body)
        joined: list[tuple[str, Sequence[str]]] = []
        listed = KubeletList(
            {NAMES[0]: frozenset({ObjectKey("ns", "trainer"), ObjectKey("ns", "evaluator")})}
        )

        async def kubelet() -> KubeletList | None:
            return listed

        reservations = Reservations(
            kube, lambda: held, lambda: True, kubelet, lambda uid, p: joined.append((uid, [q.uid for q in p]))
        )
        for _ in range(5):
            await reservations.follow()
        assert pods(reservations) == [("evaluator", "p-2"), ("trainer", "p-1")]
        assert joined == [("u-0", ["p-1", "p-2"])]
        listed = KubeletList({NAMES[0]: frozenset({ObjectKey("ns", "evaluator")})})
        await reservations.follow()
        assert pods(reservations) == [("evaluator", "p-2")]
        # A pod of an ordinary init container is not listed: what is known stays.
        listed = KubeletList()
        await reservations.follow()
        assert pods(reservations) == [("evaluator", "p-2")]
        assert gets(kube) == 1
        # The API server is away: it is asked again until it answers.
        kube.down = True
        listed = KubeletList({NAMES[0]: frozenset({ObjectKey("ns", n) for n in ("evaluator", "late")})})
        for _ in range(3):
            await reservations.follow()
        assert pods(reservations) == [("evaluator", "p-2"), ("late", "")]
        asked = gets(kube)
        kube.down = False
        body["status"]["reservedFor"].append({"resource": "pods", "name": "late", "uid": "p-3"})
        kube.put(RESOURCE_CLAIMS, body)
        for _ in range(3):
            await reservations.follow()
        assert pods(reservations) == [("evaluator", "p-2"), ("late", "p-3")]
        assert joined[-1] == ("u-0", ["p-1", "p-2", "p-3"])
        assert gets(kube) == asked + 1

    asyncio.run(main())


def test_pods_of_a_claim_that_is_reserved_for_their_group_are_not_asked_for_again_and_again() -> None:
    async def main() -> None:
        kube, held = FakeClient(), records()
        add_claim(kube, claim(held[0].name, "gpu-0", uid=held[0].uid))

        async def kubelet() -> KubeletList | None:
            return KubeletList({NAMES[0]: frozenset({ObjectKey("ns", "member")})})

        reservations = Reservations(kube, lambda: held, lambda: True, kubelet)
        for _ in range(5):
            await reservations.follow()
        assert gets(kube) == 1

    asyncio.run(main())


def test_without_the_kubelets_list_claims_are_read_seldom() -> None:
    async def main() -> None:
        kube, held = FakeClient(), records()
        for record in held:
            add_claim(kube, claim(record.name, "gpu-0", uid=record.uid))

        async def kubelet() -> KubeletList | None:
            return None

        reservations = Reservations(kube, lambda: held, lambda: True, kubelet)
        for _ in range(5):
            await reservations.follow()
        assert gets(kube) == len(held)

    asyncio.run(main())


def test_claims_of_one_pod_are_not_followed() -> None:
    async def main() -> None:
        asked = []

        async def kubelet() -> KubeletList | None:
            asked.append(1)
            return None

        kube = FakeClient()
        reservations = Reservations(kube, tuple, lambda: True, kubelet)
        await reservations.follow()
        assert (asked, gets(kube)) == ([], 0)

    asyncio.run(main())
