"""Reads the certificates from a Secret that all replicas share, and renews the serving certificate there.

The installation writes the authority and its key (``deploy/helm``, ``dra-driver certificates``), or somebody
else, such as cert-manager, writes a finished serving certificate. Every replica reads the Secret. Where that
has the authority's key, each of them renews what is due: the resourceVersion decides which one is first, and
the others take what that one wrote. An admission policy holds the controller to the serving certificate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import structlog

from controller.admission.pki import Material, signed
from dra_driver.api.core import SECRETS
from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.kube import Backoff
from dra_driver.ports import Clock, KubeClient

__all__ = ["CertificateKeeper"]

log = structlog.get_logger(__name__)

# How often the Secret is read: what another replica wrote is served after this long at the latest.
POLL_SECONDS = 30.0
_DAY: Final = 86400.0
# An administrator has to act before the authority ends; a serving certificate is renewed long before this.
_AUTHORITY_WARNING: Final = 180 * _DAY
_LEAF_WARNING: Final = 14 * _DAY


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
        secret: str,
        names: Collection[str],
        *,
        install: Callable[[Material], None],
    ) -> None:
        """Connect the parts.

        Args:
            client: for the Secret.
            clock: certificates end by it.
            namespace: of the Secret.
            secret: its name.
            names: of the serving certificate.
            install: called with what is to be served from now on.
        """
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._secret = secret
        self._names = frozenset(names)
        self._install = install
        self._warned = float("-inf")
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
                log.error("cannot read or renew the webhook's certificate", secret=self._secret, error=str(e))
            except Exception:
                # Whatever is in the Secret: giving up here would serve an old certificate to its end.
                delay = backoff.next()
                log.exception("the webhook's certificate cannot be used", secret=self._secret)
            await asyncio.sleep(delay)

    async def once(self) -> None:
        """Read the Secret, renew what is due, serve what is there.

        Raises:
            ApiError, ApiUnavailable: of the API server; ``Conflict``: another replica was faster.
        """
        try:
            secret = await self._client.get(SECRETS, self._secret, self._namespace)
        except NotFound:
            self._warn(None)
            return
        material = Material.from_secret(secret.data or {})
        due = signed(material, self._names, self._clock.now()) if material is not None else None
        if due is not None:
            patch = {
                "metadata": {"resourceVersion": secret.metadata.resource_version},
                "data": due.leaf_to_secret(),
            }
            await self._client.merge_patch(SECRETS, self._secret, patch, self._namespace)
            log.info("serving certificate of the webhooks renewed", ends=due.ends)
            material = due
        self._warn(material)
        if material is not None and material.leaf and material != self.material:
            self._install(material)
            self.material = material
            self.changed.set()

    def _warn(self, material: Material | None) -> None:
        """Log once a day what an administrator has to do."""
        now = self._clock.now()
        text = ""
        if material is None or not material.leaf:
            text = "the webhooks have no certificate: the Secret has none, and no authority that signs one"
        elif 0 < material.authority_ends < now + _AUTHORITY_WARNING:
            text = (
                "the authority of the webhooks expires: upgrade the release, or run dra-driver certificates"
            )
        elif material.ends < now + _LEAF_WARNING and not material.authority_key:
            text = "the serving certificate of the webhooks expires, and nothing renews it"
        if text and now - self._warned >= _DAY:
            self._warned = now
            ends = (material.ends, material.authority_ends) if material is not None else ()
            log.warning(text, secret=self._secret, ends=ends)
