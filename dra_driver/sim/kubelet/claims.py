"""The prepared claims of a node: the pods that use them and the answers of plugins, kept on disk.

Texts of errors are those in the Events of the recorded kubelet. As in kubelets since kubernetes#140212 and
kubernetes#140527, a claim is not unprepared for a pod that does not have it, and no pod gets a claim that is
being unprepared. Older ones leave the second pod without its devices, whatever the plugin does.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import structlog

from dra_driver import resourceclaim
from dra_driver.api.core import Container, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.errors import ApiError, ApiUnavailable, DraError
from dra_driver.ports import KubeClient
from dra_driver.sim.kubelet.plugins import ClaimRef, PluginManager, PreparedDevice

__all__ = ["ClaimInfo", "ClaimManager", "ClaimsNotReady"]

log = structlog.get_logger(__name__)


class ClaimsNotReady(DraError):
    """The claims of a pod cannot be prepared or unprepared now; the text is the kubelet's."""


@dataclass(slots=True)
class ClaimInfo:
    """One claim on this node.

    Attributes:
        pods: UIDs of the pods that use it.
        devices: driver → the devices that it has prepared.
        prepared: whether all drivers of the allocation have answered since this kubelet started.
        unpreparing: whether the last pod that used it has ended: drivers are being asked, or failed, to
            unprepare it.
    """

    key: ObjectKey
    uid: str
    pods: set[str] = field(default_factory=set)
    devices: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    prepared: bool = False
    unpreparing: bool = False

    @property
    def ref(self) -> ClaimRef:
        """The claim as plugins get it."""
        return ClaimRef(self.key.namespace, self.key.name, self.uid)


