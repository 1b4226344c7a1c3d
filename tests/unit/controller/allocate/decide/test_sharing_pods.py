"""Pods that share claims, as kube-scheduler sees them: what is found is what all of them say."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import NAMESPACE as NS
from hypothesis import given
from hypothesis import strategies as st
from work_counter import calls

from controller.allocate.decide.order import rank_of
from controller.allocate.decide.pods.sharing import SharingPods
from controller.allocate.decide.state.objects import Objects, claims_of, is_finished
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.resourceclaim import is_gated


def made(
    name: str,
    *claims: str,
    uid: str = "1",
    priority: int = 0,
    phase: str = "Pending",
    gated: bool = False,
    bound: str = "",
    nominated: str = "",
) -> Pod:
    more: dict[str, Any] = {"nodeName": bound} if bound else {}
    body = builders.pod(name, *claims, uid=uid, gated=gated, priority=priority, **more)
    return codec.convert(Pod, {**body, "status": {"phase": phase, "nominatedNodeName": nominated}})


@st.composite
def pods_of_all_kinds(draw: st.DrawFn) -> Pod:
    return made(
        draw(st.sampled_from("pqrs")),
        *draw(st.lists(st.sampled_from("abc"), unique=True)),
        uid=draw(st.sampled_from("12")),
        priority=draw(st.integers(0, 2)),
        phase=draw(st.sampled_from(("Pending", "Running", "Failed"))),
        gated=draw(st.booleans()),
        bound=draw(st.sampled_from(("", "n1"))),
        nominated=draw(st.sampled_from(("", "n1", "n2"))),
    )


def waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.spec.scheduling_gates or is_finished(pod))


@given(st.lists(st.tuples(pods_of_all_kinds(), st.booleans()), max_size=12))
def test_what_is_found_is_what_all_pods_say(changes: list[tuple[Pod, bool]]) -> None:
    pods: Objects[Pod] = Objects()
    sharing = SharingPods(pods)
    for pod, gone in changes:
        if gone:
            pods.remove(pod.key)
        else:
            pods.put(pod)
    for name in "abc":
        claim = ObjectKey(NS, name)
        users = [p for p in pods if claim in claims_of(p)]
        for pod in pods:
            expected = [p for p in users if waits(p) and rank_of(p) < rank_of(pod)]
            assert list(sharing.looked_at_before(claim, pod)) == sorted(expected, key=rank_of)
        ungated = {p.key for p in users if not is_gated(p) and not is_finished(p)}
        assert {p.key for p in sharing.ungated(claim)} == ungated
        nodes = {p.status.nominated_node_name for p in users if waits(p)} - {""}
        found = sharing.nominated([claim])
        assert found.keys() == nodes
        assert all(pods.get(ObjectKey(NS, p)) in users for p in found.values())


@pytest.mark.parametrize("number", [10, 2_000])
def test_a_look_at_pods_that_share_a_claim_costs_the_same_however_many_there_are(number: int) -> None:
    pods: Objects[Pod] = Objects()
    sharing = SharingPods(pods)
    claim = ObjectKey(NS, "a")
    for i in range(number):
        pods.put(made(f"p{i:05}", "a", nominated="n1"))
    last = made("q", "a")
    pods.put(last)
    assert calls(lambda: next(sharing.looked_at_before(claim, last))) < 30
    assert calls(lambda: sharing.nominated([claim])) < 30
    assert calls(lambda: next(sharing.ungated(claim))) < 30
    assert sharing.nominated([claim]) == {"n1": "p00000"}
    assert calls(lambda: pods.put(made("q", "a", priority=1))) < 2_000
