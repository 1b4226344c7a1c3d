"""The kubelet's pod-resources socket, and the processes and cgroups of a node as files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

import grpc.aio

from dra_driver.wire import podresources_v1_pb2, podresources_v1_pb2_grpc


class ListingKubelet(podresources_v1_pb2_grpc.PodResourcesListerServicer):
    """Lists what ``pods`` says: (namespace, pod) → (claim, driver, CDI names).

    Attributes:
        asked: how often.
    """

    def __init__(self) -> None:
        self.pods: Mapping[tuple[str, str], tuple[str, str, Iterable[str]]] = {}
        self.asked = 0

    async def List(  # noqa: N802 - name of the RPC
        self, request: podresources_v1_pb2.ListPodResourcesRequest, context: object
    ) -> podresources_v1_pb2.ListPodResourcesResponse:
        self.asked += 1
        answer = podresources_v1_pb2.ListPodResourcesResponse()
        answer.pod_resources.add(name="without-claims", namespace="kube-system").containers.add(name="c")
        for (namespace, name), (claim, driver, cdi_names) in self.pods.items():
            container = answer.pod_resources.add(name=name, namespace=namespace).containers.add(name="c")
            resource = container.dynamic_resources.add(claim_name=claim, claim_namespace=namespace)
            for cdi_name in cdi_names:
                device = resource.claim_resources.add(driver_name=driver, pool_name="p", device_name="d")
                device.cdi_devices.add(name=cdi_name)
        return answer


@contextlib.asynccontextmanager
async def listing(socket: Path) -> AsyncIterator[ListingKubelet]:
    """A kubelet that lists pods at a socket while the block runs."""
    kubelet = ListingKubelet()
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    podresources_v1_pb2_grpc.add_PodResourcesListerServicer_to_server(kubelet, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield kubelet
    finally:
        await server.stop(None)


def process(
    procfs: Path,
    pid: int,
    *,
    pod: str = "",
    files: Iterable[str] = (),
    mounts: str = "",
    driver: str = "systemd",
) -> None:
    """Writes a process to a tree: of a pod, by either cgroup driver, or of the host's own services."""
    folder = procfs / str(pid)
    (folder / "fd").mkdir(parents=True)
    group = "/system.slice/containerd.service\n"
    if pod and driver == "systemd":
        group = (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod.replace('-', '_')}.slice/"
            f"cri-containerd-{pid:064x}.scope\n"
        )
    elif pod:
        group = f"/../../burstable/pod{pod}/{pid:064x}\n"
    (folder / "cgroup").write_text(f"0::{group}")
    (folder / "mountinfo").write_text(mounts)
    for number, file in enumerate(["/dev/null", "socket:[1]", *files]):
        (folder / "fd" / str(number)).symlink_to(file)


def cgroup(
    root: Path, pod: str = "", *, populated: bool = True, driver: str = "systemd", version: int = 2
) -> Path:
    """Writes the cgroup of a pod to a tree, by either cgroup driver; without a pod, the one above all."""
    hierarchy = root if version == 2 else root / "pids"
    if driver == "systemd":
        above = hierarchy / "kubepods.slice"
        uid = pod.replace("-", "_")
        folder = above / "kubepods-burstable.slice" / f"kubepods-burstable-pod{uid}.slice"
    else:
        above = hierarchy / "kubepods"
        folder = above / "besteffort" / f"pod{pod}"
    for place in (above, folder) if pod else (above,):
        place.mkdir(parents=True, exist_ok=True)
        if version == 2:
            (place / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
        else:
            (place / "pids.current").write_text(f"{7 * populated}\n")
    return folder