class ClaimManager:
    """Prepares and unprepares the claims of pods.

    Args:
        api: the API server, from which claims are read.
        plugins: the registered plugins.
        checkpoint: file that keeps what has to be unprepared.
    """

    def __init__(self, api: KubeClient, plugins: PluginManager, checkpoint: Path) -> None:
        self._api = api
        self._plugins = plugins
        self._checkpoint = checkpoint
        self._claims: dict[ObjectKey, ClaimInfo] = _read_checkpoint(checkpoint)

    @property
    def claims(self) -> Mapping[ObjectKey, ClaimInfo]:
        """The claims on this node, by namespace and name."""
        return self._claims

    # --- prepare --------------------------------------------------------------------------------------------

    async def prepare(self, pod: Pod) -> None:
        """Prepare all claims of a pod; to claims that are prepared already, only the pod is added.

        Raises:
            ClaimsNotReady: a claim cannot be prepared now.
        """
        batches: dict[str, list[ClaimInfo]] = {}
        infos: list[ClaimInfo] = []
        # Nothing is recorded before all drivers are known to be there: a pod whose driver was never on the
        # node can be deleted, because there is nothing to unprepare.
        for claim in await self._ready(pod):
            info = self._note(pod, claim)
            if info.prepared:
                continue
            infos.append(info)
            for driver in info.devices:
                batches.setdefault(driver, []).append(info)
        self._save()
        for driver, batch in batches.items():
            await self._prepare_batch(driver, batch)
        for info in infos:
            info.prepared = True
        self._save()

    async def _ready(self, pod: Pod) -> list[ResourceClaim]:
        """Return the claims of the pod if all can be prepared; the drivers of all of them must be there."""
        found = []
        for used in resourceclaim.pod_claims(pod):
            if used.key is None:
                raise ClaimsNotReady(
                    f"prepare resource claim: pod {pod.metadata.name}: claim {used.entry} is not created yet"
                )
            claim = await self._fetch(pod, used.key)
            found.append(claim)
            for driver in _drivers(claim):
                if self._plugins.plugin(driver) is None:
                    raise ClaimsNotReady(f"DRA driver {driver} is not registered")
        return found

    async def _fetch(self, pod: Pod, key: ObjectKey) -> ResourceClaim:
        try:
            claim = await self._api.get(RESOURCE_CLAIMS, key.name, key.namespace)
        except (ApiError, ApiUnavailable) as e:
            raise ClaimsNotReady(f"fetch ResourceClaim {key.name}: {e}") from e
        if not resourceclaim.is_for_pod(pod, claim):
            raise ClaimsNotReady(f"ResourceClaim {key.name} was not created for pod {pod.metadata.name}")
        if claim.status.allocation is None or not resourceclaim.is_reserved_for(claim, pod.metadata.uid):
            raise ClaimsNotReady(
                f"pod {pod.metadata.name} ({pod.metadata.uid}) is not allowed to use ResourceClaim "
                f"{claim.metadata.name} ({claim.metadata.uid})"
            )
        return claim

    def _note(self, pod: Pod, claim: ResourceClaim) -> ClaimInfo:
        info = self._claims.get(claim.key)
        if info is not None and info.uid != claim.metadata.uid:
            raise ClaimsNotReady(
                f"old ResourceClaim with same name {claim.metadata.name} and different UID {info.uid} still "
                "exists (previous pod force-deleted?!)"
            )
        if info is not None and info.unpreparing:
            raise ClaimsNotReady(f"ResourceClaim {claim.metadata.name} is being unprepared")
        if info is None:
            info = ClaimInfo(claim.key, claim.metadata.uid, devices=dict.fromkeys(_drivers(claim), ()))
            self._claims[claim.key] = info
        info.pods.add(pod.metadata.uid)
        return info

    async def _prepare_batch(self, driver: str, batch: Sequence[ClaimInfo]) -> None:
        plugin = self._plugins.plugin(driver)
        if plugin is None:
            raise ClaimsNotReady(f"DRA driver {driver} is not registered")
        with _rpc("NodePrepareResources"):
            answer = await plugin.prepare([info.ref for info in batch])
        by_uid = {info.uid: info for info in batch}
        for uid, (devices, error) in answer.items():
            info = by_uid.get(uid)
            if info is None:
                raise ClaimsNotReady(f"NodePrepareResources returned result for unknown claim UID {uid}")
            if error:
                raise ClaimsNotReady(
                    f"NodePrepareResources failed for ResourceClaim {info.key.name}: {error}"
                )
            info.devices[driver] = devices
        missing = len(batch) - len(answer)
        if missing:
            raise ClaimsNotReady(f"NodePrepareResources skipped {missing} ResourceClaims")

    # --- devices of a container -----------------------------------------------------------------------------

    def cdi_devices(self, pod: Pod, container: Container) -> tuple[str, ...]:
        """Return the CDI IDs of the claims and requests that a container names, each once.

        Raises:
            ClaimsNotReady: a claim is not known on this node.
        """
        ids: list[str] = []
        for device in self._devices_of(pod, container):
            ids.extend(device.cdi_ids)
        return tuple(dict.fromkeys(ids))

    def allocated_resources(
        self, pod: Pod, container: Container
    ) -> tuple[tuple[str, PreparedDevice, str], ...]:
        """Return ``(claim:NAME[/REQUEST], device, driver)`` for ``allocatedResourcesStatus``."""
        found: list[tuple[str, PreparedDevice, str]] = []
        for wanted in container.resources.claims:
            info = self._info(pod, wanted.name)
            if info is None:
                continue
            label = f"claim:{wanted.name}" + (f"/{wanted.request}" if wanted.request else "")
            found.extend(
                (label, device, driver)
                for driver, devices in info.devices.items()
                for device in devices
                if not wanted.request or wanted.request in device.requests
            )
        return tuple(found)

    def _devices_of(self, pod: Pod, container: Container) -> Iterable[PreparedDevice]:
        for wanted in container.resources.claims:
            info = self._info(pod, wanted.name)
            if info is None:
                raise ClaimsNotReady(f"unable to get resource claim {wanted.name} of pod {pod.metadata.name}")
            yield from _of_request(info, wanted.request)
        extended = pod.status.extended_resource_claim_status
        for mapping in extended.request_mappings if extended is not None else ():
            amount = container.resources.requests.get(mapping.resource_name)
            if mapping.container_name == container.name and amount:
                info = self._info(pod, "")
                if info is None:
                    raise ClaimsNotReady(f"unable to get the extended resource claim of {pod.metadata.name}")
                yield from _of_request(info, mapping.request_name)

    def _info(self, pod: Pod, entry: str) -> ClaimInfo | None:
        for used in resourceclaim.pod_claims(pod):
            if used.entry == entry and used.key is not None:
                return self._claims.get(used.key)
        return None

    # --- unprepare ------------------------------------------------------------------------------------------

    async def unprepare(self, pod_uid: str) -> None:
        """Unprepare the claims of a pod, except those that another pod of this node still uses.

        It needs no API server. Claims whose prepare failed are unprepared, too.

        Raises:
            ClaimsNotReady: a plugin is missing or reports an error; what succeeded is remembered.
        """
        batches: dict[str, list[ClaimInfo]] = {}
        last_user: list[ClaimInfo] = []
        for info in self._claims.values():
            if pod_uid not in info.pods:
                continue
            if len(info.pods) > 1:
                info.pods.discard(pod_uid)
                continue
            last_user.append(info)
            info.unpreparing = True
            for driver in info.devices:
                batches.setdefault(driver, []).append(info)
        for driver, batch in batches.items():
            await self._unprepare_batch(driver, batch)
        for info in last_user:
            if self._claims.get(info.key) is info:
                del self._claims[info.key]
        self._save()

    async def _unprepare_batch(self, driver: str, batch: Sequence[ClaimInfo]) -> None:
        plugin = self._plugins.plugin(driver)
        if plugin is None:
            raise ClaimsNotReady(f"DRA driver {driver} is not registered")
        with _rpc("NodeUnprepareResources"):
            answer = await plugin.unprepare([info.ref for info in batch])
        for info in batch:
            error = answer.get(info.uid)
            if error:
                raise ClaimsNotReady(
                    f"NodeUnprepareResources failed for ResourceClaim {info.key.name}: {error}"
                )
        missing = sum(info.uid not in answer for info in batch)
        if missing:
            raise ClaimsNotReady(f"NodeUnprepareResources skipped {missing} ResourceClaims")

    # --- the checkpoint -------------------------------------------------------------------------------------

    def _save(self) -> None:
        data = msgspec.json.encode({"entries": [_entry(info) for info in self._claims.values()]}).decode()
        content = msgspec.json.encode({"Data": data, "Checksum": zlib.crc32(data.encode())})
        temporary = self._checkpoint.with_name(f".{self._checkpoint.name}.tmp")
        temporary.write_bytes(content)
        temporary.replace(self._checkpoint)


