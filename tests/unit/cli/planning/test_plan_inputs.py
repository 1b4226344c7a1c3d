"""What a plan reads of a live cluster, and what it says about rights that are missing."""

from __future__ import annotations

import asyncio

import builders
import pytest
from fake_client import FakeClient

from dra_driver.api.core import NODES, PODS
from dra_driver.cli.planning.inputs import Objects, from_cluster
from dra_driver.errors import Forbidden


def read(denied: frozenset[str], notes: list[str]) -> Objects:
    """Read a cluster whose API server refuses to list some kinds."""
    client = FakeClient()
    client.put(NODES, builders.node("n1"))
    client.put(PODS, builders.pod("p"))

    def refuse(verb: str, kind: str, *_: str) -> None:
        if verb == "list" and kind in denied:
            raise Forbidden(f'User "u" cannot list resource of {kind}', code=403, reason="Forbidden")

    client.before = refuse
    return asyncio.run(from_cluster(client, notes))


def test_everything_is_read() -> None:
    notes: list[str] = []
    objects = read(frozenset(), notes)
    assert (len(objects.nodes), len(objects.pods), objects.pods_known, notes) == (1, 1, True, [])


def test_all_rights_that_are_missing_are_named() -> None:
    with pytest.raises(Forbidden) as caught:
        read(frozenset(("Node", "ResourceClaim", "Pod")), [])
    nodes, claims = str(caught.value).split("; ")
    assert nodes.startswith("the right to list nodes in the whole cluster is needed: User")
    assert claims.startswith("the right to list resourceclaims.resource.k8s.io in the whole cluster")


def test_without_some_rights_the_answer_says_what_it_lacks() -> None:
    notes: list[str] = []
    objects = read(frozenset(("Pod", "ResourceClaimTemplate")), notes)
    assert not objects.pods_known
    assert notes == [
        "pods may not be listed: priorities and what pods take of nodes are not looked at",
        "resourceclaimtemplates.resource.k8s.io may not be listed: give those that pods name with -f",
    ]
