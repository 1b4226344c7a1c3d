"""Small worlds of nodes and pods with affinity, anti-affinity and topology spread, and a pod to be placed.

What is expected is what the real kube-scheduler of Kubernetes 1.36 does, which ``tests/scheduling`` asks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

from node_room_cases import PLENTY

__all__ = ["WORLDS", "NeighbourCase", "Resident", "random_worlds"]

Body = dict[str, Any]
HOST: Final = "kubernetes.io/hostname"
WEB: Final = {"app": "web"}
DB: Final = {"app": "db"}


@dataclass(frozen=True, slots=True)
class Resident:
    """A pod that is on a node.

    Attributes:
        node: number of its node.
        labels: of the pod.
        spec: what it has besides a container.
        elsewhere: whether it is in another namespace than the pod that is to be placed.
        ending: whether it is being deleted.
    """

    node: int
    labels: dict[str, str] = field(default_factory=dict)
    spec: Body = field(default_factory=dict)
    elsewhere: bool = False
    ending: bool = False


@dataclass(frozen=True, slots=True)
class NeighbourCase:
    """Nodes, the pods on them, and a pod to be placed.

    Attributes:
        name: of the world; its nodes, namespaces and label ``zone`` have it in their names.
        zones: of each node its zone, or nothing.
        residents: the pods that are there.
        labels: of the pod.
        spec: of the pod.
        fits: numbers of the nodes that can take the pod.
        evicts: numbers of the nodes that could if pods of lower priority were evicted.
        taints: number of a node → its taints.
    """

    name: str
    zones: tuple[str, ...]
    residents: tuple[Resident, ...]
    labels: dict[str, str]
    spec: Body
    fits: set[int] = field(default_factory=set)
    evicts: set[int] = field(default_factory=set)
    taints: dict[int, list[Body]] = field(default_factory=dict)

    @property
    def other(self) -> str:
        """The other namespace."""
        return f"{self.name}-other"

    def node_name(self, number: int) -> str:
        """Return the name of a node."""
        return f"{self.name}-{number}"

    def nodes(self) -> list[Body]:
        """Return its nodes as objects."""
        bodies = []
        for i, zone in enumerate(self.zones):
            labels = {"case": self.name, HOST: self.node_name(i)}
            if zone:
                labels[f"zone.{self.name}"] = zone
            bodies.append(
                {
                    "metadata": {"name": self.node_name(i), "labels": labels},
                    "spec": {"taints": self.taints.get(i, [])},
                    "status": {"allocatable": PLENTY, "capacity": PLENTY},
                }
            )
        return bodies

    def pods(self) -> list[tuple[Body, bool]]:
        """Return its residents as objects, and whether each is being deleted."""
        return [
            (
                self._pod(
                    f"there-{i}",
                    self.other if one.elsewhere else self.name,
                    one.labels,
                    {**one.spec, "nodeName": self.node_name(one.node)},
                ),
                one.ending,
            )
            for i, one in enumerate(self.residents)
        ]

    def pod(self) -> Body:
        """Return the pod that is to be placed."""
        return self._pod("new", self.name, self.labels, {"nodeSelector": {"case": self.name}, **self.spec})

    def _pod(self, name: str, namespace: str, labels: dict[str, str], spec: Body) -> Body:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i"}], **self._named(spec)},
        }

    def _named(self, value: Any) -> Any:
        """Put the names of this world in the place of ``zone`` and ``other``."""
        match value:
            case dict():
                return {
                    k: {"zone": f"zone.{self.name}", "host": HOST}[v]
                    if k == "topologyKey"
                    else self._named(v)
                    for k, v in value.items()
                }
            case list():
                return [self._named(v) for v in value]
            case "@other":
                return self.other
            case _:
                return value


def selector(labels: Body | None) -> Body:
    """Return the part of a term that selects pods by labels."""
    return {} if labels is None else {"labelSelector": {"matchLabels": labels}}


def term(labels: Body | None, key: str = "host", **more: Any) -> Body:
    """Return a term of affinity."""
    return {**selector(labels), "topologyKey": key, **more}


def apart(*terms: Body) -> Body:
    """Return required anti-affinity."""
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def near(*terms: Body) -> Body:
    """Return required affinity."""
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def of(*affinities: Body, **spec: Any) -> Body:
    """Return a spec with these affinities."""
    merged: Body = {}
    for one in affinities:
        merged |= one
    return {**({"affinity": merged} if merged else {}), **spec}


def spread(labels: Body | None, key: str = "zone", skew: int = 1, **more: Any) -> Body:
    """Return a hard constraint of topology spread."""
    return {
        **selector(labels),
        "topologyKey": key,
        "maxSkew": skew,
        "whenUnsatisfiable": "DoNotSchedule",
        **more,
    }


def spreading(*constraints: Body, **spec: Any) -> Body:
    """Return a spec with topology spread."""
    return {"topologySpreadConstraints": list(constraints), **spec}


def matching(key: str, operator: str, *values: str) -> Body:
    """Return a selector with one expression, as a term has it."""
    requirement: Body = {"key": key, "operator": operator}
    return {
        "labelSelector": {
            "matchExpressions": [{**requirement, **({"values": list(values)} if values else {})}]
        }
    }


_POLICIES: Final[list[Body]] = [
    {},
    {},
    {"minDomains": 3},
    {"nodeAffinityPolicy": "Ignore"},
    {"nodeTaintsPolicy": "Honor"},
]
LOW: Final[Body] = {"priorityClassName": "low"}
HIGH: Final[Body] = {"priorityClassName": "high"}
TAINT: Final = {"key": "team", "value": "a", "effect": "NoSchedule"}
APART: Final = apart(term(WEB))

WORLDS: Final = (
    # --- anti-affinity --------------------------------------------------------------------------------------
    NeighbourCase("anti", ("", ""), (Resident(0, WEB),), WEB, of(APART), {1}),
    NeighbourCase("anti-full", ("",), (Resident(0, WEB),), DB, of(APART)),
    NeighbourCase("anti-other-labels", ("",), (Resident(0, DB),), WEB, of(APART), {0}),
    NeighbourCase("anti-held", ("", ""), (Resident(0, DB, of(APART)),), WEB, {}, {1}),
    NeighbourCase("anti-held-of-itself-only", ("",), (Resident(0, WEB, of(apart(term(DB)))),), WEB, {}, {0}),
    NeighbourCase("anti-other-namespace", ("",), (Resident(0, WEB, elsewhere=True),), WEB, of(APART), {0}),
    NeighbourCase(
        "anti-named-namespace",
        ("", ""),
        (Resident(0, WEB, elsewhere=True), Resident(1, WEB)),
        WEB,
        of(apart(term(WEB, namespaces=["@other"]))),
        {1},
    ),
    NeighbourCase(
        "anti-all-namespaces",
        ("", ""),
        (Resident(0, {"only": "here"}, elsewhere=True),),
        WEB,
        of(apart(term({"only": "here"}, namespaceSelector={}))),
        {1},
    ),
    NeighbourCase(
        "anti-held-from-all-namespaces",
        ("", ""),
        (Resident(0, DB, of(apart(term({"here": "held"}, namespaceSelector={}))), elsewhere=True),),
        {"here": "held"},
        {},
        {1},
    ),
    NeighbourCase("anti-zone", ("a", "a", "b"), (Resident(0, WEB),), WEB, of(apart(term(WEB, "zone"))), {2}),
    NeighbourCase(
        "anti-without-label", ("a", ""), (Resident(0, WEB),), WEB, of(apart(term(WEB, "zone"))), {1}
    ),
    NeighbourCase(
        "anti-resident-without-label",
        ("", "a"),
        (Resident(0, WEB),),
        WEB,
        of(apart(term(WEB, "zone"))),
        {0, 1},
    ),
    NeighbourCase("anti-nothing-selected", ("",), (Resident(0, WEB),), WEB, of(apart(term(None))), {0}),
    NeighbourCase("anti-everything-selected", ("", ""), (Resident(0),), WEB, of(apart(term({}))), {1}),
    NeighbourCase(
        "anti-not-in",
        ("", "", ""),
        (Resident(0, WEB), Resident(1, DB), Resident(2)),
        WEB,
        of(apart({**matching("app", "NotIn", "web"), "topologyKey": "host"})),
        {0},
    ),
    NeighbourCase(
        "anti-exists",
        ("", ""),
        (Resident(0, WEB), Resident(1)),
        WEB,
        of(apart({**matching("app", "Exists"), "topologyKey": "host"})),
        {1},
    ),
    NeighbourCase(
        "anti-does-not-exist",
        ("", ""),
        (Resident(0, WEB), Resident(1)),
        WEB,
        of(apart({**matching("app", "DoesNotExist"), "topologyKey": "host"})),
        {0},
    ),
    NeighbourCase(
        "anti-match-label-keys",
        ("", ""),
        (Resident(0, {**WEB, "hash": "1"}), Resident(1, {**WEB, "hash": "2"})),
        {**WEB, "hash": "2"},
        of(apart(term(WEB, matchLabelKeys=["hash"]))),
        {0},
    ),
    NeighbourCase(
        "anti-mismatch-label-keys",
        ("", ""),
        (Resident(0, {**WEB, "hash": "1"}), Resident(1, {**WEB, "hash": "2"})),
        {**WEB, "hash": "2"},
        of(apart(term(WEB, mismatchLabelKeys=["hash"]))),
        {1},
    ),
    NeighbourCase("anti-ending", ("", ""), (Resident(0, WEB, ending=True),), WEB, of(APART), {1}),
    NeighbourCase(
        "anti-evicts", ("", ""), (Resident(0, WEB, LOW), Resident(1, WEB)), WEB, of(APART), set(), {0}
    ),
    NeighbourCase("anti-held-evicts", ("",), (Resident(0, DB, of(APART, **LOW)),), WEB, {}, set(), {0}),
    NeighbourCase(
        "anti-zone-evicts-one-node-only",
        ("a", "a", "b"),
        (Resident(0, WEB, LOW), Resident(1, WEB, LOW), Resident(2, WEB, LOW)),
        WEB,
        of(apart(term(WEB, "zone"))),
        set(),
        {2},
    ),
    # --- affinity -------------------------------------------------------------------------------------------
    NeighbourCase("near", ("", ""), (Resident(0, DB),), WEB, of(near(term(DB))), {0}),
    NeighbourCase("near-nothing", ("", ""), (), WEB, of(near(term(DB)))),
    NeighbourCase("near-itself-first", ("a", ""), (), WEB, of(near(term(WEB, "zone"))), {0}),
    NeighbourCase("near-itself", ("a", "b"), (Resident(1, WEB),), WEB, of(near(term(WEB, "zone"))), {1}),
    NeighbourCase(
        "near-itself-without-label", ("a", ""), (Resident(1, WEB),), WEB, of(near(term(WEB, "zone"))), {0}
    ),
    NeighbourCase(
        "near-all-terms-in-one-pod",
        ("a", "b", "b"),
        (Resident(0, WEB), Resident(0, DB), Resident(1, {**WEB, "tier": "1"})),
        {},
        of(near(term(WEB, "zone"), term({"tier": "1"}))),
        {1},
    ),
    NeighbourCase(
        "near-two-keys",
        ("a", "a", "b"),
        (Resident(0, WEB),),
        WEB,
        of(near(term(WEB, "zone"), term(WEB))),
        {0},
    ),
    NeighbourCase(
        "near-no-eviction-of-the-partner",
        ("",),
        (Resident(0, DB, LOW), Resident(0, WEB, LOW)),
        {},
        of(near(term(DB)), apart(term(WEB))),
    ),
    NeighbourCase(
        "near-and-apart",
        ("a", "a", "b"),
        (Resident(0, DB), Resident(0, WEB)),
        WEB,
        of(near(term(DB, "zone")), apart(term(WEB))),
        {1},
    ),
    NeighbourCase("near-ending", ("", ""), (Resident(0, DB, ending=True),), WEB, of(near(term(DB))), {0}),
    # --- topology spread ------------------------------------------------------------------------------------
    NeighbourCase("spread", ("a", "b"), (Resident(0, WEB),), WEB, spreading(spread(WEB)), {1}),
    NeighbourCase(
        "spread-skew-two", ("a", "b"), (Resident(0, WEB),), WEB, spreading(spread(WEB, skew=2)), {0, 1}
    ),
    NeighbourCase("spread-not-itself", ("a", "b"), (Resident(0, WEB),), DB, spreading(spread(WEB)), {0, 1}),
    NeighbourCase("spread-missing-label", ("a", ""), (), WEB, spreading(spread(WEB)), {0}),
    NeighbourCase(
        "spread-missing-label-counts-nowhere",
        ("a", "b", ""),
        (Resident(0, WEB), Resident(1, WEB), Resident(2, WEB)),
        WEB,
        spreading(spread(WEB), spread(WEB, "host")),
        {0, 1},
    ),
    NeighbourCase(
        "spread-ending", ("a", "b"), (Resident(0, WEB, ending=True),), WEB, spreading(spread(WEB)), {0, 1}
    ),
    NeighbourCase(
        "spread-empty-selector", ("a", "b"), (Resident(0, WEB),), WEB, spreading(spread({})), {0, 1}
    ),
    NeighbourCase(
        "spread-no-selector", ("a", "b"), (Resident(0, WEB),), WEB, spreading(spread(None)), {0, 1}
    ),
    NeighbourCase(
        "spread-other-namespace",
        ("a", "b"),
        (Resident(0, WEB, elsewhere=True),),
        WEB,
        spreading(spread(WEB)),
        {0, 1},
    ),
    NeighbourCase(
        "spread-soft",
        ("a", ""),
        (Resident(0, WEB),),
        WEB,
        spreading({**spread(WEB), "whenUnsatisfiable": "ScheduleAnyway"}),
        {0, 1},
    ),
    NeighbourCase(
        "spread-min-domains",
        ("a", "b"),
        (Resident(0, WEB), Resident(1, WEB)),
        WEB,
        spreading(spread(WEB, minDomains=3)),
    ),
    NeighbourCase(
        "spread-min-domains-there",
        ("a", "b"),
        (Resident(0, WEB), Resident(1, WEB)),
        WEB,
        spreading(spread(WEB, minDomains=2)),
        {0, 1},
    ),
    NeighbourCase(
        "spread-match-label-keys",
        ("a", "b"),
        (Resident(0, {**WEB, "hash": "1"}), Resident(1, {**WEB, "hash": "2"})),
        {**WEB, "hash": "2"},
        spreading(spread(WEB, matchLabelKeys=["hash"])),
        {0},
    ),
    NeighbourCase(
        "spread-tainted-counts",
        ("a", "b", "c"),
        (Resident(0, WEB), Resident(1, WEB)),
        WEB,
        spreading(spread(WEB)),
        taints={2: [TAINT]},
    ),
    NeighbourCase(
        "spread-tainted-does-not-count",
        ("a", "b", "c"),
        (Resident(0, WEB), Resident(1, WEB)),
        WEB,
        spreading(spread(WEB, nodeTaintsPolicy="Honor")),
        {0, 1},
        taints={2: [TAINT]},
    ),
    NeighbourCase(
        "spread-selector-honored",
        ("a", "b"),
        (Resident(0, WEB),),
        WEB,
        spreading(spread(WEB), nodeSelector={HOST: "spread-selector-honored-0"}),
        {0},
    ),
    NeighbourCase(
        "spread-selector-ignored",
        ("a", "b"),
        (Resident(0, WEB),),
        WEB,
        spreading(spread(WEB, nodeAffinityPolicy="Ignore"), nodeSelector={HOST: "spread-selector-ignored-0"}),
    ),
    NeighbourCase(
        "spread-evicts",
        ("a", "b"),
        (Resident(0, WEB, LOW), Resident(1, DB)),
        WEB,
        spreading(spread(WEB, nodeAffinityPolicy="Ignore"), nodeSelector={HOST: "spread-evicts-0"}),
        set(),
        {0},
    ),
)


def random_worlds(seed: int, number: int) -> list[NeighbourCase]:
    """Return worlds of which only kube-scheduler knows what is expected."""
    rng = random.Random(seed)
    return [_random_world(rng, f"random-{seed}-{i}") for i in range(number)]


def _random_world(rng: random.Random, name: str) -> NeighbourCase:
    zones = tuple(rng.choice(["a", "b", "c", ""]) for _ in range(rng.randint(2, 5)))
    residents = tuple(
        Resident(
            rng.randrange(len(zones)),
            _labels(rng),
            {**_affinities(rng, near_too=False), **_priority(rng)},
            elsewhere=rng.random() < 0.2,
            ending=rng.random() < 0.15,
        )
        for _ in range(rng.randint(0, 7))
    )
    constraints = [
        spread(
            rng.choice([WEB, DB, {"tier": "1"}, {}, None]),
            rng.choice(["zone", "host"]),
            rng.choice([1, 1, 2]),
            **rng.choice(_POLICIES),
        )
        for _ in range(rng.choice([0, 0, 1, 2]))
    ]
    # A pair of key and action may be there once only.
    unique = {c["topologyKey"]: c for c in constraints}
    taints = {i: [TAINT] for i in range(len(zones)) if rng.random() < 0.1}
    spec = {**_affinities(rng, near_too=True), **_priority(rng)}
    if unique:
        spec |= spreading(*unique.values())
    return NeighbourCase(name, zones, residents, _labels(rng), spec, taints=taints)


def _labels(rng: random.Random) -> dict[str, str]:
    labels = dict(rng.choice([WEB, WEB, DB, {}]))
    if rng.random() < 0.4:
        labels["tier"] = rng.choice("12")
    return labels


def _priority(rng: random.Random) -> Body:
    return rng.choice([{}, {}, LOW, HIGH])


def _affinities(rng: random.Random, *, near_too: bool) -> Body:
    found: list[Body] = []
    if rng.random() < 0.5:
        found.append(apart(*(_term(rng) for _ in range(rng.choice([1, 1, 2])))))
    if near_too and rng.random() < 0.4:
        found.append(near(*(_term(rng) for _ in range(rng.choice([1, 1, 2])))))
    return of(*found)


def _term(rng: random.Random) -> Body:
    namespaces = rng.choice([{}, {}, {"namespaces": ["@other"]}])
    chosen = rng.choice(
        [
            selector(WEB),
            selector(DB),
            selector({"tier": "1"}),
            matching("app", "NotIn", "web"),
            matching("tier", "In", "1", "3"),
            matching("tier", "Exists"),
            matching("app", "DoesNotExist"),
        ]
    )
    return {**chosen, "topologyKey": rng.choice(["host", "zone"]), **namespaces}
