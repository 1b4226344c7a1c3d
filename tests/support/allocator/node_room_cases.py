"""Pods on nodes that are just big enough for them, and on nodes that are too small by the least amount.

What is expected is what the real kube-scheduler of Kubernetes 1.36 does, which ``tests/scheduling`` asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["CASES", "CLASSES", "DEVICE_CLASS", "PRIORITIES", "RUNTIME", "Case"]

Body = dict[str, Any]

GIB: Final = 2**30
RUNTIME: Final[Body] = {"handler": "h", "overhead": {"podFixed": {"cpu": "250m", "memory": "1Mi"}}}
PRIORITIES: Final = {"low": (-100, "PreemptLowerPriority"), "high": (1000, "PreemptLowerPriority")}
CLASSES: Final = {**PRIORITIES, "patient": (1000, "Never")}
DEVICE_CLASS: Final[Body] = {"extendedResourceName": "example.com/served"}
PLENTY: Final = {"cpu": "64", "memory": "64Gi", "pods": "10", "ephemeral-storage": "64Gi"}


@dataclass(frozen=True, slots=True)
class Case:
    """One pod, and two nodes.

    Attributes:
        name: of the case.
        pod: what its spec has besides the selector of the node.
        room: what a node can give that is just big enough, besides plenty of all else.
        short: likewise, of a node that is too small.
        residents: specs of pods on both nodes; ``status`` in them is their status.
        more: residents of the node that is too small.
        node: of the spec and labels of both nodes.
        small_node: likewise of the node that is too small.
        outcomes: ``bound``, ``evicts`` or ``refused``, on the one node and the other.
        defaulted: whether the API server sets what matters.
    """

    name: str
    pod: Body
    room: dict[str, str] = field(default_factory=dict)
    short: dict[str, str] = field(default_factory=dict)
    residents: tuple[Body, ...] = ()
    more: tuple[Body, ...] = ()
    node: Body = field(default_factory=dict)
    small_node: Body = field(default_factory=dict)
    outcomes: tuple[str, str] = ("bound", "refused")
    defaulted: bool = False


def box(name: str = "c", ports: tuple[Body, ...] = (), restart: str = "", **requests: str) -> Body:
    """Return a container; resources by their names, with ``_`` for what cannot be in a name."""
    asked = {_NAMES.get(key, key): text for key, text in requests.items()}
    own = {k: v for k, v in asked.items() if "/" in k or k.startswith("hugepages-")}
    body: Body = {"name": name, "image": "i", "resources": {"requests": asked, "limits": own}}
    if ports:
        body["ports"] = list(ports)
    return {**body, "restartPolicy": restart} if restart else body


_NAMES: Final = {
    "storage": "ephemeral-storage",
    "dongle": "example.com/dongle",
    "served": "example.com/served",
    "implied": "deviceclass.resource.kubernetes.io/gpu",
    "pages": "hugepages-2Mi",
}


def of(*containers: Body, init: tuple[Body, ...] = (), **spec: Any) -> Body:
    """Return the spec of a pod."""
    more = {"initContainers": list(init)} if init else {}
    return {"containers": list(containers) or [box()], **more, **spec}


def port(number: int, address: str = "", protocol: str = "TCP") -> Body:
    """Return a port of the host."""
    body: Body = {"containerPort": number, "hostPort": number, "protocol": protocol}
    return {**body, "hostIP": address} if address else body


def sidecar(name: str, **requests: str) -> Body:
    """Return an init container that runs on."""
    return box(name, (), "Always", **requests)


def resident(*containers: Body, **spec: Any) -> Body:
    """Return the spec of a pod that is bound already."""
    return of(*containers, **spec)


def resized(spec: str, actual: str, allocated: str, reason: str = "") -> Body:
    """Return a pod that is bound and being resized."""
    has = {"name": "c", "resources": {"requests": {"cpu": actual}}, "allocatedResources": {"cpu": allocated}}
    rest = {"image": "i", "imageID": "", "ready": True, "restartCount": 0}
    waits = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    return resident(box(cpu=spec), status={"containerStatuses": [{**has, **rest}], "conditions": waits})


def affinity(*requirements: Body) -> Body:
    """Return required node affinity with one term."""
    terms = [{"matchExpressions": list(requirements)}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


TAINT: Final = {"key": "team", "value": "a", "effect": "NoSchedule"}
LOW: Final[Body] = {"priorityClassName": "low"}
HIGH: Final[Body] = {"priorityClassName": "high"}
PATIENT: Final[Body] = {"priorityClassName": "patient"}

CASES: Final = (
    # --- requests -------------------------------------------------------------------------------------------
    Case("cpu", of(box(cpu="1500m")), {"cpu": "1500m"}, {"cpu": "1499m"}),
    Case("cpu-beside-others", of(box(cpu="500m")), {"cpu": "2"}, {"cpu": "1999m"}, (of(box(cpu="1500m")),)),
    Case(  # each amount is rounded up when it is written
        "cpu-below-a-milli",
        of(box(cpu="100u"), box("d", cpu="100u")),
        {"cpu": "2m"},
        {"cpu": "1m"},
        defaulted=True,
    ),
    Case("memory", of(box(memory="1Gi")), {"memory": str(GIB)}, {"memory": str(GIB - 1)}),
    Case("storage", of(box(storage="1Gi")), {"ephemeral-storage": "1Gi"}, {"ephemeral-storage": "1023Mi"}),
    Case(
        "huge-pages",
        of(box(pages="4Mi", cpu="1", memory="4Mi")),
        {"hugepages-2Mi": "4Mi"},
        {"hugepages-2Mi": "2Mi"},
    ),
    Case("several-containers", of(box(cpu="1"), box("d", cpu="500m")), {"cpu": "1500m"}, {"cpu": "1499m"}),
    Case("number-of-pods", of(), {"pods": "2"}, {"pods": "1"}, (of(),)),
    Case("nothing-asked-on-a-full-node", of(), {"cpu": "1"}, {"cpu": "1", "pods": "1"}, (of(box(cpu="1")),)),
    Case(
        "requests-from-limits",
        of({"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}}),
        {"cpu": "1"},
        {"cpu": "999m"},
        defaulted=True,
    ),
    # --- init containers ------------------------------------------------------------------------------------
    Case("init-larger", of(box(cpu="1"), init=(box("i", cpu="3"),)), {"cpu": "3"}, {"cpu": "2999m"}),
    Case(
        "init-smaller",
        of(box(cpu="3"), init=(box("i", cpu="1"), box("j", cpu="2"))),
        {"cpu": "3"},
        {"cpu": "2999m"},
    ),
    Case("sidecar", of(box(cpu="1"), init=(sidecar("s", cpu="1"),)), {"cpu": "2"}, {"cpu": "1999m"}),
    Case(
        "sidecar-before-init",
        of(box(cpu="1"), init=(sidecar("s", cpu="1"), box("i", cpu="2"))),
        {"cpu": "3"},
        {"cpu": "2999m"},
    ),
    Case(
        "sidecar-after-init",
        of(box(cpu="1"), init=(box("i", cpu="2500m"), sidecar("s", cpu="1"))),
        {"cpu": "2500m"},
        {"cpu": "2499m"},
    ),
    Case(
        "sidecars-around-init",
        of(box(cpu="1"), init=(sidecar("s", cpu="1"), box("i", cpu="1"), sidecar("t", cpu="1"))),
        {"cpu": "3"},
        {"cpu": "2999m"},
    ),
    # --- pod level, overhead, resizes -----------------------------------------------------------------------
    Case(
        "pod-level-above-its-containers",
        of(box(cpu="1"), resources={"requests": {"cpu": "2"}}),
        {"cpu": "2"},
        {"cpu": "1999m"},
    ),
    Case(
        "pod-level-beside-init",
        of(box(cpu="1"), init=(box("i", cpu="1"),), resources={"requests": {"cpu": "1500m"}}),
        {"cpu": "1500m"},
        {"cpu": "1499m"},
    ),
    Case(
        "pod-level-memory-alone",
        of(box(cpu="1", memory="1Mi"), resources={"requests": {"memory": "2Mi"}}),
        {"cpu": "1", "memory": "2Mi"},
        {"cpu": "1", "memory": "1Mi"},
    ),
    Case(
        "overhead",
        of(box(cpu="1"), runtimeClassName="runtime", overhead=RUNTIME["overhead"]["podFixed"]),
        {"cpu": "1250m"},
        {"cpu": "1249m"},
    ),
    Case(
        "resized-actual-above",
        of(box(cpu="1")),
        {"cpu": "3"},
        {"cpu": "2999m"},
        (resized("1", actual="2", allocated="1"),),
    ),
    Case(
        "resized-allocated-above",
        of(box(cpu="1")),
        {"cpu": "3"},
        {"cpu": "2999m"},
        (resized("1", actual="1", allocated="2"),),
    ),
    Case(
        "resized-wanted-above",
        of(box(cpu="1")),
        {"cpu": "3"},
        {"cpu": "2999m"},
        (resized("2", actual="1", allocated="1"),),
    ),
    Case(
        "resized-infeasible",
        of(box(cpu="1")),
        {"cpu": "2"},
        {"cpu": "1999m"},
        (resized("8", actual="1", allocated="1", reason="Infeasible"),),
    ),
    # --- extended resources ---------------------------------------------------------------------------------
    Case(
        "extended-resource",
        of(box(dongle="2")),
        {"example.com/dongle": "3"},
        {"example.com/dongle": "2"},
        (of(box(dongle="1")),),
    ),
    Case("extended-resource-unknown", of(box(dongle="1")), {"example.com/dongle": "1"}),
    Case(
        "served-by-a-class-but-offered",
        of(box(served="2")),
        {"example.com/served": "2"},
        {"example.com/served": "1"},
    ),
    # --- host ports -----------------------------------------------------------------------------------------
    Case(
        "port-of-the-other-protocol",
        of(box(ports=(port(80),))),
        residents=(of(box(ports=(port(80, protocol="UDP"),))),),
        more=(of(box(ports=(port(80),))),),
    ),
    Case(
        "port-on-another-address",
        of(box(ports=(port(80, "10.0.0.1"),))),
        residents=(of(box(ports=(port(80, "10.0.0.2"),))),),
        more=(of(box(ports=(port(80, "0.0.0.0"),))),),
    ),
    Case(
        "port-on-all-addresses",
        of(box(ports=(port(80),))),
        residents=(of(box(ports=(port(81, "10.0.0.2"),))),),
        more=(of(box(ports=(port(80, "10.0.0.2"),))),),
    ),
    Case(
        "port-on-all-addresses-of-ipv6",
        of(box(ports=(port(80, "10.0.0.1"),))),
        residents=(of(box(ports=(port(80, "::"),))),),
        more=(of(box(ports=(port(80, "10.0.0.1"),))),),
    ),
    Case(
        "port-of-a-sidecar",
        of(box(), init=(box("s", ports=(port(80),), restart="Always"),)),
        residents=(of(box(), init=(box("i", ports=(port(80),)),)),),
        more=(of(box(), init=(box("s", ports=(port(80),), restart="Always"),)),),
    ),
    # --- nodes ----------------------------------------------------------------------------------------------
    Case(
        "taint",
        of(tolerations=[{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}]),
        node={"taints": [TAINT]},
        small_node={"taints": [{**TAINT, "value": "b"}]},
    ),
    Case(
        "taint-of-preference",
        of(),
        node={"taints": [{**TAINT, "effect": "PreferNoSchedule"}]},
        small_node={"taints": [{**TAINT, "effect": "NoExecute"}]},
    ),
    Case("unschedulable", of(), small_node={"unschedulable": True}),
    Case(
        "unschedulable-but-tolerated",
        of(tolerations=[{"operator": "Exists"}]),
        {"cpu": "1"},
        {"cpu": "1", "pods": "0"},
        node={"unschedulable": True},
    ),
    Case(
        "affinity-above",
        of(**affinity({"key": "size", "operator": "Gt", "values": ["4"]})),
        node={"labels": {"size": "5"}},
        small_node={"labels": {"size": "4"}},
    ),
    Case(
        "affinity-not-in",
        of(**affinity({"key": "zone", "operator": "NotIn", "values": ["a"]})),
        small_node={"labels": {"zone": "a"}},
    ),
    # --- priority -------------------------------------------------------------------------------------------
    Case(
        "preempts-for-cpu",
        of(box(cpu="2"), **HIGH),
        {"cpu": "2"},
        {"cpu": "1999m"},
        (of(box(cpu="2"), **LOW),),
        outcomes=("evicts", "refused"),
    ),
    Case(
        "preempts-beside-its-equals",
        of(box(cpu="1"), **HIGH),
        {"cpu": "2"},
        {"cpu": "1999m"},
        (of(box(cpu="1"), **LOW), of(box(cpu="1"), **HIGH)),
        outcomes=("evicts", "refused"),
    ),
    Case(
        "preempts-for-a-port",
        of(box(ports=(port(80),)), **HIGH),
        residents=(of(box(ports=(port(80, "10.0.0.1"),)), **LOW),),
        more=(of(box(ports=(port(80),)), **HIGH),),
        outcomes=("evicts", "refused"),
    ),
    Case(
        "preempts-for-the-number-of-pods",
        of(**HIGH),
        {"pods": "1"},
        {"pods": "0"},
        (of(**LOW),),
        outcomes=("evicts", "refused"),
    ),
    Case(
        "never-preempts",
        of(box(cpu="1"), **PATIENT),
        {"cpu": "2"},
        {"cpu": "1999m"},
        (of(box(cpu="1"), **LOW),),
    ),
)
