"""Whether the controller works, by its Lease: it renews it every few seconds."""

from __future__ import annotations

import asyncio
from typing import Final

from dra_driver.api.names import CONTROLLER_LEASE
from dra_driver.cli.live.reading import missing_right
from dra_driver.errors import Forbidden, NotFound
from dra_driver.fleet import ControllerSeen, controller_sentence
from dra_driver.kube import LEASES, Lease
from dra_driver.kube.clock import seconds_of
from dra_driver.ports import Clock, KubeClient

__all__ = ["Unreadable", "see_controller", "silence"]

# A controller that works renews the Lease within this time, and our clock need not be that of the cluster.
_LOOK_AGAIN_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0
_DURATION_SECONDS: Final = 15


class Unreadable(str):
    """Why the Lease cannot be read, for people."""

    __slots__ = ()


async def see_controller(client: KubeClient, namespace: str, clock: Clock) -> ControllerSeen | Unreadable:
    """Return whether the controller works.

    Where the Lease seems to have run out it is watched for a few seconds: the clocks of two machines differ,
    and only a Lease that nobody renews has no holder that works.

    Args:
        client: of the cluster.
        namespace: of the installation.
        clock: of this machine.
    """
    name = f"{namespace}/{CONTROLLER_LEASE}"
    try:
        lease = await client.get(LEASES, CONTROLLER_LEASE, namespace)
        renewed = lease.spec.renew_time
        if _is_fresh(lease, clock.now()):
            return _seen(name, lease, answers=True)
        end = clock.monotonic() + _LOOK_AGAIN_SECONDS
        while lease.spec.holder_identity and clock.monotonic() < end:
            await asyncio.sleep(_LOOK_SECONDS)
            lease = await client.get(LEASES, CONTROLLER_LEASE, namespace)
            if lease.spec.holder_identity and lease.spec.renew_time != renewed:
                return _seen(name, lease, answers=True)
        return _seen(name, lease, answers=False)
    except NotFound:
        return ControllerSeen(lease=name)
    except Forbidden:
        right = missing_right(LEASES, "get", namespace)
        return Unreadable(f"may not {right}: whether the controller works is unknown")


async def silence(client: KubeClient, namespace: str, clock: Clock) -> str:
    """Return for how long the controller has not answered; empty if it does, or if that is not known.

    Without a Lease there may be a controller of an earlier version, or in another namespace.
    """
    seen = await see_controller(client, namespace, clock)
    if isinstance(seen, Unreadable) or not seen.found:
        return ""
    return controller_sentence(seen, clock.now())


def _is_fresh(lease: Lease, now: float) -> bool:
    if not lease.spec.holder_identity:
        return False
    try:
        age = now - seconds_of(lease.spec.renew_time or "")
    except ValueError:
        return False
    return 0 <= age <= (lease.spec.lease_duration_seconds or _DURATION_SECONDS)


def _seen(name: str, lease: Lease, *, answers: bool) -> ControllerSeen:
    spec = lease.spec
    return ControllerSeen(name, True, spec.holder_identity or "", spec.renew_time or "", answers)
