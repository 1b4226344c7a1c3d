"""What volumes ask of nodes, against everything worked out anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.nodes.placement import Placements
from controller.allocate.decide.state.objects import Objects
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.storage import (
    BIND_COMPLETED,
    MOST_CONDITIONS,
    SELECTED_NODE,
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from dra_driver.nodefit.volumes import (
    StorageObject,
    User,
    VolumeFit,
    VolumeUsage,
    volume_needs,
    volumes_of,
)
from dra_driver.nodefit.volumes.matching import ClaimRequest, available_for, request_of
from dra_driver.structured.model.nodeselection import selector_matches_labels

Body = dict[str, Any]

NS = "tenant"
NODES = ("n0", "n1", "n2")
CLAIMS = ("a", "b", "c")
VOLUMES = ("va", "vb", "vc", "vd")
LABELS = {"n0": {"host": "n0", "zone": "x"}, "n1": {"host": "n1", "zone": "x"}, "n2": {"host": "n2"}}

nodes = st.sampled_from(NODES)
claims = st.sampled_from(CLAIMS)
volumes = st.sampled_from(VOLUMES)
priorities = st.sampled_from([0, 5, 9])
sizes = st.sampled_from(["1", "2", "3"])
modes = st.lists(st.sampled_from(["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]), max_size=2)
terms = st.lists(
    st.sampled_from(
        [
            {"matchExpressions": [{"key": "host", "operator": "In", "values": ["n0"]}]},
            {"matchExpressions": [{"key": "host", "operator": "In", "values": ["n1", "n2"]}]},
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]},
            {"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]},
        ]
    ),
    max_size=2,
)


@st.composite
def persistent_claims(draw: st.DrawFn) -> PersistentVolumeClaim:
    name = draw(claims)
    volume = draw(st.sampled_from(["", *VOLUMES]))
    annotations = {BIND_COMPLETED: "yes"} if volume and draw(st.integers(0, 3)) else {}
    if not volume and draw(st.integers(0, 4)) == 0:
        annotations[SELECTED_NODE] = draw(nodes)
    body = {
        "metadata": {"namespace": NS, "name": name, "uid": f"uid-{name}", "annotations": annotations},
        "spec": {
            "volumeName": volume,
            "storageClassName": draw(st.sampled_from(["local", "made"])),
            "accessModes": draw(modes),
            "resources": {"requests": {"storage": draw(sizes)}},
        },
    }
    return codec.convert(PersistentVolumeClaim, body)


@st.composite
def persistent_volumes(draw: st.DrawFn) -> PersistentVolume:
    name = draw(volumes)
    affinity = draw(st.none() | terms)
    kept = draw(st.none() | claims)
    body: Body = {
        "metadata": {"name": name, "labels": draw(st.sampled_from([{}, {"kind": "fast"}]))},
        "spec": {
            "capacity": {"storage": draw(sizes)},
            "accessModes": draw(modes),
            "storageClassName": draw(st.sampled_from(["local", "made"])),
            "csi": {"driver": "d", "volumeHandle": draw(st.sampled_from(["h1", "h2", "h3"]))},
        },
        "status": {"phase": draw(st.sampled_from(["Available", "Available", "Bound"]))},
    }
    if affinity is not None:
        body["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": affinity}}
    if kept is not None and draw(st.booleans()):
        body["spec"]["claimRef"] = {"namespace": NS, "name": kept}
    return codec.convert(PersistentVolume, body)


@st.composite
def classes(draw: st.DrawFn) -> StorageClass:
    name = draw(st.sampled_from(["local", "made"]))
    provisioner = "kubernetes.io/no-provisioner" if name == "local" else "d"
    mode = "Immediate" if draw(st.integers(0, 4)) == 0 else "WaitForFirstConsumer"
    body = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}
    return codec.convert(StorageClass, body)


@st.composite
def csi_nodes(draw: st.DrawFn) -> CSINode:
    drivers = (
        [{"name": "d", "allocatable": {"count": draw(st.integers(0, 3))}}] if draw(st.booleans()) else []
    )
    return codec.convert(CSINode, {"metadata": {"name": draw(nodes)}, "spec": {"drivers": drivers}})


@st.composite
def attachments(draw: st.DrawFn) -> VolumeAttachment:
    spec = {
        "attacher": "d",
        "nodeName": draw(nodes),
        "source": {"persistentVolumeName": draw(volumes)},
    }
    name = draw(st.sampled_from(["t1", "t2"]))
    return codec.convert(VolumeAttachment, {"metadata": {"name": name}, "spec": spec})


objects = st.one_of(persistent_claims(), persistent_volumes(), classes(), csi_nodes(), attachments())
used = st.lists(claims, min_size=1, max_size=2)


def pod_of(name: str, of: list[str], priority: int = 0) -> Pod:
    named = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": c}} for i, c in enumerate(of)]
    body = {
        "metadata": {"namespace": NS, "name": name, "uid": name},
        "spec": {"volumes": named, "priority": priority},
    }
    return codec.convert(Pod, body)


def node_of(name: str) -> Node:
    return codec.convert(Node, {"metadata": {"name": name, "labels": LABELS[name]}})


def answers(usage: VolumeUsage, pod: Pod) -> object:
    needs = volume_needs(pod, usage)
    fit = VolumeFit(needs, usage, LABELS.__getitem__)
    each = [(fit.problem(node_of(n)), fit.problem(node_of(n), pod.spec.priority)) for n in NODES]
    return needs.problem or each


changes = st.one_of(
    objects.map(lambda item: ("put", item)),
    objects.map(lambda item: ("remove", item)),
    st.tuples(st.sampled_from(["p0", "p1", "p2"]), nodes, used, priorities, st.booleans()).map(
        lambda user: ("add", user)
    ),
    st.sampled_from(["p0", "p1", "p2"]).map(lambda pod: ("discard", pod)),
)


@given(st.lists(objects, max_size=8), st.lists(changes, max_size=25), used, priorities)
def test_changes_lead_to_what_everything_at_once_leads_to(
    first: list[StorageObject], later: list[tuple[str, Any]], of: list[str], priority: int
) -> None:
    usage = VolumeUsage()
    known: dict[tuple[type[Any], ObjectKey], StorageObject] = {}
    users: dict[Uid, User] = {}
    pod = pod_of("asked", of, priority)
    for what, change in [*(("put", item) for item in first), *later]:
        if what == "put":
            usage.put(change)
            known[type(change), change.key] = change
        elif what == "remove":
            usage.remove(type(change), change.key)
            known.pop((type(change), change.key), None)
        elif what == "add":
            name, node, named, level, bound = change
            usage.discard(Uid(name))
            users.pop(Uid(name), None)
            user = User(node, volumes_of(pod_of(name, named)), level, bound)
            usage.add(Uid(name), user)
            users[Uid(name)] = user
        else:
            usage.discard(Uid(change))
            users.pop(Uid(change), None)
        answers(usage, pod)  # what is kept of it must not outlive the next change
    fresh = VolumeUsage()
    for item in known.values():
        fresh.put(item)
    for uid, user in users.items():
        fresh.add(uid, user)
    assert answers(usage, pod) == answers(fresh, pod)
    assert volume_needs(pod, usage) == volume_needs(pod, fresh)


def placed(name: str, of: list[str], priority: int, node: str = "") -> Pod:
    pod = pod_of(name, of, priority)
    return replace(pod, spec=replace(pod.spec, node_name=node))


def seen_at_once(
    labels: dict[str, Body], known: Iterable[StorageObject], there: Iterable[Pod]
) -> tuple[Objects[Node], NodeUsage, Placements]:
    """Return what knows all of this."""
    all_nodes: Objects[Node] = Objects()
    usage = NodeUsage()
    placements = Placements(all_nodes, usage)
    placements.know_volumes(True)
    for name, of in labels.items():
        all_nodes.put(codec.convert(Node, {"metadata": {"name": name, "labels": of}}))
        placements.changed(name)
    for item in known:
        placements.storage_seen(item)
    for pod in there:
        usage.seen(pod)
    return all_nodes, usage, placements


steps = st.one_of(
    objects.map(lambda item: ("put", item)),
    objects.map(lambda item: ("remove", item)),
    st.tuples(st.sampled_from(["p0", "p1"]), used, priorities, nodes).map(lambda pod: ("pod", placed(*pod))),
    st.sampled_from(["p0", "p1"]).map(lambda name: ("gone", name)),
    st.tuples(nodes, st.sampled_from(["x", "y"])).map(lambda label: ("label", label)),
)


@given(st.lists(objects, max_size=8), st.lists(steps, max_size=20), used, priorities)
def test_candidates_are_those_of_a_look_at_all_nodes(
    first: list[StorageObject], later: list[tuple[str, Any]], of: list[str], priority: int
) -> None:
    labels: dict[str, Body] = {name: dict(LABELS[name]) for name in NODES}
    known: dict[tuple[type[Any], ObjectKey], StorageObject] = {(type(i), i.key): i for i in first}
    there: dict[str, Pod] = {}
    all_nodes, usage, placements = seen_at_once(labels, known.values(), ())
    asked = placed("asked", of, priority)
    for what, change in later:
        if what == "put":
            placements.storage_seen(change)
            known[type(change), change.key] = change
        elif what == "remove":
            placements.storage_gone(type(change), change.key)
            known.pop((type(change), change.key), None)
        elif what == "pod":
            usage.seen(change)
            there[change.metadata.name] = change
        elif what == "gone":
            if (gone := there.pop(change, None)) is not None:
                usage.gone(gone)
        else:
            labels[change[0]]["zone"] = change[1]
            all_nodes.put(codec.convert(Node, {"metadata": {"name": change[0], "labels": labels[change[0]]}}))
            placements.changed(change[0])
        found = placements.candidates(asked)
        anew = seen_at_once(labels, known.values(), there.values())[2].candidates(asked)
        assert (found.nodes, found.evicting) == (anew.nodes, anew.evicting)
        assert dict(found.rejected) == dict(anew.rejected)


def one_by_one(
    request: ClaimRequest, there: list[PersistentVolume], labels: dict[str, str], excluded: set[str]
) -> str:
    """Return what ``FindMatchingVolume`` finds, by a look at each volume."""
    best: PersistentVolume | None = None
    for volume in sorted(there, key=lambda v: v.metadata.name):
        affinity = volume.spec.node_affinity
        selector = affinity.required if affinity is not None else None
        matches = selector is None or selector_matches_labels(selector, labels)
        if volume.metadata.name in excluded or volume.storage_class != request.storage_class:
            continue
        if volume.size < request.size:
            continue
        if volume.metadata.name in request.kept:
            return volume.metadata.name if matches else ""
        if volume.spec.claim_ref is not None or volume.status.phase != "Available" or not matches:
            continue
        if not set(request.modes) <= set(volume.spec.access_modes):
            continue
        if best is None or volume.size < best.size:
            best = volume
    return "" if best is None else best.metadata.name


@given(
    st.lists(persistent_volumes(), max_size=8),
    persistent_claims(),
    st.sampled_from(NODES),
    st.sets(volumes, max_size=2),
)
def test_a_claim_gets_the_volume_that_a_look_at_each_one_finds(
    there: list[PersistentVolume], claim: PersistentVolumeClaim, node: str, excluded: set[str]
) -> None:
    usage = VolumeUsage()
    for volume in there:
        usage.put(volume)
    last = {v.metadata.name: v for v in there}
    request = request_of(claim, usage.objects)
    excluded -= set(request.kept)
    found = available_for(request, usage.objects).smallest(LABELS[node], excluded)
    assert found == one_by_one(request, list(last.values()), LABELS[node], excluded)


def test_hostile_volumes_are_bounded() -> None:
    """What tenants write into claims, and drivers into volumes, is kept in bounds."""
    long = "x" * 300_000
    many = {f"label-{i}": "v" for i in range(5_000)}
    expressions = [{"key": f"k{i}", "operator": "In", "values": [f"v{i}"]} for i in range(5_000)]
    claim = codec.convert(
        PersistentVolumeClaim,
        {
            "metadata": {"name": "a", "annotations": {SELECTED_NODE: long, "b": long}, "labels": many},
            "spec": {
                "accessModes": ["ReadWriteOnce"] * 5_000,
                "volumeName": long,
                "storageClassName": long,
                "selector": {"matchExpressions": expressions},
                "resources": {"requests": {f"r{i}": "1" for i in range(5_000)}, "limits": {}},
            },
        },
    )
    assert claim.left_out
    assert len(codec.encode(claim)) < 2_000
    volume = codec.convert(
        PersistentVolume,
        {
            "metadata": {"name": "v", "labels": many, "annotations": {"b": long}},
            "spec": {
                "storageClassName": "s",
                "csi": {"driver": "d", "volumeHandle": long, "volumeAttributes": many},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}},
            },
        },
    )
    assert volume.left_out
    assert len(codec.encode(volume)) < 2_000
    pod = pod_of("p", [f"c{i}" for i in range(20_000)])
    assert len(pod.spec.volumes) == 256


def test_what_is_left_out_keeps_no_pod_from_a_node() -> None:
    usage = VolumeUsage()
    expressions = [{"key": f"k{i}", "operator": "Exists"} for i in range(MOST_CONDITIONS)]
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}
    usage.put(
        codec.convert(PersistentVolume, {"metadata": {"name": "va"}, "spec": {"nodeAffinity": affinity}})
    )
    claim = {"namespace": NS, "name": "a", "annotations": {BIND_COMPLETED: "yes"}}
    usage.put(codec.convert(PersistentVolumeClaim, {"metadata": claim, "spec": {"volumeName": "va"}}))
    assert answers(usage, pod_of("p", ["a"])) == [("", "")] * len(NODES)
