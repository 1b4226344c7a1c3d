"""The kubelet's pod-resources socket: which pods have which of our claims, without the API server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import structlog

from dra_driver.api.meta import DriverName, ObjectKey, PoolName
from dra_driver.ownership import PoolID
from dra_driver.wire import podresources_v1_pb2, podresources_v1_pb2_grpc

__all__ = ["KubeletList", "PodResources"]

log = structlog.get_logger(__name__)

_SECONDS: Final = 5.0
# The kubelet sends no more.
_MOST_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class KubeletList:
    """What the kubelet lists.

    Attributes:
        pods: active pods that have a device of one driver, by its CDI name.
        others: devices of other drivers that active pods have, by pool and name.
    """

    pods: Mapping[str, frozenset[ObjectKey]] = field(default_factory=dict)
    others: frozenset[tuple[PoolID, str]] = frozenset()


class PodResources:
    """The kubelet's list of pods.

    Args:
        socket: of the kubelet, ``pod-resources/kubelet.sock`` below its folder.
        driver: whose devices count.
    """

    def __init__(self, socket: Path, driver: str) -> None:
        self._socket = socket
        self._driver = driver
        self._trouble = ""

    async def list(self) -> KubeletList | None:
        """Return what the kubelet lists now; None if it cannot be asked."""
        if not self._socket.exists():
            self._note(f"{self._socket} is not there")
            return None
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", _MOST_BYTES),
        ]
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
                answer = await podresources_v1_pb2_grpc.PodResourcesListerStub(channel).List(
                    podresources_v1_pb2.ListPodResourcesRequest(), timeout=_SECONDS
                )
        except grpc.RpcError as e:
            self._note(str(e.details() if isinstance(e, grpc.aio.AioRpcError) else e))
            return None
        self._note("")
        return self._of_driver(answer)

    def _of_driver(self, answer: podresources_v1_pb2.ListPodResourcesResponse) -> KubeletList:
        pods: dict[str, set[ObjectKey]] = {}
        others: set[tuple[PoolID, str]] = set()
        for pod in answer.pod_resources:
            for container in pod.containers:
                for claim in container.dynamic_resources:
                    for device in claim.claim_resources:
                        # The name of the driver is not in lists of kubelets before 1.34.
                        if device.driver_name and device.driver_name != self._driver:
                            pool = PoolID(DriverName(device.driver_name), PoolName(device.pool_name))
                            others.add((pool, device.device_name))
                            continue
                        for cdi_device in device.cdi_devices:
                            pods.setdefault(cdi_device.name, set()).add(ObjectKey(pod.namespace, pod.name))
        return KubeletList({name: frozenset(keys) for name, keys in pods.items()}, frozenset(others))

    def _note(self, trouble: str) -> None:
        """Log what has changed, once."""
        if trouble and trouble != self._trouble:
            log.warning("the kubelet cannot be asked which pods have claims", error=trouble)
        elif self._trouble and not trouble:
            log.info("the kubelet can be asked again which pods have claims")
        self._trouble = trouble
