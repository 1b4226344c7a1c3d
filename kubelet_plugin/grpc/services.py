"""The gRPC services that the kubelet calls. They translate; what is done is in ``claims``."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import grpc
import structlog

from dra_driver.api.meta import PoolName
from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.errors import DraError
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock
from dra_driver.preparation import PreparedClaim, PreparedDevice
from dra_driver.wire import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from kubelet_plugin.claims.planning import ClaimReference
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.core.registration import RegistrationState
from kubelet_plugin.devices.table import DeviceTable
from kubelet_plugin.health.health import ailments, is_unknown, physical_device, troubles

__all__ = [
    "SUPPORTED_VERSIONS",
    "Calls",
    "DraV1",
    "DraV1beta1",
    "Health",
    "HealthV1",
    "HealthV1alpha1",
    "Registrar",
]

# Of DRAPlugin, the first one that the kubelet knows is the one it calls. Of DRAResourceHealth it calls v1
# since Kubernetes 1.37, and v1alpha1 before that.
SUPPORTED_VERSIONS: Final = (
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)

_MAX_MESSAGE: Final = 1024
# From the end of a transaction until its answer has left the process.
_SENDING_SECONDS: Final = 0.1
_T = TypeVar("_T")

log = structlog.get_logger(__name__)


class _Claim(Protocol):
    """A claim of a request of any version, or a reference of our own."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


class Registrar(pluginregistration_pb2_grpc.RegistrationServicer):
    """``pluginregistration.Registration``."""

    def __init__(self, driver: str, endpoint: str, state: RegistrationState) -> None:
        self._driver = driver
        self._endpoint = endpoint
        self._state = state

    async def GetInfo(  # noqa: N802 - name of the RPC
        self, request: pluginregistration_pb2.InfoRequest, context: object
    ) -> pluginregistration_pb2.PluginInfo:
        """Return name, socket and supported services of the plugin."""
        return pluginregistration_pb2.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=self._endpoint,
            supported_versions=SUPPORTED_VERSIONS,
        )

    async def NotifyRegistrationStatus(  # noqa: N802 - name of the RPC
        self, request: pluginregistration_pb2.RegistrationStatus, context: object
    ) -> pluginregistration_pb2.RegistrationStatusResponse:
        """Note the status. Another task writes it to the API server: the kubelet waits for 5 s only."""
        if request.plugin_registered:
            self._state.confirmed()
        else:
            self._state.rejected(request.error)
        return pluginregistration_pb2.RegistrationStatusResponse()