def _drivers(claim: ResourceClaim) -> list[str]:
    """Return the drivers of the devices that are allocated to the claim, each once."""
    assert claim.status.allocation is not None
    return list(dict.fromkeys(r.driver for r in claim.status.allocation.devices.results))


def _of_request(info: ClaimInfo, request: str) -> Iterator[PreparedDevice]:
    """Yield the devices of one request of a claim, or of all requests if none is named."""
    for devices in info.devices.values():
        yield from (d for d in devices if not request or request in d.requests)


def _entry(info: ClaimInfo) -> dict[str, Any]:
    return {
        "ClaimUID": info.uid,
        "ClaimName": info.key.name,
        "Namespace": info.key.namespace,
        "PodUIDs": {uid: {} for uid in sorted(info.pods)},
        "DriverState": {
            driver: {
                "Devices": [
                    {
                        "PoolName": d.pool,
                        "DeviceName": d.device,
                        "ShareID": d.share_id or None,
                        "RequestNames": list(d.requests),
                        "CDIDeviceIDs": list(d.cdi_ids),
                    }
                    for d in devices
                ]
            }
            for driver, devices in info.devices.items()
        },
    }


def _read_checkpoint(path: Path) -> dict[ObjectKey, ClaimInfo]:
    if not path.exists():
        return {}
    outer = msgspec.json.decode(path.read_bytes())
    if zlib.crc32(outer["Data"].encode()) != outer["Checksum"]:
        raise DraError(f"{path}: checkpoint is corrupted")
    claims: dict[ObjectKey, ClaimInfo] = {}
    for entry in msgspec.json.decode(outer["Data"])["entries"]:
        key = ObjectKey(entry["Namespace"], entry["ClaimName"])
        devices = {
            driver: tuple(
                PreparedDevice(
                    d["PoolName"],
                    d["DeviceName"],
                    tuple(d["RequestNames"]),
                    tuple(d["CDIDeviceIDs"]),
                    d["ShareID"] or "",
                )
                for d in state["Devices"]
            )
            for driver, state in entry["DriverState"].items()
        }
        claims[key] = ClaimInfo(key, entry["ClaimUID"], set(entry["PodUIDs"]), devices)
    return claims


@contextlib.contextmanager
def _rpc(method: str) -> Iterator[None]:
    """Turn the failure of a call into ``ClaimsNotReady``, so that it is tried again."""
    try:
        yield
    except grpc.aio.AioRpcError as e:
        raise ClaimsNotReady(f"{method}: {_rpc_error(e)}") from e
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # The channel was closed during the call because the plugin deregistered; this task is not cancelled.
        text = "rpc error: code = Canceled desc = grpc: the client connection is closing"
        raise ClaimsNotReady(f"{method}: {text}") from None


def _rpc_error(error: grpc.aio.AioRpcError) -> str:
    code = "".join(part.capitalize() for part in error.code().name.split("_"))
    return f"rpc error: code = {code} desc = {error.details()}"
