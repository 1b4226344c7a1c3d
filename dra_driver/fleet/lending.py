"""Whether devices are granted, or lent, to kube-scheduler, why not, and for which pods: what people see.

The controller writes it to one key of a ConfigMap, as JSON. Those who read it may run another version, and
others may have written it: what cannot be read is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

__all__ = [
    "GRANTING",
    "LENDING",
    "LENDING_HELP",
    "MOST_NAMED_NAMESPACES",
    "LendingShown",
    "LentToPod",
    "lending_data",
    "shown_lending",
]

LENDING_HELP: Final = (
    "devices are lent for that with --lending=on of the controller (chart value controller.lending), where "
    "every namespace has the scheduling gate (chart value admissionPolicies.gateNamespaces)"
)
"""What has to be turned on, for those who ask why a pod waits."""

MOST_NAMED_NAMESPACES: Final = 32
"""Namespaces without the gate that are named."""
LENDING: Final = "on"
"""Mode in which devices are lent."""
GRANTING: Final = "granting"
"""Mode in which devices are granted."""
_KEY: Final = "lending"
_LONGEST: Final = 512 << 10


class LentToPod(msgspec.Struct, frozen=True, rename="camel"):
    """Devices that are granted, or lent, for a pod on one node.

    Attributes:
        pod: ``namespace/name``.
        node: of the devices.
        since: RFC 3339.
        state: of the unit that is behind the others: ``granting`` or ``granted``; ``noting``, ``untainting``
            or ``lent``.
        devices: their names.
    """

    pod: str
    node: str
    since: str
    state: str
    devices: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Return what is said of the pod."""
        what = {
            "granted": "are granted to it: kube-scheduler allocates them and places the pod",
            "granting": "are about to be granted to it",
            "lent": "are lent to kube-scheduler, which allocates them and places the pod",
        }.get(self.state, "are on their way to be lent to kube-scheduler")
        return f"{', '.join(self.devices)} of node {self.node} {what}; since {self.since}"


class LendingShown(msgspec.Struct, frozen=True, rename="camel"):
    """What is known of grants, or of lending.

    Attributes:
        mode: ``granting``; of lending ``off``, ``ending`` or ``on``.
        obstacle: why nothing is granted, or lent; empty if something can be.
        ungated: namespaces whose pods come without the gate: so many as are named.
        more_ungated: how many others there are.
        loans: for which pods devices are granted, or lent, on each node.
        updated: RFC 3339; it is written anew every few minutes.
    """

    mode: str
    obstacle: str = ""
    ungated: tuple[str, ...] = ()
    more_ungated: int = 0
    loans: tuple[LentToPod, ...] = ()
    updated: str = ""

    @property
    def sentence(self) -> str:
        """Return in one line what is said of the installation."""
        number = len({one.pod for one in self.loans})
        pods = f"{number} pod{'s' * (number != 1)}"
        if self.mode == GRANTING:
            if self.obstacle:
                return f"nothing is granted to pods that only kube-scheduler can place: {self.obstacle}"
            return f"devices are granted to {pods} that only kube-scheduler can place"
        if self.mode != LENDING:
            return f"lending is {self.mode}: nothing more is lent to kube-scheduler"
        if self.obstacle:
            return f"lending is on, but nothing is lent to kube-scheduler: {self.obstacle}"
        return f"lending is on: devices are lent to kube-scheduler for {pods}"


def lending_data(shown: LendingShown) -> dict[str, str]:
    """Return what is said as the data of the ConfigMap."""
    return {_KEY: msgspec.json.encode(shown).decode()}


def shown_lending(data: Mapping[str, str] | None) -> LendingShown | None:
    """Return what the data of the ConfigMap say; None where they say nothing that can be read."""
    text = (data or {}).get(_KEY, "")
    if not text or len(text) > _LONGEST:
        return None
    try:
        return msgspec.json.decode(text.encode(), type=LendingShown)
    except (msgspec.DecodeError, RecursionError):
        return None
