"""Whether devices are granted to kube-scheduler, why not, and for which pods: what people see.

The controller writes it to one key of a ConfigMap, as JSON. Those who read it may run another version, and
others may have written it: what cannot be read is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

__all__ = [
    "GRANTS_HELP",
    "MOST_NAMED_NAMESPACES",
    "GrantedToPod",
    "GrantsShown",
    "grants_data",
    "shown_grants",
]

GRANTS_HELP: Final = (
    "devices are granted for that in open pools: they need the admission policy dra-driver-grants, and the "
    "scheduling gate in every namespace (chart value admissionPolicies.gateNamespaces: all)"
)
"""What has to be turned on, for those who ask why a pod waits."""

MOST_NAMED_NAMESPACES: Final = 32
"""Namespaces without the gate that are named."""
_KEY: Final = "grants"
_LONGEST: Final = 512 << 10


class GrantedToPod(msgspec.Struct, frozen=True, rename="camel"):
    """Devices that are granted for a pod on one node.

    Attributes:
        pod: ``namespace/name``.
        node: of the devices.
        since: RFC 3339.
        state: of the unit that is behind the others: ``granting`` or ``granted``.
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
        what = "are about to be granted to it"
        if self.state == "granted":
            what = "are granted to it: kube-scheduler allocates them and places the pod"
        return f"{', '.join(self.devices)} of node {self.node} {what}; since {self.since}"


class GrantsShown(msgspec.Struct, frozen=True, rename="camel"):
    """What is known of grants.

    Attributes:
        enabled: whether pools are to be open at all.
        obstacle: why nothing is granted; empty if something can be.
        ungated: namespaces whose pods come without the gate: so many as are named.
        more_ungated: how many others there are.
        pods: for which of them devices are granted, on each node.
        updated: RFC 3339; it is written anew every few minutes.
    """

    enabled: bool = True
    obstacle: str = ""
    ungated: tuple[str, ...] = ()
    more_ungated: int = 0
    pods: tuple[GrantedToPod, ...] = ()
    updated: str = ""

    @property
    def sentence(self) -> str:
        """Return in one line what is said of the installation."""
        if self.obstacle:
            return f"nothing is granted to pods that only kube-scheduler can place: {self.obstacle}"
        number = len({one.pod for one in self.pods})
        return f"devices are granted to {number} pod{'s' * (number != 1)} that only kube-scheduler can place"


def grants_data(shown: GrantsShown) -> dict[str, str]:
    """Return what is said as the data of the ConfigMap."""
    return {_KEY: msgspec.json.encode(shown).decode()}


def shown_grants(data: Mapping[str, str] | None) -> GrantsShown | None:
    """Return what the data of the ConfigMap say; None where they say nothing that can be read."""
    text = (data or {}).get(_KEY, "")
    if not text or len(text) > _LONGEST:
        return None
    try:
        return msgspec.json.decode(text.encode(), type=GrantsShown)
    except (msgspec.DecodeError, RecursionError):
        return None
