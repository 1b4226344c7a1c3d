"""Pods with volumes, and one node for each of them.

What is expected is what the real kube-scheduler of Kubernetes 1.36 does, which ``tests/scheduling`` asks. In
all texts ``@`` stands for the name of the case and of its node, ``$pod`` for the UID of the pod.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dra_driver.api.storage import BIND_COMPLETED, SELECTED_NODE

__all__ = ["DRIVER", "VOLUME_CASES", "VolumeCase"]

Body = dict[str, Any]

DRIVER: Final = "disks.example.com"
HOST: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
BETA_ZONE: Final = "failure-domain.beta.kubernetes.io/zone"

MISSING: Final = 'persistentvolumeclaim "@-a" not found'
IMMEDIATE: Final = "pod has unbound immediate PersistentVolumeClaims"
AFFINITY: Final = "didn't match PersistentVolume's node affinity"
NO_VOLUME: Final = "didn't find available persistent volumes to bind"
NO_ZONE: Final = "had no available volume zone"
FULL: Final = "exceed max volume count"
IN_USE: Final = "ReadWriteOncePod access mode already in-use by another pod"
NO_DISK: Final = "had no available disk"


@dataclass(frozen=True, slots=True)
class VolumeCase:
    """One pod and the node that it selects.

    Attributes:
        name: of the case.
        volumes: of the pod.
        objects: storage objects, each with its kind.
        residents: pods: their volumes, priority class and node.
        labels: of the node.
        outcome: ``bound``, ``evicts`` or ``refused``.
        reason: part of what is said; empty where the pod is bound.
        priority: class of the pod.
    """

    name: str
    volumes: tuple[Body, ...]
    objects: tuple[Body, ...] = ()
    residents: tuple[tuple[tuple[Body, ...], str, str], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    outcome: str = "bound"
    reason: str = ""
    priority: str = ""

    def filled(self, value: Any, pod: str = "$pod") -> Any:
        """Return a value with the names filled in."""
        return json.loads(json.dumps(value).replace("@", self.name).replace("$pod", pod))


def uses(*names: str) -> tuple[Body, ...]:
    """Return volumes with these claims."""
    return tuple(
        {"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(names)
    )


def made(name: str = "data") -> Body:
    """Return a volume with a claim that is made for the pod."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": {**spec, "storageClassName": "@-c"}}}}


def claim(name: str = "@-a", volume: str = "", *, bound: bool | None = None, **more: Any) -> Body:
    """Return a claim, bound where it names a volume unless that is denied."""
    is_bound = bool(volume) if bound is None else bound
    annotations = {**({BIND_COMPLETED: "yes"} if is_bound else {}), **more.pop("annotations", {})}
    metadata = {"name": name, "annotations": annotations, **more.pop("metadata", {})}
    phase = more.pop("phase", "Bound" if is_bound else "Pending")
    spec = {
        "accessModes": more.pop("modes", ["ReadWriteOnce"]),
        "resources": {"requests": {"storage": more.pop("size", "1Gi")}},
        "storageClassName": more.pop("of", "@-c"),
        **({"volumeName": volume} if volume else {}),
        **more,
    }
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": phase},
    }


