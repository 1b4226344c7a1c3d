"""Writes of the driver's accounts: what the admission policies refuse, and what they let through.

One table for every API server that evaluates the policies. Each write is a dry run: no case disturbs another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.api.names import ALLOCATED_CONDITION, DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME

Body = dict[str, Any]

SYSTEM = "dra-driver"
TENANT = "tenant"
NODE, OTHER_NODE = "n1", "n2"
LEADER, STANDBY = "dra-driver-controller-a", "dra-driver-controller-b"
AGENT = "dra-driver-kubelet-plugin-a"
THEIRS = "gpu.example.com"
FINALIZER = "resource.kubernetes.io/delete-protection"
GATE = "dra-driver.dev/allocation"
# A pod that is being deleted.
ENDING = "ending"

CORE, DRA = "/api/v1", "/apis/resource.k8s.io/v1"
CLAIMS, PODS = f"{DRA}/namespaces/{TENANT}/resourceclaims", f"{CORE}/namespaces/{TENANT}/pods"
EVENTS, SLICES = f"{CORE}/namespaces/{TENANT}/events", f"{DRA}/resourceslices"
INVENTORIES = "/apis/dra-driver.dev/v1alpha1/deviceinventories"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
SECRETS, CERTIFICATES = f"{CORE}/namespaces/{SYSTEM}/secrets", "dra-driver-admission"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Write:
    """One request.

    Attributes:
        by: account: ``controller`` (the pod that leads), ``standby`` or ``agent``.
        refused: name of the policy that refuses it; empty if it is let through.
    """

    what: str
    by: str
    method: str
    path: str
    body: Body
    refused: str = ""
    content_type: str = "application/json"
    query: Mapping[str, str] = field(default_factory=dict)


def _patch(what: str, by: str, path: str, body: Body, refused: str = "") -> Write:
    return Write(what, by, "PATCH", path, body, refused, MERGE)


# --- what is there ------------------------------------------------------------------------------------------


def result(driver: str, pool: str, device: str = "gpu-0", request: str = "gpu") -> Body:
    """One allocated device."""
    return {"request": request, "driver": driver, "pool": pool, "device": device}


def allocation(*results: Body) -> Body:
    """An allocation as the controller writes it."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [results[0]["pool"]]}]}]
    return {"devices": {"results": list(results)}, "nodeSelector": {"nodeSelectorTerms": terms}}


def _claim(name: str) -> Body:
    request = {"name": "gpu", "exactly": {"deviceClassName": "any"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": TENANT, "labels": {"a": "b"}, "finalizers": [FINALIZER]},
        "spec": {"devices": {"requests": [request]}},
    }


def _health(status: str, message: str = "") -> Body:
    return {
        "type": "Healthy",
        "status": status,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": "Said",
        "message": message,
    }


def entry(driver: str, pool: str, status: str = "False", device: str = "gpu-0") -> Body:
    """An entry of ``status.devices``."""
    return {"driver": driver, "pool": pool, "device": device, "conditions": [_health(status)]}


OURS = allocation(result(DEFAULT_DRIVER_NAME, NODE))
ELSEWHERE = allocation(result(DEFAULT_DRIVER_NAME, OTHER_NODE))
FOREIGN = allocation(result(THEIRS, NODE))
MIXED = allocation(result(DEFAULT_DRIVER_NAME, NODE), result(THEIRS, NODE, "nic-0"))
USER = {"resource": "pods", "name": "user", "uid": "u-1"}

STATUSES: Mapping[str, Body] = {
    "free": {},
    "ours": {"allocation": OURS, "devices": [entry(DEFAULT_DRIVER_NAME, NODE)]},
    "reserved": {"allocation": OURS, "reservedFor": [USER]},
    "elsewhere": {"allocation": ELSEWHERE},
    "theirs": {"allocation": FOREIGN},
    "mixed": {"allocation": MIXED, "devices": [entry(THEIRS, NODE, device="nic-0")]},
}


def pod(name: str, namespace: str, account: str = "default", **spec: Any) -> Body:
    """A pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"a": "b"}},
        "spec": {
            "serviceAccountName": account,
            "containers": [{"name": "c", "image": "busybox:1"}],
            **spec,
        },
    }


def slice_(name: str, driver: str, node: str | None = NODE, pool: str = NODE) -> Body:
    """A slice without devices; of all nodes where ``node`` is None."""
    spec: Body = {"driver": driver, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}}
    spec |= {"nodeName": node} if node else {"allNodes": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {**spec, "devices": []},
    }


def event(name: str, component: str, kind: str, about: str) -> Body:
    """An Event as ``EventRecorder`` writes it."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": TENANT},
        "involvedObject": {"apiVersion": "v1", "kind": kind, "name": about, "uid": "u", "namespace": TENANT},
        "reason": "Reason",
        "message": "text",
        "type": "Warning",
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": f"{component}-x",
    }


