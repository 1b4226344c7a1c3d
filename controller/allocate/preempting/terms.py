"""What decides who may be preempted besides pods and devices: budgets, and namespaces that opt out."""

from __future__ import annotations

from controller.allocate.plans import BudgetState, PreemptionTerms
from controller.config import PreemptionSettings
from dra_driver.api.core import Namespace
from dra_driver.api.policy import PodDisruptionBudget
from dra_driver.kube import Handler, Informer
from dra_driver.ports import Clock

__all__ = ["TermsSource"]


class TermsSource:
    """Knows the terms of questions.

    Attributes:
        changes: another number whenever they may be others.

    Args:
        settings: of preemption.
        clock: for the times in questions.
        budgets: all of them; the right to read them may be missing.
        kept: namespaces whose pods are never preempted.
    """

    def __init__(
        self,
        settings: PreemptionSettings,
        clock: Clock,
        budgets: Informer[PodDisruptionBudget],
        kept: Informer[Namespace],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._budgets = budgets
        self._kept = kept
        self.changes = 0
        budgets.add_handler(Handler(self._count, self._updated, self._count))
        # That a namespace is among them is all that counts of it.
        kept.add_handler(Handler(added=self._count, deleted=self._count))

    def _updated(self, old: PodDisruptionBudget, new: PodDisruptionBudget) -> None:
        if (old.spec, old.status) != (new.spec, new.status):
            self._count()

    def _count(self, *_: object) -> None:
        self.changes += 1

    def now(self) -> PreemptionTerms | None:
        """Return the terms; None until it is known what may be read."""
        if self._budgets.access is None or not self._kept.synced.is_set():
            return None
        return PreemptionTerms(
            now=self._clock.monotonic(),
            time=self._clock.now(),
            budgets=tuple(
                BudgetState(b.key, b.spec.selector, max(0, b.status.disruptions_allowed))
                for b in self._budgets.items()
            ),
            kept=tuple(sorted(n.metadata.name for n in self._kept.items())),
            violates=self._settings.violates_budgets,
            patience=self._settings.seconds,
        )

    def budgets_known(self) -> bool:
        """Return whether budgets may be read."""
        return self._budgets.access is True

    def keeps(self, namespace: str) -> bool:
        """Return whether the pods of a namespace are never preempted."""
        return self._kept.get_by_name(namespace) is not None