class Calls:
    """The kubelet's calls: the claims of one run side by side, each to its end.

    A kubelet that gives up on a call cancels it; the transaction behind it goes on, and the repetition of the
    call finds its result.

    Args:
        preparer: prepares and unprepares.
        seconds: after which a call is answered in any case.
        observe: called after each claim with prepare or unprepare, success or error, and the seconds it took.
    """

    # The kubelet's deadline is 45 s, and an answer after it is not shown.
    SECONDS: Final = 43.0

    def __init__(
        self,
        preparer: Preparer,
        seconds: float = SECONDS,
        observe: Callable[[str, str, float], None] = lambda *_: None,
    ) -> None:
        self._preparer = preparer
        self._observe = observe
        self._seconds = seconds
        self._tasks: asyncio.TaskGroup | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Own the tasks of the calls until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await asyncio.get_running_loop().create_future()

    async def answered(self, seconds: float) -> None:
        """Wait until what is under way now has ended, ``seconds`` at most; not for what comes meanwhile."""
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=seconds)
            await asyncio.sleep(_SENDING_SECONDS)

    async def drain(self, seconds: float) -> None:
        """Wait until no call is under way, ``seconds`` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    async def prepare(self, claims: Iterable[_Claim]) -> dict[str, tuple[PreparedDevice, ...] | str]:
        """Return the devices, or the reason why there are none, by claim UID."""
        return await self._each(claims, "prepare", self._preparer.prepare)

    async def unprepare(self, claims: Iterable[_Claim]) -> dict[str, str | None]:
        """Return None, or the reason why it is not unprepared, by claim UID."""
        return await self._each(claims, "unprepare", self._preparer.unprepare)

    async def _each(
        self,
        claims: Iterable[_Claim],
        verb: str,
        call: Callable[[ClaimReference], Coroutine[Any, Any, _T]],
    ) -> dict[str, _T | str]:
        references = {c.uid: ClaimReference(c.namespace, c.name, c.uid) for c in claims}
        tasks = {uid: self._start(self._one(r, verb, call)) for uid, r in references.items()}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=self._seconds)
        late = (
            f"{verb} has not ended after {self._seconds:g} s; it continues, and the next call returns its "
            "result"
        )
        return {uid: task.result() if task.done() else late for uid, task in tasks.items()}

    def _start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        if self._tasks is None:
            work.close()
            raise RuntimeError("Calls.run is not running")
        self._idle.clear()
        task = self._tasks.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not self._under_way:
            self._idle.set()

    async def _one(
        self,
        reference: ClaimReference,
        verb: str,
        call: Callable[[ClaimReference], Coroutine[Any, Any, _T]],
    ) -> _T | str:
        bound = log.bind(namespace=reference.namespace, claim=reference.name, uid=reference.uid)
        loop = asyncio.get_running_loop()
        started = loop.time()
        outcome = "error"
        try:
            result = await call(reference)
            outcome = "success"
        except (DraError, OSError) as e:
            bound.warning(f"{verb} failed", error=str(e))
            return _reason(e)
        except Exception as e:
            # A bug costs this claim, not the others and not the plugin.
            bound.exception(f"{verb} failed unexpectedly")
            return _text(f"internal error of the driver: {type(e).__name__}: {e}")
        finally:
            self._observe(verb, outcome, loop.time() - started)
        bound.info(f"{verb}d", seconds=round(loop.time() - started, 4))
        return result


def _reason(error: Exception) -> str:
    return _text(str(error)) or type(error).__name__


def _text(text: str) -> str:
    # A name of a file in it may be of bytes that are no UTF-8: the whole answer could not be sent.
    return text.encode("utf-8", "backslashreplace").decode()[:_MAX_MESSAGE]


class DraV1(dra_v1_pb2_grpc.DRAPluginServicer):
    """``k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin``."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def NodePrepareResources(  # noqa: N802 - name of the RPC
        self, request: dra_v1_pb2.NodePrepareResourcesRequest, context: object
    ) -> dra_v1_pb2.NodePrepareResourcesResponse:
        """Answer every claim of the request, with devices or with an error."""
        response = dra_v1_pb2.NodePrepareResourcesResponse()
        for uid, outcome in (await self._calls.prepare(request.claims)).items():
            if isinstance(outcome, str):
                response.claims[uid].error = outcome
                continue
            # Touching the entry makes it, also for a claim without devices.
            response.claims[uid].devices.extend(
                dra_v1_pb2.Device(
                    request_names=d.requests,
                    pool_name=d.pool,
                    device_name=d.device,
                    cdi_device_ids=d.cdi_device_ids,
                    share_id=d.share_id,
                )
                for d in outcome
            )
        return response

    async def NodeUnprepareResources(  # noqa: N802 - name of the RPC
        self, request: dra_v1_pb2.NodeUnprepareResourcesRequest, context: object
    ) -> dra_v1_pb2.NodeUnprepareResourcesResponse:
        """Answer every claim of the request."""
        response = dra_v1_pb2.NodeUnprepareResourcesResponse()
        for uid, outcome in (await self._calls.unprepare(request.claims)).items():
            response.claims[uid].error = outcome or ""
        return response