def node(name: str) -> Body:
    """A node whose labels are partly the controller's: those that its annotation lists."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"dra-driver.dev/gpu.count": "2", "nvidia.com/gpu.count": "2", "zone": "a"},
            "annotations": {f"{DEFAULT_DRIVER_NAME}/node-labels": "dra-driver.dev/gpu.count", "note": "x"},
        },
    }


def inventory(name: str, driver: str, publisher: str = "") -> Body:
    """The inventory of a node."""
    return {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DeviceInventory",
        "metadata": {"name": f"{name}.{driver}"},
        "spec": {"nodeName": name, "driver": driver, "publisher": publisher, "devices": []},
    }


def inventories() -> Iterator[tuple[str, Body]]:
    """Like ``objects``, of a kind that is served once everything is installed."""
    for name in (NODE, OTHER_NODE):
        yield INVENTORIES, inventory(name, DEFAULT_DRIVER_NAME)
    yield INVENTORIES, inventory(NODE, RDMA_DRIVER_NAME, "node")


def objects() -> Iterator[tuple[str, Body]]:
    """Path of the collection and body of everything that the cases are about."""
    for name in (NODE, OTHER_NODE):
        yield f"{CORE}/nodes", node(name)
    for name in (SYSTEM, TENANT):
        metadata = {"name": name, "labels": {"resource.kubernetes.io/admin-access": "true"}}
        yield f"{CORE}/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    for name in STATUSES:
        yield CLAIMS, _claim(name)
    bare = _claim("bare")
    del bare["metadata"]["finalizers"]
    yield CLAIMS, bare
    gates = [{"name": GATE}, {"name": "example.com/queue"}]
    yield PODS, pod("gated", TENANT, schedulingGates=gates)
    ending = pod(ENDING, TENANT, schedulingGates=gates)
    ending["metadata"]["finalizers"] = ["example.com/mine"]
    yield PODS, ending
    yield SLICES, slice_("ours", DEFAULT_DRIVER_NAME)
    yield SLICES, slice_("theirs", THEIRS)
    authority = {"ca.crt": "YQ==", "ca.key": "Yg==", "tls.crt": "Yw=="}
    metadata = {"name": CERTIFICATES, "namespace": SYSTEM, "labels": {"a": "b"}}
    yield SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": authority}
    yield EVENTS, event("ours", "dra-driver-controller", "Pod", "gated")
    yield EVENTS, event("agents", "dra-driver-kubelet-plugin", "Node", NODE)
    yield EVENTS, event("theirs", "kubelet", "Pod", "gated")


# --- the table ----------------------------------------------------------------------------------------------


def cases() -> Iterator[Write]:
    """Every write."""
    yield from _allocations()
    yield from _claims()
    yield from _finalizers()
    yield from _slices()
    yield from _pods()
    yield from _gates()
    yield from _nodes()
    yield from _entries()
    yield from _inventories()
    yield from _events()
    yield from _certificates()


def _status(what: str, claim: str, status: Body, refused: str = "", by: str = "controller") -> Write:
    return _patch(what, by, f"{CLAIMS}/{claim}/status", {"status": status}, refused)


def _allocations() -> Iterator[Write]:
    policy = "dra-driver-controller-allocations"
    nics = allocation(result(RDMA_DRIVER_NAME, NODE, "nic-0"))
    yield _status("allocates devices of its driver", "free", {"allocation": OURS})
    yield _status("allocates devices of its other driver", "free", {"allocation": nics})
    yield _status("allocates and reserves", "free", {"allocation": OURS, "reservedFor": [USER]})
    yield _status("reserves an allocated claim", "ours", {"reservedFor": [USER]})
    yield _status("deallocates", "ours", {"allocation": None})
    yield _status("allocates devices of another driver", "free", {"allocation": FOREIGN}, policy)
    yield _status("allocates devices of both", "free", {"allocation": MIXED}, policy)
    nothing = {"nodeSelector": OURS["nodeSelector"], "devices": {"results": []}}
    yield _status("allocates nothing at all", "free", {"allocation": nothing}, policy)
    yield _status("deallocates another driver's claim", "theirs", {"allocation": None}, policy)
    yield _status("deallocates a claim that it shares", "mixed", {"allocation": None}, policy)
    yield _status("reserves another driver's claim", "theirs", {"reservedFor": [USER]}, policy)
    yield _status("takes a reservation away", "reserved", {"reservedFor": None}, policy)
    group = {"resource": "jobs", "apiGroup": "batch", "name": "j", "uid": "u-2"}
    yield _status("reserves for something else", "ours", {"reservedFor": [group]}, policy)
    sick = [entry(DEFAULT_DRIVER_NAME, NODE, "True")]
    yield _status("writes an agent's entry", "ours", {"devices": sick}, policy)
    yield _status("removes an agent's entry", "ours", {"devices": []}, policy)
    named = {"metadata": {"labels": {"a": None}}, "status": {"allocation": OURS}}
    yield _patch("the rest of what it sends is ignored", "controller", f"{CLAIMS}/free/status", named)


def _claims() -> Iterator[Write]:
    policy = "dra-driver-controller-claims"

    def meta(what: str, name: str, metadata: Body, refused: str = "") -> Write:
        return _patch(what, "controller", f"{CLAIMS}/{name}", {"metadata": metadata}, refused)

    yield meta("adds the finalizer", "bare", {"finalizers": [FINALIZER]})
    yield meta("adds what is there", "free", {"finalizers": [FINALIZER]})
    yield meta("removes the finalizer", "free", {"finalizers": None}, policy)
    yield meta("adds another one", "free", {"finalizers": [FINALIZER, "example.com/mine"]}, policy)
    yield meta("changes labels", "bare", {"labels": {"a": "c"}, "finalizers": [FINALIZER]}, policy)
    yield meta("adds annotations", "bare", {"annotations": {"a": "b"}}, policy)
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "x"}
    yield meta("adds an owner, with whom it would be deleted", "bare", {"ownerReferences": [owner]}, policy)


def _finalizers() -> Iterator[Write]:
    """Anybody's writes: whoever may write claims could free devices that a pod uses."""
    policy = "dra-driver-allocated-claims"

    def without(what: str, name: str, refused: str = "", kept: tuple[str, ...] = ()) -> Write:
        metadata = {"finalizers": list(kept) or None}
        return _patch(what, "admin", f"{CLAIMS}/{name}", {"metadata": metadata}, refused)

    yield without("takes the finalizer off an allocated claim", "ours", policy)
    yield without("puts another finalizer in its place", "ours", policy, ("example.com/mine",))
    yield without("takes the finalizer off a reserved claim", "reserved", policy)
    yield without("takes the finalizer off a claim with devices of two drivers", "mixed", policy)
    yield without("adds a finalizer to an allocated claim", "ours", "", (FINALIZER, "example.com/mine"))
    yield without("takes the finalizer off a claim of another driver", "theirs")
    yield without("takes the finalizer off a claim that holds nothing", "free")


