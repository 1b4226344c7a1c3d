"""Pods with affinity, anti-affinity and topology spread: where they are served, and what they wait for."""

from __future__ import annotations

from typing import Any

import pytest
from builders import container
from controller_harness import NS, Harness, claim, cluster_of, pod, run
from fake_client import FakeClient

from dra_driver.api.core import NODES, PODS
from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SETTLED = 1.5


def term(app: str, key: str = HOST) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}


def apart(app: str, key: str = HOST) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term(app, key)]}}}


def near(app: str, key: str = HOST) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {REQUIRED: [term(app, key)]}}}


def spread(app: str) -> dict[str, Any]:
    constraint = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **term(app, ZONE)}
    return {"topologySpreadConstraints": [constraint]}


def nodes(**zones: str) -> FakeClient:
    """Nodes with two devices each, with their zones."""
    cluster = cluster_of(**dict.fromkeys(zones, (40, 40)))
    for name, zone in zones.items():
        labels = {HOST: name, **({ZONE: zone} if zone else {})}
        cluster.edit(NODES, name, {"metadata": {"labels": labels}})
    return cluster


def running(cluster: FakeClient, name: str, on: str, app: str, **spec: Any) -> None:
    cluster.put(
        PODS,
        {
            "metadata": {"name": name, "namespace": NS, "uid": f"uid-{name}", "labels": {"app": app}},
            "spec": {"nodeName": on, "containers": [container()], **spec},
            "status": {"phase": "Running"},
        },
    )


def wanting(cluster: FakeClient, name: str, app: str, **spec: Any) -> None:
    claim(cluster, name)
    labels = {"app": app, **spec.pop("labels", {})}
    pod(cluster, name, name, metadata={"labels": labels}, **spec)


def where(h: Harness, *names: str) -> list[str]:
    return [on for name in names for on, _ in h.devices(name)]


def test_pods_that_keep_one_another_away_are_served_on_different_nodes_at_once() -> None:
    cluster = nodes(n1="", n2="")
    for name in ("a", "b", "c"):
        wanting(cluster, name, "web", **apart("web"))

    async def scenario(h: Harness) -> None:
        # Although nobody has bound the first, and its node has another free device.
        assert sorted(where(h, "a", "b", "c")) == ["n1", "n2"]
        assert (
            "0/2 nodes can take the pod: 2 node(s) didn't match pod anti-affinity rules"
            in h.events("FailedAllocation")[0]
        )

    run(cluster, scenario)


def test_a_node_is_used_as_soon_as_the_pod_that_kept_others_away_is_gone() -> None:
    cluster = nodes(n1="")
    running(cluster, "old", "n1", "web")
    wanting(cluster, "new", "web", **apart("web"))

    async def scenario(h: Harness) -> None:
        assert where(h, "new") == []
        # It counts until it is gone.
        h.cluster.edit(PODS, "old", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, NS)
        await h.quiet(SETTLED)
        assert where(h, "new") == []
        h.cluster.remove(PODS, "old", NS)
        await h.quiet()
        assert where(h, "new") == ["n1"]

    run(cluster, scenario)


def test_a_pod_that_is_there_keeps_others_away_that_have_no_terms_themselves() -> None:
    cluster = nodes(n1="")
    running(cluster, "alone", "n1", "db", **apart("web"))
    wanting(cluster, "new", "web")
    wanting(cluster, "other", "cache")

    async def scenario(h: Harness) -> None:
        assert (where(h, "new"), where(h, "other")) == ([], ["n1"])
        assert "1 node(s) didn't satisfy existing pods anti-affinity rules" in h.events("FailedAllocation")[0]
        h.cluster.edit(PODS, "alone", {"status": {"phase": "Succeeded"}}, NS)
        await h.quiet()
        assert where(h, "new") == ["n1"]

    run(cluster, scenario)


def test_equal_requests_with_different_labels_do_not_wait_for_one_another() -> None:
    """Only the first is kept away, by a pod that came after both had begun to wait."""
    cluster = nodes(n1="")
    for name in ("a", "b"):
        wanting(cluster, name, "cache")
    wanting(cluster, "c", "db")
    wanting(cluster, "d", "web")

    async def scenario(h: Harness) -> None:
        assert (where(h, "a", "b"), where(h, "c", "d")) == (["n1", "n1"], [])
        running(h.cluster, "alone", "n1", "db", **apart("db"))
        for name in ("a", "b"):
            h.bind(name, "n1")
        await h.quiet(SETTLED)
        h.cluster.edit(PODS, "a", {"status": {"phase": "Succeeded"}}, NS)
        h.deallocate("a")
        await h.quiet(SETTLED)
        assert (where(h, "c"), where(h, "d")) == ([], ["n1"])

    run(cluster, scenario)


