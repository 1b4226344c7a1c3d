"""Which version of DeviceTaintRule the API server has, if any, and when its rules are known."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import structlog

from controller.allocate.state.served import newest_served
from dra_driver.api.meta import Resource
from dra_driver.api.resource import DeviceTaintRule, device_taint_rules
from dra_driver.errors import DraError, Forbidden, NotFound
from dra_driver.kube import Informer
from dra_driver.ports import KubeClient

__all__ = ["VERSIONS", "served_rules", "until_rules_are_known"]

log = structlog.get_logger(__name__)

# Newest first.
VERSIONS: Final = ("v1", "v1beta2", "v1alpha3")


async def served_rules(client: KubeClient) -> Resource[DeviceTaintRule] | None:
    """Return the newest version of the kind that is served; None where none is.

    Raises:
        ApiError, ApiUnavailable: the API server does not say.
    """
    version = await newest_served(client, "resource.k8s.io", "devicetaintrules", VERSIONS)
    return device_taint_rules(version) if version is not None else None


async def until_rules_are_known(client: KubeClient, rules: Informer[DeviceTaintRule]) -> None:
    """Wait for the informer, or until the server says that we may not read rules."""
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
