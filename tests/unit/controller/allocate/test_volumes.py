"""Pods with volumes: none holds devices where its volumes cannot be used."""

from __future__ import annotations

import asyncio
from typing import Any

import virtual_time
from controller_harness import NS, Harness, claim, cluster_of, controlling, pod, run
from fake_client import FakeClient
from forked_worker import ForkedWorker
from structlog.testing import capture_logs
from without_storage import refuse_storage
from worker_audit import Bench

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import ObjectSeen, VolumesKnown
from controller.allocate.worker.wire import Frames, change_of, frame_of_change
from dra_driver.api import codec
from dra_driver.api.core import NODES, PODS
from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.storage import (
    BIND_COMPLETED,
    CSI_NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    CSINode,
)

DRIVER = "disks.example.com"
MISSING = 'persistentvolumeclaim "data" not found'
LATER = 5.0


def using(*names: str) -> dict[str, Any]:
    """Return the part of a pod's spec that uses these PersistentVolumeClaims."""
    of = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": n}} for i, n in enumerate(names)]
    return {"volumes": of}


def waiting_pod(cluster: FakeClient, name: str, *volumes: str, **more: Any) -> None:
    """Make a pod that wants one device and uses volumes; its claim has its name."""
    claim(cluster, name)
    pod(cluster, name, name, **using(*volumes), **more)