def _slices() -> Iterator[Write]:
    policy, by = "dra-driver-controller-slices", "controller"

    def create(what: str, body: Body, refused: str = "") -> Write:
        return Write(what, by, "POST", SLICES, body, refused)

    yield create("publishes", slice_("new", DEFAULT_DRIVER_NAME))
    yield create("publishes NICs", slice_("new", RDMA_DRIVER_NAME))
    yield create("publishes for another driver", slice_("new", THEIRS), policy)
    yield create("publishes for all nodes", slice_("new", DEFAULT_DRIVER_NAME, None), policy)
    yield create("publishes into another pool", slice_("new", DEFAULT_DRIVER_NAME, NODE, "p"), policy)
    generation = {"spec": {"pool": {"generation": 2}}}
    yield _patch("changes its slice", by, f"{SLICES}/ours", generation)
    yield _patch("changes another driver's slice", by, f"{SLICES}/theirs", generation, policy)
    yield Write("deletes its slice", by, "DELETE", f"{SLICES}/ours", {})
    yield Write("deletes another driver's slice", by, "DELETE", f"{SLICES}/theirs", {}, policy)


def _pods() -> Iterator[Write]:
    policy, status = "dra-driver-controller-pods", "dra-driver-controller-pods-status"

    def spec(what: str, body: Body, refused: str = policy) -> Write:
        return _patch(what, "controller", f"{PODS}/gated", body, refused)

    def said(what: str, body: Body, refused: str = status) -> Write:
        return _patch(what, "controller", f"{PODS}/gated/status", body, refused)

    others = [{"name": "example.com/queue"}]
    yield spec("removes its gate", {"spec": {"schedulingGates": others}}, "")
    yield spec("removes another gate", {"spec": {"schedulingGates": [{"name": GATE}]}})
    yield spec("removes all gates", {"spec": {"schedulingGates": None}})
    image = {"containers": [{"name": "c", "image": "evil:1"}]}
    yield spec("changes the image", {"spec": {"schedulingGates": others, **image}})
    yield spec("narrows the nodes", {"spec": {"schedulingGates": others, "nodeSelector": {"a": "b"}}})
    tolerations = [{"key": "a", "operator": "Exists"}]
    yield spec("adds a toleration", {"spec": {"schedulingGates": others, "tolerations": tolerations}})
    ungated: Body = {"spec": {"schedulingGates": others}}
    yield spec("changes labels", ungated | {"metadata": {"labels": {"a": "c"}}})
    yield spec("adds a finalizer", ungated | {"metadata": {"finalizers": ["example.com/mine"]}})
    late = {"type": ALLOCATED_CONDITION, "status": "False", "reason": "FailedAllocation", "message": "m"}
    # A merge patch would replace the whole list, and with it the conditions of others.
    applied = {"apiVersion": "v1", "kind": "Pod", "status": {"conditions": [late]}}
    query = {"fieldManager": "controller", "force": "true"}
    path = f"{PODS}/gated/status"
    what = "writes a condition of its own"
    yield Write(what, "controller", "PATCH", path, applied, "", APPLY, query)
    yield said("removes the scheduler's condition", {"status": {"conditions": [late]}})
    yield said("names a node", {"status": {"nominatedNodeName": NODE}}, "")
    ready = {"type": "Ready", "status": "True"}
    yield said("writes the kubelet's condition", {"status": {"conditions": [late, ready]}})
    yield said("writes the phase", {"status": {"phase": "Failed"}})
    yield said("writes addresses", {"status": {"podIPs": [{"ip": "10.0.0.1"}], "podIP": "10.0.0.1"}})
    yield said("changes labels by the status", {"metadata": {"labels": {"a": "c"}}})