class DraV1beta1(dra_v1beta1_pb2_grpc.DRAPluginServicer):
    """``k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin``: the same without share IDs."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def NodePrepareResources(  # noqa: N802 - name of the RPC
        self, request: dra_v1beta1_pb2.NodePrepareResourcesRequest, context: object
    ) -> dra_v1beta1_pb2.NodePrepareResourcesResponse:
        """Answer every claim of the request, with devices or with an error."""
        response = dra_v1beta1_pb2.NodePrepareResourcesResponse()
        for uid, outcome in (await self._calls.prepare(request.claims)).items():
            if isinstance(outcome, str):
                response.claims[uid].error = outcome
                continue
            response.claims[uid].devices.extend(
                dra_v1beta1_pb2.Device(
                    request_names=d.requests,
                    pool_name=d.pool,
                    device_name=d.device,
                    cdi_device_ids=d.cdi_device_ids,
                )
                for d in outcome
            )
        return response

    async def NodeUnprepareResources(  # noqa: N802 - name of the RPC
        self, request: dra_v1beta1_pb2.NodeUnprepareResourcesRequest, context: object
    ) -> dra_v1beta1_pb2.NodeUnprepareResourcesResponse:
        """Answer every claim of the request."""
        response = dra_v1beta1_pb2.NodeUnprepareResourcesResponse()
        for uid, outcome in (await self._calls.unprepare(request.claims)).items():
            response.claims[uid].error = outcome or ""
        return response


class Health:
    """The health of all devices: the whole list at once, at each change, and before it grows stale.

    Times are those at which the hardware was looked at, not those of the messages. What was not looked at for
    longer than ``timeout_seconds`` is unknown (KEP-4680).

    Args:
        claims: what is prepared: partitions are not among the devices that discovery finds, and a device that
            has vanished is not either, but both are of interest to the pods that have them.
        timeout_seconds: for which a look counts: longer than from one to the next.
    """

    RESEND_SECONDS: Final = 10.0

    def __init__(
        self,
        *,
        pool: PoolName,
        table: DeviceTable,
        state: RegistrationState,
        clock: Clock,
        timeout_seconds: float,
        claims: Callable[[], Iterable[PreparedClaim]] = tuple,
        resend_seconds: float = RESEND_SECONDS,
    ) -> None:
        self._pool = pool
        self._claims = claims
        self._table = table
        self._state = state
        self._clock = clock
        self._timeout = math.ceil(timeout_seconds)
        self._resend = resend_seconds
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all streams."""
        self._stopping.set()
        self._table.changes.notify()

    async def lists(self) -> AsyncGenerator[health_v1_pb2.NodeWatchResourcesResponse]:
        """Yield until the kubelet closes the stream or the plugin stops."""
        with self._state.stream():
            while not self._stopping.is_set():
                seen = self._table.changes.count
                yield self._list()
                await self._table.changes.wait(seen, self._resend)

    def _list(self) -> health_v1_pb2.NodeWatchResourcesResponse:
        now = int(self._clock.now())
        found = {d.device.name: d for d in self._table.devices}
        listed = {name: (troubles(d.device.health), name) for name, d in found.items()}
        # Before every backend has answered, a device that is not found is not known to be gone.
        for claim in self._claims() if self._table.complete.is_set() else ():
            for device in claim.devices:
                listed.setdefault(device.device, (ailments(device, found), physical_device(device)))
        return health_v1_pb2.NodeWatchResourcesResponse(
            devices=[
                self._one(name, ailing, self._table.known_at(physical), now)
                for name, (ailing, physical) in listed.items()
            ]
        )

    def _one(
        self, name: str, ailing: Sequence[DeviceHealth], known_at: float | None, now: int
    ) -> health_v1_pb2.DeviceHealth:
        stale = known_at is None or now - known_at > self._timeout
        health = health_v1_pb2.UNHEALTHY if ailing else health_v1_pb2.HEALTHY
        if is_unknown(ailing) or (stale and not ailing):
            health = health_v1_pb2.UNKNOWN
        message = [f"{h.reason}: {h.message}" if h.message else h.reason for h in ailing]
        if stale:
            since = f"since {rfc3339(known_at)}" if known_at is not None else "yet"
            message.append(f"the device could not be scanned {since}")
        return health_v1_pb2.DeviceHealth(
            device=health_v1_pb2.DeviceIdentifier(pool_name=self._pool, device_name=name),
            health=health,
            last_updated_time=int(known_at or 0),
            health_check_timeout_seconds=self._timeout,
            message=_sentence(message),
        )


class HealthV1(health_v1_pb2_grpc.DRAResourceHealthServicer):
    """``v1.DRAResourceHealth``."""

    def __init__(self, health: Health) -> None:
        self._health = health

    async def NodeWatchResources(  # noqa: N802 - name of the RPC
        self, request: health_v1_pb2.NodeWatchResourcesRequest, context: object
    ) -> AsyncIterator[health_v1_pb2.NodeWatchResourcesResponse]:
        """Send until the kubelet closes the stream or the plugin stops."""
        async with contextlib.aclosing(self._health.lists()) as lists:
            async for message in lists:
                yield message


class HealthV1alpha1(health_v1alpha1_pb2_grpc.DRAResourceHealthServicer):
    """``v1alpha1.DRAResourceHealth``: the same under another name, which kubelets before 1.37 call."""

    def __init__(self, health: Health) -> None:
        self._health = health

    async def NodeWatchResources(  # noqa: N802 - name of the RPC
        self, request: health_v1alpha1_pb2.NodeWatchResourcesRequest, context: object
    ) -> AsyncIterator[health_v1alpha1_pb2.NodeWatchResourcesResponse]:
        """Send until the kubelet closes the stream or the plugin stops."""
        async with contextlib.aclosing(self._health.lists()) as lists:
            async for message in lists:
                yield health_v1alpha1_pb2.NodeWatchResourcesResponse.FromString(message.SerializeToString())


def _sentence(parts: Iterable[str]) -> str:
    # The kubelet counts bytes.
    return "; ".join(parts).encode()[:_MAX_MESSAGE].decode("utf-8", "ignore")


def register(server: grpc.aio.Server, servicers: Sequence[object]) -> None:
    """Add servicers to a server, each by its kind."""
    for servicer in servicers:
        match servicer:
            case Registrar():
                pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(servicer, server)
            case DraV1():
                dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(servicer, server)
            case DraV1beta1():
                dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(servicer, server)
            case HealthV1():
                health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(servicer, server)
            case HealthV1alpha1():
                health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(servicer, server)
            case _:
                raise TypeError(f"no service {type(servicer).__name__}")
