"""A Deployment whose pods are a group of fixed size: rolled as its controller does it, with one pod more."""

from __future__ import annotations

import pytest
from controller_harness import NS, Harness, bind_pods, claim, cluster_of, pod, run
from fake_client import FakeClient
from group_members import allocated, member

from dra_driver.api.core import PODS
from dra_driver.api.names import GROUP_DOMAIN_ANNOTATION, GROUP_SIZE_LABEL
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.scheduling import pod_groups
from dra_driver.structured.groups.terms import GroupTerms, group_terms

POD_GROUPS = pod_groups("v1alpha2")
SIZE = 3


def make(cluster: FakeClient, name: str, kind: str) -> None:
    """Make a pod of a group of three."""
    if kind == "PodGroup":
        claim(cluster, name)
        pod(cluster, name, name, schedulingGroup={"podGroupName": "job"})
    else:
        member(cluster, name, SIZE, on=kind)


def made(cluster: FakeClient, names: str, kind: str) -> FakeClient:
    if kind == "PodGroup":
        policy = {"schedulingPolicy": {"gang": {"minCount": SIZE}}}
        cluster.put(POD_GROUPS, {"metadata": {"name": "job", "namespace": NS}, "spec": policy})
    for name in names:
        make(cluster, name, kind)
    return cluster


def remove(cluster: FakeClient, name: str) -> None:
    cluster.remove(PODS, name, NS)
    cluster.remove(RESOURCE_CLAIMS, name, NS)


kinds = pytest.mark.parametrize("kind", ["pod", "claim", "PodGroup"])


@kinds
@pytest.mark.parametrize(("surge", "unavailable"), [(1, 0), (0, 1), (1, 1), (3, 0), (2, 2)])
def test_a_rolling_update_ends(kind: str, surge: int, unavailable: int) -> None:
    cluster = made(cluster_of(n1=(40,) * (SIZE + surge)), "abc", kind)
    old, new, to_come = list("abc"), list[str](), list("xyz")

    async def scenario(h: Harness) -> None:
        bind_pods(cluster)
        await h.quiet()
        for _ in range(8):
            # What the Deployment's controller does: as many old ones go, and new ones come, as it may.
            ready = [n for n in (*old, *new) if cluster.obj(PODS, n, NS).spec.node_name]
            for name in old[: max(0, len(ready) - (SIZE - unavailable))]:
                old.remove(name)
                remove(cluster, name)
            while to_come and len(old) + len(new) < SIZE + surge:
                new.append(to_come.pop(0))
                make(cluster, new[-1], kind)
            await h.quiet()
            bind_pods(cluster)
            await h.quiet()
        assert (old, new) == ([], list("xyz"))
        assert allocated(h, "xyz") == "xyz"
        assert not any(h.gates(n) for n in "xyz")

    run(cluster, scenario)


@kinds
def test_a_pod_more_waits_for_devices_and_takes_none_from_the_others(kind: str) -> None:
    cluster = made(cluster_of(n1=(40,) * SIZE), "abc", kind)

    async def scenario(h: Harness) -> None:
        bind_pods(cluster)
        make(cluster, "x", kind)
        await h.quiet()
        assert allocated(h, "abcx") == "abc"
        assert "job, 3 of 3 to 4 pods have devices, 1 more: " in h.events("FailedAllocation")[0]
        remove(cluster, "a")
        await h.quiet()
        assert allocated(h, "bcx") == "bcx"

    run(cluster, scenario)


def test_pods_beside_a_group_that_has_ended_are_no_part_of_it() -> None:
    """The same Job once more, while the pods of the first one are still there: not one by one."""
    cluster = made(cluster_of(n1=(40,) * SIZE), "abc", "pod")

    async def scenario(h: Harness) -> None:
        bind_pods(cluster)
        await h.quiet()
        for name in "abc":
            cluster.edit(PODS, name, {"status": {"phase": "Succeeded"}}, NS)
            h.deallocate(name)
        for name in "xyz":
            make(cluster, name, "pod")
        await h.quiet()
        assert allocated(h, "xyz") == ""
        assert "group job has 6 pods, its dra-driver.dev/group-size is 3" in h.events("FailedAllocation")[0]

    run(cluster, scenario)


@pytest.mark.parametrize(
    ("domain", "members", "size"),
    [("", 9, 9), ("rack*4", 9, 12), ("rack*4", 12, 12), ("rack*1000", 1001, 1000)],
)
def test_more_members_than_are_named_make_whole_parts(domain: str, members: int, size: int) -> None:
    named = domain.partition("*")[2] or "8"
    terms = group_terms([({GROUP_SIZE_LABEL: named}, {GROUP_DOMAIN_ANNOTATION: domain})])
    assert isinstance(terms, GroupTerms)
    more = terms.with_room_for(members)
    assert (more.size, more.least, more.levels) == (size, terms.least, terms.levels)
