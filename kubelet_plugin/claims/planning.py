"""From the kubelet's reference to a plan of the claim: read it, plan it, try again while that may help."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
import tenacity

from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.errors import (
    ApiUnavailable,
    DecodeError,
    Forbidden,
    Invalid,
    NotFound,
    PrepareError,
    ServerBusy,
)
from dra_driver.ports import KubeClient
from dra_driver.preparation import (
    NodeDevice,
    PassthroughPolicy,
    PreparedClaim,
    check_identity,
    devices_of_claim,
    plan,
)
from kubelet_plugin.claims.host_files import Host
from kubelet_plugin.claims.reallocation import Given
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.extensions.effects import BackendEffects

__all__ = ["ClaimReference", "Planner", "Timing"]

# How long the API server may keep the repeated prepare of a claim from its answer.
_COMPARE_SECONDS: Final = 5.0
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim as the kubelet names it; unchecked text of the call."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a call waits, in seconds.

    Attributes:
        budget: for everything that may be waited for, in one call; the kubelet's own limit is 45.
        patience: for what the node may know better soon: a device that another claim still holds (the claim
            of a force-deleted pod is unprepared 4 s later), a device that is not in the inventory yet.
        start: for the memory that another instance is changing, at our start.
    """

    budget: float = 40.0
    patience: float = 10.0
    start: float = 60.0


class Planner:
    """Plans claims of one driver on one node. Reads the API server; changes nothing.

    Args:
        reservations: asked what is remembered of a claim.
        devices: the node's devices by name.
        metadata_directory: where device metadata files go, by its name on the host; if empty, there are none.
        host: what is there of what documents name.
        boot_id: which boot of the machine this is; empty where that is not known.
        passthrough: whose claims may have devices as bare PCI functions.
        backends: those that prepare their devices themselves, and are asked what they would do.
    """

    def __init__(
        self,
        *,
        driver: str,
        pool: PoolName,
        client: KubeClient,
        reservations: DeviceReservations,
        devices: Callable[[], Mapping[str, NodeDevice]],
        timing: Timing,
        metadata_directory: str,
        host: Host,
        boot_id: str,
        passthrough: PassthroughPolicy,
        backends: BackendEffects,
    ) -> None:
        self._driver = driver
        self._pool = pool
        self._client = client
        self._reservations = reservations
        self._devices = devices
        self._timing = timing
        self._metadata_directory = metadata_directory
        self._host = host
        self._boot_id = boot_id
        self._passthrough = passthrough
        self._backends = backends

    async def plan(self, reference: ClaimReference, uid: Uid, deadline: float) -> PreparedClaim:
        """Read the claim and plan it, again and again while the trouble may pass.

        Args:
            reference: the claim, as the kubelet names it.
            uid: its UID, checked.
            deadline: of the loop's clock, for the whole call.

        Raises:
            DraError: the claim cannot be read, or is not one that this node can prepare.
            OSError: the host's files cannot be looked at.
        """
        _check_names(reference)
        patience = min(deadline, asyncio.get_running_loop().time() + self._timing.patience)

        def give_up(state: tenacity.RetryCallState) -> bool:
            # The node is waited for less long than the API server: see ``Timing``.
            error = state.outcome.exception() if state.outcome else None
            limit = patience if isinstance(error, PrepareError) else deadline
            return asyncio.get_running_loop().time() + state.upcoming_sleep >= limit

        try:
            async for attempt in tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception(_may_pass),
                wait=tenacity.wait_random_exponential(multiplier=0.2, max=2.0),
                stop=give_up,
                reraise=True,
            ):
                with attempt:
                    return await self._plan_once(reference, uid, deadline)
        except (ApiUnavailable, ServerBusy) as e:
            raise PrepareError(
                f"the claim cannot be read, tried for {self._timing.budget:g} s: {e}", retryable=True
            ) from e
        raise AssertionError("tenacity gives a result or raises")

    async def given(self, reference: ClaimReference, uid: Uid, deadline: float) -> Given:
        """Return which of our devices a claim is allocated to now.

        Asked for a claim that is prepared already. Where there is no answer, what it was given stays: the
        kubelet has read the claim just before, no other claim gets its devices meanwhile, and a claim that
        is allocated elsewhere is found by the reconciliation.

        Args:
            reference: the claim, as the kubelet names it.
            uid: its UID, checked.
            deadline: of the loop's clock, for the whole call.

        Returns:
            None where the claim cannot be read, is gone, or is another one.
        """
        _check_names(reference)
        limit = min(deadline, asyncio.get_running_loop().time() + _COMPARE_SECONDS)
        try:
            claim = await self._read(reference, limit)
        except (ApiUnavailable, ServerBusy, PrepareError) as e:
            log.warning("a claim that is prepared could not be compared", uid=uid, error=str(e))
            return None
        return devices_of_claim(claim, self._driver) if claim.metadata.uid == uid else None

    async def _plan_once(self, reference: ClaimReference, uid: Uid, deadline: float) -> PreparedClaim:
        claim = await self._read(reference, deadline)
        planned = plan(
            claim,
            uid,
            driver=self._driver,
            pool=self._pool,
            devices=self._devices(),
            metadata_directory=self._metadata_directory,
            boot_id=self._boot_id,
            passthrough=self._passthrough,
            kinds=self._backends.kinds,
        )
        # Before the backends plan: nodes that they are going to make are not there yet.
        await self._check(planned)
        return await self._backends.plan(self._driver, planned, self._devices())

    async def _read(self, reference: ClaimReference, deadline: float) -> ResourceClaim:
        try:
            async with asyncio.timeout_at(deadline):
                claim = await self._client.get(RESOURCE_CLAIMS, reference.name, reference.namespace)
        except TimeoutError:
            raise ApiUnavailable(f"the API server did not answer within {self._timing.budget:g} s") from None
        except NotFound as e:
            if e.is_of_object:
                raise PrepareError("the API server has no such claim") from None
            raise ApiUnavailable(str(e)) from e
        except (Forbidden, Invalid, DecodeError) as e:
            # A token that is being replaced, an authorizer that has just started, a proxy's own page.
            raise ApiUnavailable(str(e)) from e
        if not claim.metadata.uid:
            raise ApiUnavailable("the API server's answer is no claim")
        return claim

    async def _check(self, planned: PreparedClaim) -> None:
        """Refuse what would be a document of another device than before the reboot, or of none."""
        before = self._reservations.record(planned.uid)
        if before is not None:
            names = {d.device for d in planned.devices}
            same = tuple(d for d in before.devices if d.device in names)
            check_identity(msgspec.structs.replace(before, devices=same), self._devices())
        if planned.spec is not None:
            await self._host.document(planned)


def _check_names(reference: ClaimReference) -> None:
    for what, name in (("namespace", reference.namespace), ("name", reference.name)):
        if not _NAME.fullmatch(name):
            raise PrepareError(f"claim {what} {name[:80]!r}: not a name that Kubernetes allows")


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, PrepareError):
        return error.retryable
    return isinstance(error, ApiUnavailable | ServerBusy)
