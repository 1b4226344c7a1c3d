"""How one part wakes another without knowing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

__all__ = ["Signal"]

P = ParamSpec("P")


class Signal(Generic[P]):
    """Something that happens. It is made before the parts that send it and the parts that listen to it."""

    def __init__(self) -> None:
        self._listeners: list[Callable[P, None]] = []

    def listen(self, listener: Callable[P, None]) -> None:
        """Call a function whenever the signal is sent, from now on."""
        self._listeners.append(listener)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all listeners, in the order in which they came."""
        for listener in self._listeners:
            listener(*args, **kwargs)