def _gates() -> Iterator[Write]:
    """Anybody's writes: whoever may write pods could have its own pods looked at before those of others."""
    policy, others = "dra-driver-gated-pods", [{"name": "example.com/queue"}]

    def gates(
        what: str, left: list[Body] | None, refused: str = "", name: str = "gated", **more: Any
    ) -> Write:
        return _patch(what, "admin", f"{PODS}/{name}", {"spec": {"schedulingGates": left}, **more}, refused)

    yield gates("takes the gate off a pod", others, policy)
    yield gates("takes all gates off a pod", None, policy)
    yield gates("takes another gate off a pod", [{"name": GATE}])
    yield gates("changes labels of a pod with the gate", [{"name": GATE}], metadata={"labels": {"a": "c"}})
    yield gates("takes the gate off a pod that is being deleted", others, name=ENDING)


def _nodes() -> Iterator[Write]:
    policy = "dra-driver-controller-nodes"

    def labels(what: str, labels: Body, refused: str = policy, **more: Any) -> Write:
        return _patch(
            what, "controller", f"{CORE}/nodes/{NODE}", {"metadata": {"labels": labels, **more}}, refused
        )

    note = {f"{DEFAULT_DRIVER_NAME}/node-labels": "dra-driver.dev/gpu.count,dra-driver.dev/gpu.model"}
    mine = {"dra-driver.dev/gpu.model": "A100", "dra-driver.dev/gpu.count": "3"}
    yield labels("writes its labels and notes them", mine, "", annotations=note)
    yield labels("removes what it has noted", {"dra-driver.dev/gpu.count": None}, "")
    yield labels("removes what others have set", {"nvidia.com/gpu.count": None})
    yield labels("writes a label of another list", {"nvidia.com/gpu.product": "A100"})
    yield labels("writes a foreign label", {"zone": "b"})
    yield labels("adds a foreign label", {"role": "infra"})
    yield labels("writes a foreign annotation", {}, annotations={"note": "y"})
    yield labels("removes a foreign annotation", {}, annotations={"note": None})
    yield labels("adds a finalizer", {}, finalizers=["example.com/mine"])
    path = f"{CORE}/nodes/{NODE}"
    yield _patch("cordons", "controller", path, {"spec": {"unschedulable": True}}, policy)
    taint = [{"key": "a", "effect": "NoExecute"}]
    yield _patch("taints", "controller", path, {"spec": {"taints": taint}}, policy)


