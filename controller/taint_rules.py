"""Which version of DeviceTaintRule the API server has, if any, and when its rules are known."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import structlog

from dra_driver.api.resource import DeviceTaintRule, device_taint_rules
from dra_driver.errors import DraError, Forbidden, NotFound
from dra_driver.kube import Backoff, Informer
from dra_driver.ports import KubeClient

__all__ = ["informer_of_rules", "until_rules_are_known"]

log = structlog.get_logger(__name__)

# Newest first.
VERSIONS: Final = ("v1", "v1beta2", "v1alpha3")


async def informer_of_rules(client: KubeClient) -> Informer[DeviceTaintRule] | None:
    """An informer that is not started yet; None: the kind is not served. Asks until there is an answer."""
    backoff = Backoff(base=0.5, cap=10.0)
    while True:
        try:
            for version in VERSIONS:
                if "devicetaintrules" in await client.served("resource.k8s.io", version):
                    return Informer(client, device_taint_rules(version))
        except DraError as e:
            delay = backoff.next()
            log.error("cannot ask the API server for its kinds", error=str(e), retry_in=round(delay, 2))
            await asyncio.sleep(delay)
        else:
            return None


async def until_rules_are_known(client: KubeClient, rules: Informer[DeviceTaintRule]) -> None:
    """Waits for the informer, or until the server says that we may not read rules."""
    while not rules.synced.is_set():
        try:
            await client.list(rules.resource)
        except (Forbidden, NotFound) as e:
            log.warning("DeviceTaintRules cannot be read and are not respected", error=str(e))
            return
        except DraError:
            pass  # the informer logs the same and tries again
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await rules.synced.wait()
