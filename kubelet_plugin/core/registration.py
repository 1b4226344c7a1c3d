"""Whether the kubelet knows us: what the gRPC services note and the inventory keeper writes down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from kubelet_plugin.core.signals import Changes

__all__ = ["RegistrationState"]

log = structlog.get_logger(__name__)


class RegistrationState:
    """The kubelet's view of us, as far as it tells.

    Args:
        sockets_present: whether the sockets are where the kubelet looks.
        note: told whenever the kubelet takes us or drops us.

    Attributes:
        changes: notified at each change.
    """

    def __init__(
        self, sockets_present: Callable[[], bool], note: Callable[[bool], None] = lambda _: None
    ) -> None:
        self._sockets_present = sockets_present
        self._note = note
        self._registered: bool | None = None
        self._confirmations = 0
        self._streams = 0
        self._had_stream = False
        self.changes = Changes()

    @property
    def registered(self) -> bool | None:
        """What the kubelet said last; None where it has said nothing since we started."""
        return self._registered

    @property
    def confirmations(self) -> int:
        """How often the kubelet has confirmed a registration since we started."""
        return self._confirmations

    @property
    def live(self) -> bool:
        """Whether the kubelet can be taken to know us right now.

        The kubelet does not say when it drops us. Signs that it has not: our sockets are where it looks, and
        the health stream is open, with kubelets that open one.
        """
        streaming = self._streams > 0 or not self._had_stream
        return self._registered is True and streaming and self._sockets_present()

    def confirmed(self) -> None:
        """The kubelet has accepted us."""
        self._registered = True
        self._confirmations += 1
        self._note(True)
        log.info("the kubelet has registered the plugin", times=self._confirmations)
        self.changes.notify()

    def rejected(self, error: str) -> None:
        """The kubelet has refused us; it will ask again."""
        self._registered = False
        self._note(False)
        log.error("the kubelet refuses the plugin", error=error[:1024])
        self.changes.notify()

    def withdrawn(self) -> None:
        """Our sockets are gone, on purpose or not."""
        self._registered = False
        self._note(False)
        self.changes.notify()

    def silent(self) -> None:
        """Nobody has asked for us for a good while after the start."""
        if self._registered is None:
            self._registered = False
            self.changes.notify()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Around a health stream."""
        self._had_stream = True
        self._streams += 1
        self.changes.notify()
        try:
            yield
        finally:
            self._streams -= 1
            self.changes.notify()