def volume(name: str = "@-v", *, phase: str = "Available", **more: Any) -> Body:
    """Return a volume of the driver, or with another source."""
    affinity = more.pop("affinity", None)
    source = more.pop("source", {"csi": {"driver": DRIVER, "volumeHandle": name}})
    metadata = {"name": name, "labels": more.pop("labels", {})}
    spec = {
        "accessModes": more.pop("modes", ["ReadWriteOnce"]),
        "capacity": {"storage": more.pop("size", "1Gi")},
        "storageClassName": more.pop("of", "@-c"),
        **({"nodeAffinity": {"required": {"nodeSelectorTerms": affinity}}} if affinity else {}),
        **source,
        **more,
    }
    return {"kind": "PersistentVolume", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def kept_for(name: str) -> Body:
    """Return the claimRef for a claim that is not there yet."""
    return {"claimRef": {"kind": "PersistentVolumeClaim", "namespace": "tenant", "name": name}}


def storage_class(*, waits: bool = True, provisioner: str = DRIVER, name: str = "@-c", **more: Any) -> Body:
    """Return a class."""
    mode = "WaitForFirstConsumer" if waits else "Immediate"
    return {
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
        **more,
    }


def limit(count: int | None, driver: str = DRIVER) -> Body:
    """Return the CSINode of the node with one driver."""
    allocatable = {} if count is None else {"allocatable": {"count": count}}
    drivers = [{"name": driver, "nodeID": "n", "topologyKeys": [], **allocatable}]
    return {"kind": "CSINode", "metadata": {"name": "@"}, "spec": {"drivers": drivers}}


def attachment(volume_name: str, name: str = "@-t", node: str = "@") -> Body:
    """Return an attachment of a volume to the node."""
    spec = {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume_name}}
    return {"kind": "VolumeAttachment", "metadata": {"name": name}, "spec": spec}


def term(key: str, operator: str, *values: str) -> Body:
    """Return a term of node affinity."""
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def resident(*volumes: Body, priority: str = "", node: str = "@") -> tuple[tuple[Body, ...], str, str]:
    """Return a pod that is bound already."""
    return volumes, priority, node


def bound(number: int = 1, **more: Any) -> tuple[Body, ...]:
    """Return so many claims with their volumes: ``@-a`` with ``@-va``, and so on."""
    found: list[Body] = []
    for letter in "abcdef"[:number]:
        found += [volume(f"@-v{letter}", phase="Bound", **more), claim(f"@-{letter}", f"@-v{letter}")]
    return tuple(found)


HERE: Final = [term(HOST, "In", "@")]
ELSEWHERE: Final = [term(HOST, "In", "another")]
LOCAL: Final = storage_class(provisioner="kubernetes.io/no-provisioner")
TOPOLOGY: Final = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}]
A: Final = uses("@-a")


def refused(name: str, reason: str, *objects: Body, volumes: tuple[Body, ...] = A, **more: Any) -> VolumeCase:
    """Return a case of a pod that the node does not suit."""
    return VolumeCase(name, volumes, objects, outcome="refused", reason=reason, **more)


def fits(name: str, *objects: Body, volumes: tuple[Body, ...] = A, **more: Any) -> VolumeCase:
    """Return a case of a pod that the node suits."""
    return VolumeCase(name, volumes, objects, **more)


def evicts(name: str, reason: str, *objects: Body, volumes: tuple[Body, ...] = A, **more: Any) -> VolumeCase:
    """Return a case of a pod that the node suits without pods of lower priority."""
    return VolumeCase(name, volumes, objects, outcome="evicts", reason=reason, priority="high", **more)


GCE: Final[Body] = {"name": "g", "gcePersistentDisk": {"pdName": "@-d"}}
GCE_READ: Final[Body] = {"name": "g", "gcePersistentDisk": {"pdName": "@-d", "readOnly": True}}
AWS_READ: Final[Body] = {"name": "g", "awsElasticBlockStore": {"volumeID": "@-d", "readOnly": True}}
_ISCSI: Final = {"targetPortal": "10.0.0.1", "lun": 0, "readOnly": True}
RBD: Final[Body] = {"name": "r", "rbd": {"monitors": ["m1", "m2"], "image": "@"}}
RBD_TOO: Final[Body] = {"name": "r", "rbd": {"monitors": ["m2", "m3"], "image": "@"}}
RBD_POOL: Final[Body] = {"name": "r", "rbd": {"monitors": ["m2"], "image": "@", "pool": "other"}}


def iscsi(name: str) -> Body:
    """Return a volume that is only read."""
    return {"name": "i", "iscsi": {**_ISCSI, "iqn": f"iqn.2001-04.com.example:{name}"}}