def test_a_pod_goes_where_the_one_is_that_it_wants_to_be_near_once_that_is_bound() -> None:
    cluster = nodes(n1="a", n2="b")
    wanting(cluster, "follower", "web", **near("db", ZONE))

    async def scenario(h: Harness) -> None:
        assert where(h, "follower") == []
        assert "2 node(s) didn't match pod affinity rules" in h.events("FailedAllocation")[0]
        wanting(h.cluster, "leader", "db", nodeSelector={HOST: "n2"})
        await h.quiet(SETTLED)
        assert (where(h, "leader"), where(h, "follower")) == (["n2"], [])
        h.bind("leader", "n2")
        await h.quiet()
        assert where(h, "follower") == ["n2"]

    run(cluster, scenario)


def test_the_first_of_some_that_want_to_be_near_one_another_goes_first() -> None:
    cluster = nodes(n1="a", n2="b", n3="")
    for name in ("a", "b"):
        wanting(cluster, name, "web", **near("web", ZONE))

    async def scenario(h: Harness) -> None:
        (first,) = [n for n in ("a", "b") if where(h, n)]
        (on,) = where(h, first)
        assert on in ("n1", "n2")
        h.bind(first, on)
        await h.quiet()
        assert where(h, "a", "b") == [on, on]

    run(cluster, scenario)


def test_topology_spread_is_followed_from_binding_to_binding() -> None:
    cluster = nodes(n1="a", n2="a", n3="b")
    for name in ("a", "b", "c", "d"):
        wanting(cluster, name, "web", **spread("web"))

    async def scenario(h: Harness) -> None:
        zones = {"n1": "a", "n2": "a", "n3": "b"}
        for served in (2, 4):
            found = {name: where(h, name) for name in ("a", "b", "c", "d")}
            there = [zones[on[0]] for on in found.values() if on]
            assert sorted(there) == ["a", "b"] * 1 if served == 2 else sorted(["a", "b"] * 2)
            for name, on in found.items():
                if on:
                    h.bind(name, on[0])
            await h.quiet(SETTLED)

    run(cluster, scenario)


@pytest.mark.parametrize("size", [2, 3])
def test_a_group_is_placed_so_that_its_pods_keep_apart(size: int) -> None:
    cluster = nodes(n1="", n2="")
    labels = {GROUP_LABEL: "g", GROUP_SIZE_LABEL: str(size)}
    names = [f"m{i}" for i in range(size)]
    for name in names:
        wanting(cluster, name, "web", labels=labels, **apart("web"))

    async def scenario(h: Harness) -> None:
        assert sorted(where(h, *names)) == (["n1", "n2"] if size == 2 else [])

    run(cluster, scenario)


def test_a_pod_of_lower_priority_is_evicted_where_it_keeps_another_away() -> None:
    cluster = nodes(n1="", n2="")
    running(cluster, "low", "n1", "web", priority=-10)
    running(cluster, "equal", "n2", "web")
    wanting(cluster, "new", "web", **apart("web"))

    async def scenario(h: Harness) -> None:
        assert where(h, "new") == ["n1"]

    run(cluster, scenario)


@pytest.mark.parametrize(
    "terms",
    [[term("web")] * 33, [term("web"), {**term("db"), "namespaces": [f"n{i}" for i in range(600)]}]],
    ids=["terms", "namespaces"],
)
def test_terms_without_number_are_left_to_kube_scheduler(terms: list[dict[str, Any]]) -> None:
    cluster = nodes(n1="")
    running(cluster, "old", "n1", "web")
    wanting(cluster, "new", "web", affinity={"podAntiAffinity": {REQUIRED: terms}})

    async def scenario(h: Harness) -> None:
        assert where(h, "new") == ["n1"]

    run(cluster, scenario)


def test_a_node_that_gets_another_label_is_looked_at_again() -> None:
    cluster = nodes(n1="a", n2="a")
    running(cluster, "old", "n1", "web")
    wanting(cluster, "new", "web", **apart("web", ZONE))

    async def scenario(h: Harness) -> None:
        assert where(h, "new") == []
        h.cluster.edit(NODES, "n2", {"metadata": {"labels": {ZONE: "b"}}})
        await h.quiet()
        assert where(h, "new") == ["n2"]

    run(cluster, scenario)
