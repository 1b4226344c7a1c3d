"""What a pod takes of a node, against what its containers have from one moment to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.quantity import Quantity
from dra_driver.nodefit import NeedsVectors, NodeRoom, PodNeeds, needs_of, problem
from dra_driver.trimming import trimmed_pod

Body = dict[str, Any]
Moment = Counter[str]

NAMES = ("cpu", "memory", "ephemeral-storage", "example.com/dongle", "hugepages-2Mi")
UNIT = {"cpu": Fraction(1, 1000)}
ADDRESSES = ("", "0.0.0.0", "10.0.0.1", "10.0.0.2", "::")

amounts = st.one_of(
    st.integers(0, 9).map(str), st.integers(0, 4000).map("{}m".format), st.integers(0, 3).map("{}Ki".format)
)
requests = st.dictionaries(st.sampled_from(NAMES), amounts, max_size=4)
ports = st.lists(
    st.builds(
        lambda number, protocol, address: {
            "containerPort": number,
            "hostPort": number,
            "protocol": protocol,
            **({"hostIP": address} if address else {}),
        },
        st.integers(1, 3),
        st.sampled_from(["TCP", "UDP"]),
        st.sampled_from(ADDRESSES),
    ),
    max_size=2,
)


@st.composite
def containers(draw: st.DrawFn, *, init: bool = False) -> list[Body]:
    found = []
    for i in range(draw(st.integers(0 if init else 1, 3))):
        body: Body = {"name": f"{'i' if init else 'c'}{i}", "resources": {"requests": draw(requests)}}
        body["ports"] = draw(ports)
        if init and draw(st.booleans()):
            body["restartPolicy"] = "Always"
        found.append(body)
    return found


@st.composite
def pods(draw: st.DrawFn) -> Body:
    spec: Body = {"containers": draw(containers()), "initContainers": draw(containers(init=True))}
    if draw(st.booleans()):
        spec["overhead"] = draw(requests)
    if draw(st.integers(0, 3)) == 0:
        spec["resources"] = {"requests": draw(requests)}
    spec["priority"] = draw(st.integers(-1, 2))
    spec["preemptionPolicy"] = draw(st.sampled_from(["PreemptLowerPriority", "Never"]))
    return spec


def pod_of(spec: Body, name: str = "p", status: Body | None = None) -> Pod:
    return codec.convert(Pod, {"metadata": {"name": name, "uid": name}, "spec": spec, "status": status or {}})


def exactly(text: str) -> Fraction:
    return Fraction(Quantity.parse(text).nano, 10**9)


def moments(spec: Body) -> Iterator[dict[str, Fraction]]:
    """Yield what runs at the same time, from the first init container to the end."""
    running: list[Body] = []

    def now(*more: Body) -> dict[str, Fraction]:
        total: dict[str, Fraction] = {}
        for container in (*running, *more):
            for name, text in container["resources"]["requests"].items():
                total[name] = total.get(name, Fraction(0)) + exactly(text)
        return total

    for container in spec["initContainers"]:
        yield now(container)
        if container.get("restartPolicy") == "Always":
            running.append(container)
    yield now(*spec["containers"])


def by_the_clock(spec: Body) -> dict[str, int]:
    """Return what must be there for the pod, in the units of ``PodNeeds``."""
    most: dict[str, Fraction] = {}
    for moment in moments(spec):
        for name, number in moment.items():
            most[name] = max(most.get(name, Fraction(0)), number)
    for name, text in spec.get("resources", {}).get("requests", {}).items():
        if name in ("cpu", "memory", "hugepages-2Mi"):
            most[name] = exactly(text)
    for name, text in spec.get("overhead", {}).items():
        most[name] = most.get(name, Fraction(0)) + exactly(text)
    units = {name: -(-number // UNIT.get(name, Fraction(1))) for name, number in most.items()}
    return {**{name: int(number) for name, number in units.items() if number}, "pods": 1}


@given(pods())
def test_a_pod_takes_the_most_that_its_containers_have_at_any_moment(spec: Body) -> None:
    assert dict(needs_of(pod_of(spec)).amounts) == by_the_clock(spec)


@given(pods())
def test_what_is_kept_of_a_pod_takes_as_much_of_a_node(spec: Body) -> None:
    given_ = pod_of(spec)
    assert needs_of(trimmed_pod(given_)) == needs_of(given_)


@given(pods(), requests, requests, st.booleans())
def test_a_resize_counts_with_the_most_of_what_is_said(
    spec: Body, actual: Body, allocated: Body, infeasible: bool
) -> None:
    """As kube-scheduler: spec, status.resources and allocatedResources, or the latter two."""
    spec = {**spec, "nodeName": "n"}
    status: Body = {
        "containerStatuses": [
            {"name": "c0", "resources": {"requests": actual}, "allocatedResources": allocated}
        ]
    }
    if infeasible:
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
    asked = spec["containers"][0]["resources"]["requests"]
    known = [actual, allocated] if infeasible else [asked, actual, allocated]
    most: Body = {}
    for of in known:
        for name, text in of.items():
            if name not in most or exactly(text) > exactly(most[name]):
                most[name] = text
    first = {**spec["containers"][0], "resources": {"requests": most}}
    as_if = {**spec, "containers": [first, *spec["containers"][1:]]}
    assert needs_of(pod_of(spec, status=status)) == needs_of(pod_of(as_if))
    again = codec.decode(Pod, codec.encode(pod_of(spec, status=status)))
    assert needs_of(again) == needs_of(pod_of(as_if))
    assert needs_of(trimmed_pod(again)) == needs_of(again)


def clash(a: Body, b: Body) -> bool:
    """Return whether two sockets cannot be bound on one host."""
    first, second = a.get("hostIP") or "0.0.0.0", b.get("hostIP") or "0.0.0.0"
    everywhere = "0.0.0.0" in (first, second)
    return (a["hostPort"], a["protocol"]) == (b["hostPort"], b["protocol"]) and (
        everywhere or first == second
    )


def sockets(spec: Body) -> list[Body]:
    lasting = [c for c in spec["initContainers"] if c.get("restartPolicy") == "Always"]
    return [port for c in (*lasting, *spec["containers"]) for port in c["ports"]]


def left_out(spec: Body, others: list[Body], allocatable: dict[str, str]) -> bool:
    """Return whether kube-scheduler would refuse the node, all sums worked out anew."""
    needs = by_the_clock(spec)
    for name, wanted in needs.items():
        taken = sum(by_the_clock(other).get(name, 0) for other in others)
        has = exactly(allocatable.get(name, "0")) / UNIT.get(name, Fraction(1))
        if wanted + taken > has:
            return True
    return any(clash(a, b) for other in others for a in sockets(spec) for b in sockets(other))


@given(
    pods(),
    st.lists(st.tuples(st.booleans(), pods()), max_size=5),
    st.fixed_dictionaries({name: st.integers(0, 20).map(str) for name in (*NAMES, "pods")}),
)
def test_a_pod_has_room_where_all_sums_say_so(
    spec: Body, others: list[tuple[bool, Body]], allocatable: dict[str, str]
) -> None:
    """Pods come and go; of lower priority they are no obstacle where evicting is looked at."""
    room = NodeRoom()
    for _, other in others:
        room.add(needs_of(pod_of(other)))
    for leaves, other in others:
        if leaves:
            room.remove(needs_of(pod_of(other)))
    there = [other for leaves, other in others if not leaves]
    has = {name: Quantity.parse(text) for name, text in allocatable.items()}
    needs = needs_of(pod_of(spec))
    assert bool(problem(needs, room, has)) is left_out(spec, there, allocatable)
    important = [other for other in there if other["priority"] >= spec["priority"]]
    assert bool(problem(needs, room, has, evicting=True)) is left_out(spec, important, allocatable)
    assert room.has_below(needs.priority) is (len(important) < len(there))
    assert bool(room) is bool(there)


@given(
    st.lists(pods(), min_size=1, max_size=4),
    st.fixed_dictionaries({name: st.integers(0, 20).map(str) for name in (*NAMES, "pods")}),
)
def test_vectors_that_fit_are_pods_that_have_room_together(
    specs: list[Body], allocatable: dict[str, str]
) -> None:
    needs = [needs_of(pod_of(spec)) for spec in specs]
    vectors = NeedsVectors(needs)
    has = {name: Quantity.parse(text) for name, text in allocatable.items()}
    free = vectors.free(NodeRoom(), has)
    together = all(
        sum(column) <= left
        for column, left in zip(zip(*map(vectors.of, needs), strict=True), free, strict=True)
    )
    room = NodeRoom()
    fits = True
    for one in needs:
        fits = fits and not problem(one, room, has)
        room.add(one)
    if together:
        assert fits
    named = {p.address for one in needs for p in one.ports}
    if fits and not ("" in named and len(named) > 1):
        assert together


def test_hostile_pods_are_bounded() -> None:
    many = {f"example.com/r{i}": "1" for i in range(5_000)}
    taken = [{"containerPort": i, "hostPort": i} for i in range(1, 9_000)]
    huge = {"cpu": "9" * 900, "memory": "1e999", "ephemeral-storage": "-5", **many}
    spec = {"containers": [{"name": "c", "resources": {"requests": huge}, "ports": taken}]}
    needs = needs_of(pod_of(spec))
    assert (len(needs.amounts), len(needs.ports)) == (65, 1024)
    counted = dict(needs.amounts)
    assert counted["cpu"] == counted["memory"] == 2**63 - 1
    assert "ephemeral-storage" not in counted
    room = NodeRoom()
    room.add(needs)
    room.remove(needs)
    assert not room
    assert len(NeedsVectors([needs, PodNeeds(())]).nothing) == 64


def test_ports_that_conflict_are_those_that_cannot_be_bound_together() -> None:
    named = [(a, p) for a in ADDRESSES for p in ("TCP", "UDP")]
    bodies = [
        {"hostPort": 80, "containerPort": 80, "protocol": p, **({"hostIP": a} if a else {})} for a, p in named
    ]
    has = {"pods": Quantity.parse("9")}
    for first, second in [*combinations(bodies, 2), *((b, b) for b in bodies)]:
        room = NodeRoom()
        room.add(needs_of(pod_of({"containers": [{"name": "c", "ports": [first]}]})))
        found = problem(needs_of(pod_of({"containers": [{"name": "c", "ports": [second]}]})), room, has)
        assert bool(found) is clash(first, second), (first, second)
