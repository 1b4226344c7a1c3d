"""The hardware of a crash test's node: what agents find, and what the test knows of it without the product.

A machine outlives the agents as hardware does, because it is files (and processes, for sharing daemons).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol


class Machine(Protocol):
    """One node's hardware."""

    @property
    def driver(self) -> str:
        """The name of the driver whose agent serves it."""

    def arguments(self) -> Sequence[str]:
        """Return the flags by which the agent finds it."""

    def environment(self) -> Mapping[str, str]:
        """Return variables of the agent's process."""

    def boot(self, chance: random.Random) -> None:
        """Come up: other numbers of devices, another driver, nothing of what was set up before."""

    def swap(self) -> None:
        """Give every device the node of another one, as when a driver is loaded anew."""

    def mistake(self, device: Mapping[str, Any], nodes: set[str], spec: Mapping[str, Any]) -> str:
        """Return what is wrong with a claim's CDI document; empty if nothing is.

        Args:
            device: a device of the claim's record.
            nodes: the paths of the device nodes that the document gives for it.
            spec: the document.
        """

    def differences(self, records: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Return kind and text of all that is set up otherwise than the records (and the boot) say."""

    def close(self) -> None:
        """End what runs of it."""
