"""Questions about claims and the claims of pods."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dra_driver import resourceclaim
from dra_driver.api import codec
from dra_driver.api.core import Pod, PodResourceClaimStatus
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import ResourceClaim
from dra_driver.api.scheduling import PodGroup

CLAIM = codec.convert(
    ResourceClaim,
    {
        "metadata": {
            "name": "c",
            "namespace": "ns",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-1", "controller": True}
            ],
        },
        "spec": {
            "devices": {
                "requests": [
                    {"name": "gpu", "firstAvailable": [{"name": n, "deviceClassName": "x"} for n in "ab"]},
                    {"name": "nic", "exactly": {"deviceClassName": "x"}},
                ]
            }
        },
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": "gpu/b", "driver": "d", "pool": "p", "device": "gpu-1"},
                        {"request": "nic", "driver": "other", "pool": "q", "device": "nic-1"},
                    ],
                    "config": [
                        {
                            "source": "FromClaim",
                            "requests": ["gpu"],
                            "opaque": {"driver": "d", "parameters": {"n": 3}},
                        },
                        {
                            "source": "FromClass",
                            "requests": ["gpu/b"],
                            "opaque": {"driver": "d", "parameters": {"n": 1}},
                        },
                        {"source": "FromClass", "opaque": {"driver": "d", "parameters": {"n": 2}}},
                        {
                            "source": "FromClaim",
                            "requests": ["gpu"],
                            "opaque": {"driver": "d", "parameters": {"n": 3}},
                        },
                        {
                            "source": "FromClaim",
                            "requests": ["gpu/a"],
                            "opaque": {"driver": "d", "parameters": {"n": 4}},
                        },
                        {"source": "FromClaim", "opaque": {"driver": "other", "parameters": {"n": 5}}},
                    ],
                }
            },
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-1"}],
        },
    },
)
EMPTY = ResourceClaim()


def pod(**status: object) -> Pod:
    return codec.convert(
        Pod,
        {
            "metadata": {"name": "p", "namespace": "ns", "uid": "pod-1"},
            "spec": {
                "resourceClaims": [
                    {"name": "named", "resourceClaimName": "c"},
                    {"name": "made", "resourceClaimTemplateName": "t"},
                ]
            },
            "status": status,
        },
    )


def test_requests_are_named_with_their_alternatives() -> None:
    assert [str(n) for n in resourceclaim.request_names(CLAIM)] == ["gpu/a", "gpu/b", "nic"]


def test_the_pools_of_a_claim_are_those_of_its_results() -> None:
    assert resourceclaim.allocated_pools(CLAIM) == {("d", "p"), ("other", "q")}
    assert resourceclaim.allocated_pools(EMPTY) == frozenset()


def test_reservations_are_for_pods_by_uid() -> None:
    assert resourceclaim.is_reserved_for(CLAIM, "pod-1")
    assert not resourceclaim.is_reserved_for(CLAIM, "pod-2")
    assert resourceclaim.is_allocated(CLAIM)
    assert not resourceclaim.is_allocated(EMPTY)
    assert resourceclaim.pod_reference(pod()).uid == "pod-1"


def test_the_claims_of_a_pod_are_named_or_generated() -> None:
    waiting = list(resourceclaim.pod_claims(pod()))
    assert [(c.entry, c.key, c.generated) for c in waiting] == [
        ("named", ObjectKey("ns", "c"), False),
        ("made", None, True),
    ]
    ready = pod(resourceClaimStatuses=[{"name": "made", "resourceClaimName": "p-made-x"}])
    assert [c.key for c in resourceclaim.pod_claims(ready)] == [
        ObjectKey("ns", "c"),
        ObjectKey("ns", "p-made-x"),
    ]
    none_needed = pod(resourceClaimStatuses=[{"name": "made"}])
    assert [c.entry for c in resourceclaim.pod_claims(none_needed)] == ["named"]


def test_a_pod_uses_claims_or_none() -> None:
    assert resourceclaim.uses_claims(pod())
    assert not resourceclaim.uses_claims(Pod())


def test_a_generated_claim_belongs_to_one_pod_only() -> None:
    assert resourceclaim.is_for_pod(pod(), CLAIM)
    later = codec.convert(Pod, {"metadata": {"name": "p", "namespace": "ns", "uid": "pod-2"}})
    assert not resourceclaim.is_for_pod(later, CLAIM)
    assert resourceclaim.is_for_pod(later, EMPTY)


def test_a_claim_that_is_generated_for_a_pod_group_belongs_to_its_pods() -> None:
    owner = {"kind": "PodGroup", "name": "job", "uid": "g", "controller": True}
    metadata = {"name": "x", "namespace": "ns", "ownerReferences": [owner]}
    for group, api_version, expected in (
        ("job", "scheduling.k8s.io/v1alpha2", True),
        ("other", "scheduling.k8s.io/v1alpha2", False),
        ("other", "example.com/v1", True),  # of some other kind: not generated
    ):
        owner["apiVersion"] = api_version
        claim = codec.convert(ResourceClaim, {"metadata": metadata})
        spec = {"schedulingGroup": {"podGroupName": group}}
        member = codec.convert(Pod, {"metadata": {"name": "p", "namespace": "ns"}, "spec": spec})
        assert resourceclaim.is_for_pod(member, claim) is expected


def test_a_claim_is_reserved_for_the_pod_group_where_the_entries_are_equal() -> None:
    entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    pod_body = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "p-1"},
        "spec": {"resourceClaims": [entry], "schedulingGroup": {"podGroupName": "job"}},
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "x"}]},
    }
    member = codec.convert(Pod, pod_body)
    claim = codec.convert(ResourceClaim, {"metadata": {"name": "x", "namespace": "ns"}})
    meta = {"name": "job", "namespace": "ns", "uid": "g-1"}
    for other, resource in (
        (entry, "podgroups"),
        ({**entry, "name": "nic"}, "pods"),
        ({**entry, "resourceClaimTemplateName": "u"}, "pods"),
        ({"name": "gpu", "resourceClaimName": "x"}, "pods"),
    ):
        group = codec.convert(PodGroup, {"metadata": meta, "spec": {"resourceClaims": [other]}})
        assert resourceclaim.consumer_of(member, group, claim).resource == resource
    assert resourceclaim.consumer_of(member, None, claim).uid == "p-1"


def test_what_a_claim_is_reserved_for_is_named() -> None:
    references = [
        {"resource": "pods", "name": "p", "uid": "1"},
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "job", "uid": "2"},
        {"apiGroup": "example.com", "resource": "pods", "name": "no", "uid": "3"},
    ]
    claim = codec.convert(ResourceClaim, {"status": {"reservedFor": references}})
    assert list(resourceclaim.consumer_names(claim)) == ["p", "podgroup:job"]
    assert not resourceclaim.is_reserved_for(claim, "2")


def test_a_claim_that_several_entries_name_is_found() -> None:
    named = [{"name": f"c{i}", "resourceClaimName": c} for i, c in enumerate(("a", "b", "a", "a"))]
    pod = codec.convert(
        Pod, {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"resourceClaims": named}}
    )
    text = resourceclaim.named_twice(pod)
    assert "names ResourceClaim a 3 times (first as c0 and c2)" in text
    assert "name it once" in text
    once = codec.convert(
        Pod, {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"resourceClaims": named[:2]}}
    )
    assert resourceclaim.named_twice(once) == ""


def test_claims_that_are_not_generated_yet_are_not_the_same_claim() -> None:
    entries = [{"name": n, "resourceClaimTemplateName": "t"} for n in "ab"]
    body = {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"resourceClaims": entries}}
    assert resourceclaim.named_twice(codec.convert(Pod, body)) == ""
    body["status"] = {"resourceClaimStatuses": [{"name": n, "resourceClaimName": None} for n in "ab"]}
    assert resourceclaim.named_twice(codec.convert(Pod, body)) == ""


def test_the_claims_of_a_pod_of_thousands_are_found_in_one_walk() -> None:
    number = 2_000
    entries = [{"name": f"c{i}", "resourceClaimTemplateName": "t"} for i in range(number)]
    entries.append({"name": "own", "resourceClaimName": "own"})
    made = [{"name": f"c{i}", "resourceClaimName": f"made-{i}" if i else None} for i in range(number - 1)]
    extended = {"resourceClaimName": "extended"}
    body = {
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"resourceClaims": entries},
        "status": {"resourceClaimStatuses": made, "extendedResourceClaimStatus": extended},
    }
    pod = codec.convert(Pod, body)
    statuses = Walked(pod.status.resource_claim_statuses)
    msgspec.structs.force_setattr(pod.status, "resource_claim_statuses", statuses)
    keys = list(resourceclaim.claims_named(pod))
    assert keys == [used.key for used in resourceclaim.pod_claims(pod) if used.key is not None]
    assert [key.name for key in keys[:1] + keys[-3:]] == ["made-1", "made-1998", "own", "extended"]
    assert statuses.walks == 2  # one for each of both


class Walked(tuple[PodResourceClaimStatus, ...]):
    """Statuses that count how often they are gone through."""

    walks = 0

    def __iter__(self) -> Iterator[PodResourceClaimStatus]:
        self.walks += 1
        return super().__iter__()

    def __reversed__(self) -> Iterator[PodResourceClaimStatus]:
        self.walks += 1
        return reversed(tuple(super().__iter__()))