def bound_claim(cluster: FakeClient, name: str, *, node: str = "") -> None:
    """Make a PersistentVolumeClaim that is bound to a volume, of one node perhaps."""
    size = {"storage": "1Gi"}
    volume: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": size,
        "csi": {"driver": DRIVER, "volumeHandle": f"handle-{name}"},
    }
    if node:
        term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        volume["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
    cluster.put(PERSISTENT_VOLUMES, {"metadata": {"name": f"pv-{name}"}, "spec": volume})
    metadata = {"name": name, "namespace": NS, "annotations": {BIND_COMPLETED: "yes"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": size}, "volumeName": f"pv-{name}"}
    cluster.put(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": spec})


def unbound_claim(cluster: FakeClient, name: str, of: str, **spec: Any) -> None:
    """Make a PersistentVolumeClaim that is not bound."""
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": name, "namespace": NS}, "spec": {**asked, "storageClassName": of, **spec}}
    cluster.put(PERSISTENT_VOLUME_CLAIMS, body)


def storage_class(cluster: FakeClient, name: str, *, waits: bool = True, provisioner: str = DRIVER) -> None:
    """Make a StorageClass."""
    mode = "WaitForFirstConsumer" if waits else "Immediate"
    body = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}
    cluster.put(STORAGE_CLASSES, body)


def limits(cluster: FakeClient, **nodes: int) -> None:
    """Say how many volumes can be attached to nodes."""
    for name, count in nodes.items():
        drivers = [{"name": DRIVER, "nodeID": name, "topologyKeys": None, "allocatable": {"count": count}}]
        cluster.put(CSI_NODES, {"metadata": {"name": name}, "spec": {"drivers": drivers}})


def nodes_of(h: Harness, *names: str) -> list[str]:
    """Return the node of each claim; empty where it has none."""
    return [next((pool for pool, _ in h.devices(name)), "") for name in names]


# --- volumes that keep a pod from all nodes -----------------------------------------------------------------


def test_a_pod_with_a_typo_holds_nothing_until_its_claim_is_there() -> None:
    cluster = cluster_of(n1=(40,))
    waiting_pod(cluster, "p", "data")
    waiting_pod(cluster, "q")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(LATER)
        assert nodes_of(h, "p", "q") == ["", "n1"]
        assert h.reason("p") == ("WaitingForVolumes", MISSING)
        assert h.events("WaitingForVolumes") == [MISSING]
        assert h.gates("p")
        cluster.remove(PODS, "q", NS)
        h.deallocate("q")
        bound_claim(cluster, "data")
        await h.quiet()
        assert nodes_of(h, "p") == ["n1"]
        assert not h.gates("p")

    run(cluster, scenario)


def test_the_process_that_decides_knows_volumes_too() -> None:
    cluster = cluster_of(n1=(40,), n2=(40,))
    limits(cluster, n1=0, n2=1)
    bound_claim(cluster, "data")
    waiting_pod(cluster, "p", "data")

    async def main() -> None:
        answers_of = Bench(ForkedWorker.start).answers_of()
        async with asyncio.timeout(60), controlling(cluster, answers_of) as h:
            while h.gates("p"):
                await asyncio.sleep(0.05)
            assert nodes_of(h, "p") == ["n2"]

    asyncio.run(main())


def test_many_of_them_are_not_looked_at_again_and_again() -> None:
    cluster = cluster_of(n1=(40,))
    for i in range(50):
        waiting_pod(cluster, f"p{i}", f"data-{i}")

    async def scenario(h: Harness) -> None:
        before = h.decisions()
        for i in range(5):
            waiting_pod(cluster, f"q{i}")
            await h.quiet()
            cluster.remove(PODS, f"q{i}", NS)
            h.deallocate(f"q{i}")
            await h.quiet()
        assert h.decisions() - before < 50

    run(cluster, scenario)


def test_what_keeps_it_from_all_nodes_is_said_in_the_words_of_kube_scheduler() -> None:
    cluster = cluster_of(n1=(40,) * 8)
    storage_class(cluster, "now", waits=False)
    unbound_claim(cluster, "unbound", "now")
    unbound_claim(cluster, "of-no-class", "none")
    bound_claim(cluster, "leaving")
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/f"]}
    cluster.edit(PERSISTENT_VOLUME_CLAIMS, "leaving", {"metadata": leaving}, NS)
    bound_claim(cluster, "lost")
    cluster.remove(PERSISTENT_VOLUMES, "pv-lost")
    for name in ("unbound", "of-no-class", "leaving", "lost"):
        waiting_pod(cluster, f"p-{name}", name)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(LATER)
        immediate = "pod has unbound immediate PersistentVolumeClaims"
        assert [h.reason(f"p-{n}").message for n in ("unbound", "of-no-class", "leaving", "lost")] == [
            immediate,
            immediate,
            'persistentvolumeclaim "leaving" is being deleted',
            'persistentvolume "pv-lost" not found',
        ]
        assert h.held() == []
        # Each is looked at again when its object is there.
        storage_class(cluster, "none")
        bound_claim(cluster, "unbound")
        bound_claim(cluster, "lost")
        await h.quiet()
        assert nodes_of(h, "p-unbound", "p-of-no-class", "p-leaving", "p-lost") == ["n1", "n1", "", "n1"]

    run(cluster, scenario)


def test_a_group_waits_for_the_volumes_of_its_members() -> None:
    cluster = cluster_of(n1=(40, 40))
    labels = {GROUP_LABEL: "job", GROUP_SIZE_LABEL: "2"}
    waiting_pod(cluster, "a", metadata={"labels": labels})
    waiting_pod(cluster, "b", "data", metadata={"labels": labels})

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(LATER)
        assert h.held() == []
        assert h.reason("a") == ("WaitingForGroup", f"group job: pod b: {MISSING}")
        bound_claim(cluster, "data")
        await h.quiet()
        assert nodes_of(h, "a", "b") == ["n1", "n1"]

    run(cluster, scenario)


# --- volumes that keep a pod from some nodes ----------------------------------------------------------------


def test_a_pod_goes_where_its_volume_can_be_used() -> None:
    cluster = cluster_of(n1=(40,), n2=(80,))
    for name in ("n1", "n2"):
        cluster.edit(NODES, name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
    bound_claim(cluster, "data", node="n2")
    waiting_pod(cluster, "p", "data")

    async def scenario(h: Harness) -> None:
        assert nodes_of(h, "p") == ["n2"]

    run(cluster, scenario)


def test_a_node_to_which_no_volume_can_be_attached_is_not_chosen() -> None:
    """Pods count from when they are allocated."""
    cluster = cluster_of(n1=(40, 40), n2=(80, 80))
    limits(cluster, n1=1, n2=1)
    for name in ("a", "b", "c"):
        bound_claim(cluster, name)
        waiting_pod(cluster, name, name)

    async def scenario(h: Harness) -> None:
        assert sorted(nodes_of(h, "a", "b", "c")) == ["", "n1", "n2"]
        (left,) = [name for name in ("a", "b", "c") if not h.devices(name)]
        await asyncio.sleep(LATER)
        assert "2 that exceed max volume count" in h.reason(left).message
        limits(cluster, n2=2)
        await h.quiet()
        assert nodes_of(h, left) == ["n2"]

    run(cluster, scenario)


def test_an_attachment_that_goes_makes_room() -> None:
    cluster = cluster_of(n1=(40,))
    limits(cluster, n1=1)
    bound_claim(cluster, "old")
    bound_claim(cluster, "data")
    spec = {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv-old"}}
    cluster.put(VOLUME_ATTACHMENTS, {"metadata": {"name": "t"}, "spec": spec})
    waiting_pod(cluster, "p", "data")

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        cluster.remove(VOLUME_ATTACHMENTS, "t")
        await h.quiet()
        assert nodes_of(h, "p") == ["n1"]

    run(cluster, scenario)


def test_two_pods_do_not_count_on_one_volume() -> None:
    """Of a class without a provisioner: a pod that is allocated takes the volume, before it is bound."""
    cluster = cluster_of(n1=(40, 40))
    storage_class(cluster, "local", provisioner="kubernetes.io/no-provisioner")
    size = {"storage": "1Gi"}
    for i in range(2):
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": size,
            "storageClassName": "local",
            "hostPath": {"path": "/d"},
        }
        body = {"metadata": {"name": f"pv-{i}"}, "spec": spec, "status": {"phase": "Available"}}
        if i == 0:
            cluster.put(PERSISTENT_VOLUMES, body)
        unbound_claim(cluster, f"data-{i}", "local")
        waiting_pod(cluster, f"p{i}", f"data-{i}")

    async def scenario(h: Harness) -> None:
        assert sorted(nodes_of(h, "p0", "p1")) == ["", "n1"]
        cluster.put(PERSISTENT_VOLUMES, body)
        await h.quiet()
        assert nodes_of(h, "p0", "p1") == ["n1", "n1"]

    run(cluster, scenario)


def test_a_group_is_spread_as_its_volumes_need_it() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40, 40))
    limits(cluster, n1=1, n2=1)
    labels = {GROUP_LABEL: "job", GROUP_SIZE_LABEL: "2"}
    for name in ("a", "b"):
        bound_claim(cluster, name)
        waiting_pod(cluster, name, name, metadata={"labels": labels})

    async def scenario(h: Harness) -> None:
        assert sorted(nodes_of(h, "a", "b")) == ["n1", "n2"]

    run(cluster, scenario)


# --- without the rights -------------------------------------------------------------------------------------


def test_without_the_right_to_read_storage_objects_volumes_are_left_to_kube_scheduler() -> None:
    cluster = cluster_of(n1=(40,), n2=(40,))
    cluster.before = refuse_storage
    waiting_pod(cluster, "p", "data")

    async def scenario(h: Harness) -> None:
        assert nodes_of(h, "p") != [""]
        # Informers try again every thirty seconds. The right is given, and taken back when all watches end.
        cluster.before = lambda *_: None
        await asyncio.sleep(40.0)
        waiting_pod(cluster, "q", "data")
        await h.quiet()
        assert nodes_of(h, "q") == [""]
        cluster.before = refuse_storage
        cluster.expire()
        cluster.down = True
        cluster.down = False
        await asyncio.sleep(40.0)
        assert nodes_of(h, "q") != [""]

    async def main() -> None:
        async with asyncio.timeout(200), controlling(cluster) as h:
            await scenario(h)

    with capture_logs() as logs:
        virtual_time.run(main())
    said = [entry for entry in logs if "storage objects" in entry["event"]]
    assert [entry["log_level"] for entry in said] == ["warning", "info", "warning"]
    assert "persistentvolumeclaims" in said[0]["missing"]


# --- the worker ---------------------------------------------------------------------------------------------


def test_a_new_worker_is_told_of_storage_objects() -> None:
    journal = Journal()
    limit = {"metadata": {"name": "n1"}, "spec": {"drivers": [{"name": "d", "allocatable": {"count": 3}}]}}
    journal.apply(ObjectSeen(codec.convert(CSINode, limit)))
    journal.apply(VolumesKnown(True))
    told = list(journal.replay())
    assert told[-1] == VolumesKnown(True)
    frames = [f for change in told for f in Frames().feed(frame_of_change(1, change))]
    assert [change_of(frame) for frame in frames] == told
    seen = told[0]
    assert isinstance(seen, ObjectSeen)
    assert seen.object.key == ObjectKey("", "n1")