def _entries() -> Iterator[Write]:
    policy = "dra-driver-plugin-claims"

    def apply(what: str, claim: str, devices: list[Body], refused: str = "") -> Write:
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": claim, "namespace": TENANT},
            "status": {"devices": devices},
        }
        query = {"fieldManager": "agent", "force": "true"}
        return Write(what, "agent", "PATCH", f"{CLAIMS}/{claim}/status", body, refused, APPLY, query)

    mine = entry(DEFAULT_DRIVER_NAME, NODE, "True")
    yield apply("says that its device is well", "ours", [mine])
    yield apply("speaks beside another driver", "mixed", [mine])
    yield apply("speaks for another driver", "mixed", [entry(THEIRS, NODE, "True", "nic-0")], policy)
    yield apply("speaks for another node", "elsewhere", [entry(DEFAULT_DRIVER_NAME, OTHER_NODE)], policy)

    def status(what: str, claim: str, body: Body) -> Write:
        return _status(what, claim, body, policy, "agent")

    yield status("removes another driver's entry", "mixed", {"devices": [mine]})
    yield status("allocates", "free", {"allocation": OURS})
    yield status("deallocates", "ours", {"allocation": None})
    yield status("reserves", "ours", {"reservedFor": [USER]})
    yield status("takes a reservation away", "reserved", {"reservedFor": None})
    yield status("changes its entry and reserves", "ours", {"devices": [mine], "reservedFor": [USER]})


def _inventories() -> Iterator[Write]:
    policy = "dra-driver-own-inventory"
    mine, theirs = (f"{INVENTORIES}/{name}.{DEFAULT_DRIVER_NAME}" for name in (NODE, OTHER_NODE))
    publishing = f"{INVENTORIES}/{NODE}.{RDMA_DRIVER_NAME}"

    def spec(what: str, path: str, refused: str = "", **fields: Any) -> Write:
        return _patch(what, "agent", path, {"spec": fields}, refused)

    def status(what: str, path: str, body: Body, refused: str = "") -> Write:
        return _patch(what, "agent", f"{path}/status", {"status": body}, refused)

    devices = [{"name": "gpu-0"}]
    yield spec("describes its node", mine, devices=devices)
    yield spec("describes another node", theirs, policy, devices=devices)
    yield spec("is to publish itself", mine, publisher="node")
    yield status("reports its registration", mine, {"registration": {"registered": True, "epoch": 1}})
    yield status("reports another node's registration", theirs, {"registration": {"epoch": 9}}, policy)
    gone = {"goneClaims": [{"uid": "u-1", "devices": [{"device": "gpu-0"}]}]}
    yield status("lists claims that are gone and hold its devices", mine, gone)
    yield status("lists claims that are gone and hold another node's devices", theirs, gone, policy)
    published = {"publication": {"epoch": 1, "generation": 7, "slices": ["theirs"]}}
    yield status("notes what was published", mine, published, policy)
    yield status("notes what it has published itself", publishing, published)
    lent = {"publication": {"lent": [{"unit": "gpu-0", "devices": ["gpu-0"]}]}}
    yield status("notes what an earlier version has lent", mine, lent, policy)
    yield status(
        "notes what an earlier version has lent of what it publishes itself", publishing, lent, policy
    )


