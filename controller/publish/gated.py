"""Whether the pods of every namespace are created with the gate.

In open pools kube-scheduler sees every free device. With the gate on all pods it looks at those that the
controller has let go; pods of a namespace without it would be tried again and again with devices that they
cannot have. So no pool is open then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import structlog

from controller.admission.config import OBJECT_NAME
from controller.admission.paths import GATE_WEBHOOK, NOT_GATED
from controller.allocate.signal import Signal
from dra_driver.api.core import Namespace
from dra_driver.api.names import ALLOCATION_GATE, GATE_POLICY
from dra_driver.api.server.admission import (
    ADMISSION_GROUP,
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    MUTATING_WEBHOOKS,
)
from dra_driver.errors import DraError, Forbidden, NotFound
from dra_driver.kube import Handler, Informer
from dra_driver.ports import KubeClient
from dra_driver.resourceclaim import Gating, gating_of_policy, gating_of_webhook

__all__ = ["GatedNamespaces"]

log = structlog.get_logger(__name__)

# How often what sets the gate is read. Namespaces are watched.
_READ_SECONDS: Final = 10.0
_EFFECT: Final = "kube-scheduler would try them with devices that it cannot have"
_NOTHING: Final = (
    f"what sets the gate is not installed: the webhook {GATE_WEBHOOK}, or the policy {GATE_POLICY}"
)


class GatedNamespaces:
    """Reads what sets the gate, and follows the namespaces.

    Args:
        client: for reads.
        namespaces: all of them.
        exempt: namespaces whose pods need no gate: those of the control plane and of the driver, which the
            chart leaves out.

    Attributes:
        changed: sent when ``problem`` is another.
    """

    def __init__(
        self, client: KubeClient, namespaces: Informer[Namespace], exempt: Collection[str] = ()
    ) -> None:
        self.changed: Signal[[]] = Signal()
        self._client = client
        self._exempt = frozenset(exempt)
        self._namespaces = namespaces
        self._found: tuple[Gating | str, ...] = ()
        self._gatings: tuple[Gating, ...] = ()
        self._why = "whether pods are created with the gate has not been read yet"
        self._ungated: set[str] = set()
        self._problem = self._why
        self._read_once = False
        namespaces.add_handler(
            Handler(added=self._seen, updated=lambda _, n: self._seen(n), deleted=self._gone)
        )

    def problem(self) -> str:
        """Return why pods may come without the gate; empty if none do."""
        return self._problem

    def refusal(self) -> str:
        """Return the same, once it is known."""
        return self._problem if self._read_once else ""

    def everywhere(self) -> bool | None:
        """Return whether the pods of every namespace get the gate; None: that has not been read yet."""
        return not self._problem if self._read_once else None

    def ungated(self) -> tuple[str, ...]:
        """Return the namespaces whose pods are created without the gate, in order."""
        return tuple(sorted(self._ungated))

    async def run(self) -> None:
        """Read until cancelled. What fails is logged and tried again."""
        await self._namespaces.synced.wait()
        while True:
            try:
                await self.once()
            except DraError as e:
                log.warning("what sets the scheduling gate cannot be read", error=str(e))
            await asyncio.sleep(_READ_SECONDS)

    async def once(self) -> None:
        """Read what sets the gate.

        Raises:
            DraError: of the API server; what was read before counts.
        """
        parts = [await self._policy(), await self._webhook()]
        found = tuple(part for part in parts if part is not None) or (_NOTHING,)
        self._read_once = True
        if found != self._found:
            problems = [f.problem() if isinstance(f, Gating) else f for f in found]  # conditions are compiled
            pairs = zip(found, problems, strict=True)
            self._gatings = tuple(f for f, problem in pairs if isinstance(f, Gating) and not problem)
            self._why = "" if self._gatings else "; ".join(problems)
            self._found = found
            self._ungated = set(self._without_gate(*self._namespaces.items()))
        self._report()

    async def _policy(self) -> Gating | str | None:
        """Return what the policy gates, or why nothing; None if it is not installed."""
        if "mutatingadmissionpolicies" not in await self._client.served(ADMISSION_GROUP, "v1"):
            return None
        try:
            policy = await self._client.get(MUTATING_POLICIES, GATE_POLICY)
            binding = await self._client.get(MUTATING_POLICY_BINDINGS, GATE_POLICY)
        except NotFound:
            return None
        except Forbidden as e:
            return _unread(e)
        return gating_of_policy(policy, binding)

    async def _webhook(self) -> Gating | str | None:
        """Return what our webhook gates, or why nothing; None if it is not installed."""
        try:
            found = await self._client.get(MUTATING_WEBHOOKS, OBJECT_NAME)
        except NotFound:
            return None
        except Forbidden as e:
            return _unread(e)
        webhook = next((w for w in found.webhooks or () if w.name == GATE_WEBHOOK), None)
        return gating_of_webhook(webhook, not_gated=NOT_GATED) if webhook is not None else None

    def _without_gate(self, *namespaces: Namespace) -> tuple[str, ...]:
        """Return those of some namespaces whose pods nothing gives the gate, and that need it."""
        left = [n.metadata for n in namespaces if n.metadata.name not in self._exempt]
        for gating in self._gatings:
            names = set(gating.ungated(left))
            left = [metadata for metadata in left if metadata.name in names]
        return tuple(metadata.name for metadata in left)

    def _seen(self, namespace: Namespace) -> None:
        self._ungated.discard(namespace.metadata.name)
        self._ungated.update(self._without_gate(namespace))
        self._report()

    def _gone(self, namespace: Namespace) -> None:
        self._ungated.discard(namespace.metadata.name)
        self._report()

    def _report(self) -> None:
        # This goes into Events of pods, whose readers may not list namespaces.
        problem = self._why
        if not problem and (number := len(self._ungated)):
            problem = (
                f"pods of {number} namespace{'s' * (number != 1)} are created without the gate "
                f"{ALLOCATION_GATE}, and {_EFFECT}"
            )
        if problem != self._problem:
            self._problem = problem
            names = ", ".join(self.ungated()[:8])
            log.info(problem or "scheduling gate in every namespace", ungated=names)
            self.changed.send()


def _unread(error: Forbidden) -> str:
    return f"whether pods are created with the gate cannot be read: {error}"
