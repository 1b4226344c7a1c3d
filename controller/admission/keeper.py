"""Keeps the certificates in a Secret that all replicas share.

Every replica reads the Secret and renews what is due; the resourceVersion decides who is first, and the
others take what that one wrote. The Secret itself comes with the manifests, so that the controller needs no
right to create Secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import structlog

from controller.admission.config import OBJECT_NAME
from controller.admission.pki import Material, renewed
from dra_driver.api.core import SECRETS, Secret
from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.kube import Backoff
from dra_driver.ports import Clock, KubeClient

__all__ = ["CertificateKeeper"]

log = structlog.get_logger(__name__)

# How often the Secret is read: what another replica wrote is served after this long at the latest.
POLL_SECONDS = 30.0


class CertificateKeeper:
    """Reads, renews and hands out the certificates.

    Attributes:
        material: as last read or written; None until then.
        changed: set whenever ``material`` is another.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        namespace: str,
        names: Collection[str],
        *,
        install: Callable[[Material], None],
        trusted: Callable[[Material], Awaitable[bool]],
    ) -> None:
        """Connect the parts.

        Args:
            client: for the Secret.
            clock: certificates end by it.
            namespace: of the Secret.
            names: of the serving certificate.
            install: called with what is to be served from now on.
            trusted: whether the API server's configuration has all authorities.
        """
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._names = frozenset(names)
        self._install = install
        self._trusted = trusted
        self.material: Material | None = None
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled. What fails is logged and tried again."""
        backoff = Backoff(base=0.5, cap=POLL_SECONDS)
        while True:
            delay = POLL_SECONDS
            try:
                await self.once()
                backoff.reset()
            except Conflict:
                delay = 0.2  # another replica was faster: what it wrote is read next
            except DraError as e:
                delay = backoff.next()
                log.error("cannot read or renew the webhook's certificate", secret=OBJECT_NAME, error=str(e))
            except Exception:
                # Whatever is in the Secret: who gives up here serves an old certificate to its end.
                delay = backoff.next()
                log.exception("the webhook's certificate cannot be used", secret=OBJECT_NAME)
            await asyncio.sleep(delay)

    async def once(self) -> None:
        """Read the Secret, renew what is due, serve what is there.

        Raises:
            ApiError, ApiUnavailable: of the API server; ``Conflict``: another replica was faster.
        """
        try:
            secret: Secret | None = await self._client.get(SECRETS, OBJECT_NAME, self._namespace)
        except NotFound:
            secret = None
        data = (secret.data if secret is not None else None) or {}
        material = Material.from_secret(data)
        if material is None and data:
            log.warning("the Secret of the webhook is not what was written; made anew", secret=OBJECT_NAME)
        trusted = material is not None and len(material.authorities) > 1 and await self._trusted(material)
        due = renewed(material, self._names, self._clock.now(), trusted=trusted)
        if due is not None:
            await self._write(secret, due)
            material = due
        if material is not None and material != self.material:
            self._install(material)
            self.material = material
            self.changed.set()

    async def _write(self, secret: Secret | None, material: Material) -> None:
        data = material.to_secret()
        if secret is None:
            body: dict[str, Any] = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": OBJECT_NAME, "namespace": self._namespace},
                "data": data,
            }
            await self._client.create(SECRETS, body, self._namespace)
        else:
            patch = {"metadata": {"resourceVersion": secret.metadata.resource_version}, "data": data}
            await self._client.merge_patch(SECRETS, OBJECT_NAME, patch, self._namespace)
        log.info("webhook certificates renewed", authorities=len(material.authorities), ends=material.ends)