def _events() -> Iterator[Write]:
    policy = "dra-driver-events"
    controller, agent = "dra-driver-controller", "dra-driver-kubelet-plugin"

    def create(what: str, by: str, component: str, kind: str, about: str, refused: str = "") -> Write:
        return Write(what, by, "POST", EVENTS, event("new", component, kind, about), refused)

    for kind in ("Node", "Pod", "ResourceClaim", "ResourceClaimTemplate", "DeviceInventory", "DevicePolicy"):
        yield create(f"speaks about a {kind}", "controller", controller, kind, "x")
    yield create("speaks about its node", "agent", agent, "Node", NODE)
    yield create("speaks about a pod", "agent", agent, "Pod", "gated")
    yield create("speaks about another node", "agent", agent, "Node", OTHER_NODE, policy)
    yield create("speaks about a Secret", "agent", agent, "Secret", "x", policy)
    yield create("speaks about a Deployment", "controller", controller, "Deployment", "x", policy)
    yield create("speaks as the kubelet", "agent", "kubelet", "Node", NODE, policy)
    yield create("speaks as the controller", "agent", controller, "Pod", "gated", policy)
    yield create("speaks as kube-scheduler", "controller", "default-scheduler", "Pod", "gated", policy)
    again = {"count": 2, "lastTimestamp": "2026-01-01T00:01:00Z"}
    yield _patch("counts its event", "controller", f"{EVENTS}/ours", again)
    yield _patch("counts its event", "agent", f"{EVENTS}/agents", again)
    yield _patch("counts the kubelet's event", "agent", f"{EVENTS}/theirs", again, policy)
    yield _patch("counts the controller's event", "agent", f"{EVENTS}/ours", again, policy)
    yield _patch("changes the text", "controller", f"{EVENTS}/ours", again | {"message": "other"})
    yield _patch("changes the reason", "controller", f"{EVENTS}/ours", {"reason": "Other"}, policy)
    yield _patch("changes the type", "controller", f"{EVENTS}/ours", {"type": "Normal"}, policy)
    yield _patch("changes the kubelet's text", "controller", f"{EVENTS}/theirs", {"message": "other"}, policy)
    stolen = {"source": {"component": controller}, "reportingComponent": controller}
    yield _patch("takes over an event", "controller", f"{EVENTS}/theirs", stolen, policy)


def _certificates() -> Iterator[Write]:
    """Of its Secret; what the API server trusts after the next upgrade is in there, too."""
    policy = "dra-driver-controller-certificates"

    def secret(what: str, body: Body, refused: str = policy) -> Write:
        return _patch(what, "controller", f"{SECRETS}/{CERTIFICATES}", body, refused)

    renewed = {"tls.crt": "ZA==", "tls.key": "ZQ=="}
    yield secret("renews the serving certificate", {"data": renewed}, "")
    yield secret("puts an authority in the place of the installation's", {"data": {"ca.crt": "ZA=="}})
    yield secret("replaces the authority's key", {"data": {**renewed, "ca.key": "ZA=="}})
    yield secret("removes the authority", {"data": {"ca.crt": None}})
    yield secret("adds something", {"data": {"other": "ZA=="}})
    yield secret("removes everything", {"data": None})
    yield secret("makes it immutable", {"immutable": True})
    until = {"annotations": {"dra-driver.dev/authority-until": "9999999999"}}
    yield secret("has the authority pass for a new one", {"metadata": until})
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "x"}
    yield secret("adds an owner, with whom it would be deleted", {"metadata": {"ownerReferences": [owner]}})
