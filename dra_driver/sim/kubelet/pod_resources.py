"""The kubelet's pod-resources socket: which pods have which claims."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import grpc.aio

from dra_driver.sim.kubelet.claims import ClaimInfo
from dra_driver.sim.objects import RunPod
from dra_driver.wire import podresources_v1_pb2, podresources_v1_pb2_grpc
from kubelet_plugin.grpc.sockets import SocketServer

__all__ = ["PodResourcesLister", "serve"]


class PodResourcesLister(podresources_v1_pb2_grpc.PodResourcesListerServicer):
    """``v1.PodResourcesLister``, as far as claims are concerned.

    Args:
        pods: the active pods of the node.
        claims: the claims on the node.
    """

    def __init__(
        self, pods: Callable[[], Iterable[RunPod]], claims: Callable[[], Iterable[ClaimInfo]]
    ) -> None:
        self._pods = pods
        self._claims = claims

    async def List(  # noqa: N802 - name of the RPC
        self, request: podresources_v1_pb2.ListPodResourcesRequest, context: object
    ) -> podresources_v1_pb2.ListPodResourcesResponse:
        """Return every pod with the claims of its containers: each container is taken to have all of them."""
        answer = podresources_v1_pb2.ListPodResourcesResponse()
        claims = tuple(self._claims())
        for pod in self._pods():
            listed = answer.pod_resources.add(name=pod.metadata.name, namespace=pod.metadata.namespace)
            for container in pod.spec.containers:
                entry = listed.containers.add(name=container.name)
                entry.dynamic_resources.extend(
                    _resource(info) for info in claims if pod.metadata.uid in info.pods
                )
        return answer


@contextlib.asynccontextmanager
async def serve(socket: Path, lister: PodResourcesLister) -> AsyncIterator[None]:
    """Serve at a socket while the block runs."""

    def register(server: grpc.aio.Server) -> None:
        podresources_v1_pb2_grpc.add_PodResourcesListerServicer_to_server(lister, server)

    server = SocketServer(socket)
    try:
        await server.start(register)
        yield
    finally:
        await server.stop(0.0)


def _resource(info: ClaimInfo) -> podresources_v1_pb2.DynamicResource:
    return podresources_v1_pb2.DynamicResource(
        claim_name=info.key.name,
        claim_namespace=info.key.namespace,
        claim_resources=[
            podresources_v1_pb2.ClaimResource(
                driver_name=driver,
                pool_name=device.pool,
                device_name=device.device,
                share_id=device.share_id or None,
                cdi_devices=[podresources_v1_pb2.CDIDevice(name=cdi_id) for cdi_id in device.cdi_ids],
            )
            for driver, devices in info.devices.items()
            for device in devices
        ],
    )