LOW_A: Final = resident(*A, priority="low")
LOW_B: Final = resident(*uses("@-b"), priority="low")


def made_for(name: str, uid: str = "$pod", volume_name: str = "") -> Body:
    """Return a claim that was made for the pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "@", "uid": uid, "controller": True}
    return claim(name, volume_name, metadata={"ownerReferences": [owner]})


VOLUME_CASES: Final = (
    # --- claims that keep a pod from all nodes --------------------------------------------------------------
    refused("missing", MISSING),
    refused(
        "missing-one-of-two",
        'persistentvolumeclaim "@-x" not found',
        *bound(),
        volumes=uses("@-a", "@-x"),
    ),
    refused("deleting", 'persistentvolumeclaim "@-a" is being deleted', *bound(), {"kind": "delete"}),
    refused(
        "lost",
        'persistentvolumeclaim "@-a" bound to non-existent persistentvolume "@-v"',
        claim(volume="@-v", phase="Lost"),
    ),
    refused("immediate", IMMEDIATE, storage_class(waits=False), claim()),
    refused("no-class", IMMEDIATE, claim(of="")),
    refused("class-missing", IMMEDIATE, claim()),
    refused("named-but-not-bound", IMMEDIATE, storage_class(), claim(volume="@-v", bound=False), volume()),
    refused("volume-missing", 'persistentvolume "@-v" not found', claim(volume="@-v")),
    refused("immediate-beside-bound", IMMEDIATE, *bound(), claim("@-x"), volumes=uses("@-a", "@-x")),
    # --- bound volumes --------------------------------------------------------------------------------------
    fits("anywhere", *bound()),
    fits("of-this-node", *bound(affinity=HERE)),
    refused("of-another-node", AFFINITY, *bound(affinity=ELSEWHERE)),
    fits("one-term-of-two", *bound(affinity=[*ELSEWHERE, *HERE])),
    fits("label-absent", *bound(affinity=[term("disk", "NotIn", "slow")])),
    refused("label-needed", AFFINITY, *bound(affinity=[term("disk", "Exists")])),
    fits("label-greater", *bound(affinity=[term("slots", "Gt", "3")]), labels={"slots": "4"}),
    refused(
        "label-not-greater", AFFINITY, *bound(affinity=[term("slots", "Gt", "4")]), labels={"slots": "4"}
    ),
    fits("zone", *bound(labels={ZONE: "a"}), labels={ZONE: "a"}),
    refused("other-zone", NO_ZONE, *bound(labels={ZONE: "b"}), labels={ZONE: "a"}),
    fits("zones", *bound(labels={ZONE: "b__a"}), labels={ZONE: "a"}),
    fits("node-without-zone", *bound(labels={ZONE: "b"})),
    refused(
        "node-with-region-only",
        NO_ZONE,
        *bound(labels={ZONE: "b"}),
        labels={"topology.kubernetes.io/region": "r"},
    ),
    fits("old-zone-label", *bound(labels={BETA_ZONE: "a"}), labels={ZONE: "a"}),
    refused("old-zone-label-of-another", NO_ZONE, *bound(labels={BETA_ZONE: "b"}), labels={ZONE: "a"}),
    fits("zone-ill-formed", *bound(labels={ZONE: "b____c"}), labels={ZONE: "a"}),
    # --- claims that wait for the pod -----------------------------------------------------------------------
    fits("to-be-made", storage_class(), claim()),
    fits("topology", storage_class(allowedTopologies=TOPOLOGY), claim(), labels={ZONE: "b"}),
    refused(
        "other-topology", NO_VOLUME, storage_class(allowedTopologies=TOPOLOGY), claim(), labels={ZONE: "c"}
    ),
    refused("no-topology", NO_VOLUME, storage_class(allowedTopologies=TOPOLOGY), claim()),
    fits("selected-here", storage_class(), claim(annotations={SELECTED_NODE: "@"})),
    refused("selected-elsewhere", NO_VOLUME, storage_class(), claim(annotations={SELECTED_NODE: "x"})),
    refused("none-to-bind", NO_VOLUME, LOCAL, claim()),
    fits("one-to-bind", LOCAL, claim(), volume(affinity=HERE)),
    fits("larger-one", LOCAL, claim(), volume(size="2Gi")),
    refused("smaller-one", NO_VOLUME, LOCAL, claim(), volume(size="1023Mi")),
    refused("one-on-another-node", NO_VOLUME, LOCAL, claim(), volume(affinity=ELSEWHERE)),
    refused("one-of-another-class", NO_VOLUME, LOCAL, claim(), volume(of="@-other")),
    refused("one-of-blocks", NO_VOLUME, LOCAL, claim(), volume(volumeMode="Block")),
    refused("other-modes", NO_VOLUME, LOCAL, claim(modes=["ReadWriteMany"]), volume()),
    fits("more-modes", LOCAL, claim(), volume(modes=["ReadWriteMany", "ReadWriteOnce"])),
    refused("one-released", NO_VOLUME, LOCAL, claim(), volume(phase="Released")),
    refused("one-kept-for-another", NO_VOLUME, LOCAL, claim(), volume(**kept_for("@-b"))),
    fits("one-kept-for-it", LOCAL, claim(), volume(phase="Pending", **kept_for("@-a"))),
    refused(
        "kept-for-it-elsewhere",
        NO_VOLUME,
        LOCAL,
        claim(),
        volume(phase="Pending", affinity=ELSEWHERE, **kept_for("@-a")),
        volume("@-w", affinity=HERE),
    ),
    fits(
        "selector", LOCAL, claim(selector={"matchLabels": {"kind": "fast"}}), volume(labels={"kind": "fast"})
    ),
    refused("other-selector", NO_VOLUME, LOCAL, claim(selector={"matchLabels": {"kind": "fast"}}), volume()),
    refused("one-for-two", NO_VOLUME, LOCAL, claim(), claim("@-b"), volume(), volumes=uses("@-a", "@-b")),
    fits("two-for-two", LOCAL, claim(), claim("@-b"), volume(), volume("@-w"), volumes=uses("@-a", "@-b")),
    fits(
        "the-small-one-for-the-small-one",
        LOCAL,
        claim(size="2Gi"),
        claim("@-b"),
        volume(),
        volume("@-w", size="2Gi"),
        volumes=uses("@-a", "@-b"),
    ),
    refused(
        "both-are-large",
        NO_VOLUME,
        LOCAL,
        claim(size="2Gi"),
        claim("@-b", size="2Gi"),
        volume(),
        volume("@-w", size="2Gi"),
        volumes=uses("@-a", "@-b"),
    ),
    fits("one-there-one-made", storage_class(), claim(), claim("@-b"), volume(), volumes=uses("@-a", "@-b")),
    # --- how many can be attached ---------------------------------------------------------------------------
    fits("limit", *bound(), limit(1)),
    refused("limit-of-none", FULL, *bound(), limit(0)),
    fits("no-limit", *bound(), limit(None), residents=(resident(*uses("@-b")),)),
    refused("limit-reached", FULL, *bound(2), limit(1), residents=(resident(*uses("@-b")),)),
    fits("limit-not-reached", *bound(2), limit(2), residents=(resident(*uses("@-b")),)),
    fits("same-volume", *bound(), limit(1), residents=(resident(*A),)),
    fits(
        "limit-of-another-driver",
        *bound(2),
        limit(1, "other.example.com"),
        residents=(resident(*uses("@-b")),),
    ),
    refused("two-of-the-pod", FULL, *bound(2), limit(1), volumes=uses("@-a", "@-b")),
    fits("named-twice", *bound(), limit(1), volumes=uses("@-a", "@-a")),
    refused(
        "several-residents",
        FULL,
        *bound(4),
        limit(3),
        residents=(resident(*uses("@-b", "@-c")), resident(*uses("@-c", "@-d"))),
    ),
    fits("residents-share", *bound(3), limit(2), residents=(resident(*uses("@-b")), resident(*uses("@-b")))),
    refused("to-be-made-counts", FULL, storage_class(), claim(), limit(0)),
    refused(
        "to-be-made-beside-others",
        FULL,
        *bound(2)[2:],
        storage_class(),
        claim(),
        limit(1),
        residents=(resident(*uses("@-b")),),
    ),
    refused("attached-to-nobody", FULL, *bound(2), limit(1), attachment("@-vb")),
    fits("attached-and-used", *bound(2), limit(2), attachment("@-vb"), residents=(resident(*uses("@-b")),)),
    refused("attached-for-nobody-yet", FULL, *bound(), limit(1), attachment("@-va")),
    fits("attached-elsewhere", *bound(2), limit(1), attachment("@-vb", node="another")),
    fits("attached-and-gone", *bound(), limit(1), attachment("@-none")),
    evicts("attach-limit-evicts", FULL, *bound(2), limit(1), residents=(LOW_B,)),
    refused("equal-priority-stays", FULL, *bound(2), limit(1), residents=(LOW_B,), priority="low"),
    refused(
        "attached-whoever-leaves",
        FULL,
        *bound(2),
        limit(1),
        attachment("@-vb"),
        residents=(LOW_B,),
        priority="high",
    ),
    fits(
        "of-the-pod-itself",
        limit(0),
        volumes=({"name": "i", "csi": {"driver": DRIVER}},),
    ),
    # --- claims that are made for the pod -------------------------------------------------------------------
    refused(
        "not-made-yet",
        "waiting for ephemeral volume controller to create the persistentvolumeclaim",
        volumes=(made(),),
    ),
    fits("made", storage_class(), made_for("@-data"), volumes=(made(),)),
    refused("made-counts", FULL, storage_class(), made_for("@-data"), limit(0), volumes=(made(),)),
    refused(
        "made-for-another",
        "was not created for pod",
        storage_class(),
        made_for("@-data", "1"),
        volumes=(made(),),
    ),
    refused(
        "made-and-volume-missing",
        "one or more pvc(s) bound to non-existent pv(s)",
        made_for("@-data", volume_name="@-v"),
        volumes=(made(),),
    ),
    # --- claims for one pod, disks --------------------------------------------------------------------------
    fits("one-pod", volume("@-va", phase="Bound"), claim(volume="@-va", modes=["ReadWriteOncePod"])),
    refused(
        "one-pod-in-use",
        IN_USE,
        volume("@-va", phase="Bound"),
        claim(volume="@-va", modes=["ReadWriteOncePod"]),
        residents=(resident(*A),),
    ),
    evicts(
        "one-pod-evicts",
        IN_USE,
        volume("@-va", phase="Bound"),
        claim(volume="@-va", modes=["ReadWriteOncePod"]),
        residents=(LOW_A,),
    ),
    refused(
        "one-pod-in-use-elsewhere",
        IN_USE,
        volume("@-va", phase="Bound"),
        claim(volume="@-va", modes=["ReadWriteOncePod"]),
        residents=(resident(*A, priority="low", node="elsewhere"),),
        priority="high",
    ),
    refused("disk-written", NO_DISK, volumes=(GCE,), residents=(resident(GCE_READ),)),
    fits("disk-read", volumes=(GCE_READ,), residents=(resident(GCE_READ),)),
    refused("disk-for-one", NO_DISK, volumes=(AWS_READ,), residents=(resident(AWS_READ),)),
    evicts("disk-evicts", NO_DISK, volumes=(GCE,), residents=(resident(GCE, priority="low"),)),
    fits("iscsi-read", volumes=(iscsi("@"),), residents=(resident(iscsi("@")),)),
    refused("rbd", NO_DISK, volumes=(RBD,), residents=(resident(RBD_TOO),)),
    fits("rbd-pool", volumes=(RBD,), residents=(resident(RBD_POOL),)),
)
