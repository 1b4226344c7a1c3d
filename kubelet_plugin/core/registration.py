"""Whether the kubelet has the plugin registered: noted by the gRPC services, written to the inventory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from kubelet_plugin.core.signals import Changes

__all__ = ["RegistrationState"]

log = structlog.get_logger(__name__)


class RegistrationState:
    """The plugin's registration with the kubelet, as far as the kubelet reports it.

    Args:
        sockets_present: whether the sockets are where the kubelet looks.
        note: called with whether the plugin is registered, whenever the kubelet says so.

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
        """What the kubelet said last; None if it has said nothing since the start."""
        return self._registered

    @property
    def confirmations(self) -> int:
        """How often the kubelet has confirmed a registration since the start."""
        return self._confirmations

    @property
    def live(self) -> bool:
        """Whether the kubelet can be taken to have the plugin registered right now.

        The kubelet does not say when it drops a plugin. Signs that it has not: the sockets are where it
        looks, and the health stream is open, with kubelets that open one.
        """
        streaming = self._streams > 0 or not self._had_stream
        return self._registered is True and streaming and self._sockets_present()

    def confirmed(self) -> None:
        """Note that the kubelet has accepted the plugin."""
        self._registered = True
        # Another kubelet, or the same one with another gate, need not open a stream.
        self._had_stream = self._streams > 0
        self._confirmations += 1
        self._note(True)
        log.info("the kubelet has registered the plugin", times=self._confirmations)
        self.changes.notify()

    def rejected(self, error: str) -> None:
        """Note that the kubelet has refused the plugin; it will ask again."""
        self._registered = False
        self._note(False)
        log.error("the kubelet refuses the plugin", error=error[:1024])
        self.changes.notify()

    def withdrawn(self) -> None:
        """Note that the sockets are gone, on purpose or not."""
        self._registered = False
        self._note(False)
        self.changes.notify()

    def silent(self) -> None:
        """Note that no kubelet has asked for the plugin for a good while after the start."""
        if self._registered is None:
            self._registered = False
            self.changes.notify()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count a health stream as open inside the block."""
        self._had_stream = True
        self._streams += 1
        self.changes.notify()
        try:
            yield
        finally:
            self._streams -= 1
            self.changes.notify()
