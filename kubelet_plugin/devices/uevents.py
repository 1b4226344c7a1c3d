"""The kernel's events of devices and drivers that come and go, as udev receives them, without udev.

The socket is ``NETLINK_KOBJECT_UEVENT``, group 1: one datagram for each event, ``ACTION@DEVPATH`` and then
``NAME=VALUE`` strings, each ended by a zero byte (``lib/kobject_uevent.c`` of the kernel). They are a hint to
look, never a description of what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from dra_driver.discovery.core.hotplug import HotplugHints
from kubelet_plugin.core.endurance import is_shortage

__all__ = ["concerns_us", "heard", "open_uevents"]

_KOBJECT_UEVENT: Final = 15
_KERNEL_GROUP: Final = 1
# The kernel sends no more than a page; udev's own messages are of another group.
_MOST_BYTES: Final = 16384
_MOST_AT_ONCE: Final = 256
_ACTIONS: Final = frozenset({"add", "remove", "bind", "unbind", "change", "online", "offline"})

log = structlog.get_logger(__name__)


def open_uevents() -> socket.socket | None:
    """Return a socket for the kernel's events; None where there are none (system, namespace, permission)."""
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        return None
    opened: socket.socket | None = None
    try:
        opened = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _KOBJECT_UEVENT)
        opened.bind((0, _KERNEL_GROUP))
    except OSError as e:
        log.info("the kernel's events cannot be heard; directories are listed instead", error=str(e))
        if opened is not None:
            opened.close()
        return None
    return opened


def concerns_us(datagram: bytes, hints: HotplugHints) -> bool:
    """Return whether an event is of a device or driver that the hints name. Any bytes are allowed."""
    parts = (part.decode("ascii", "replace").partition("=") for part in datagram.split(b"\0")[1:])
    fields = {name: value for name, _, value in parts}
    if fields.get("ACTION") not in _ACTIONS:
        return False
    subsystem = fields.get("SUBSYSTEM")
    if subsystem == "module":
        return fields.get("DEVPATH", "").rpartition("/")[2] in hints.modules
    return subsystem in hints.subsystems


@contextlib.contextmanager
def heard(source: socket.socket | None, hints: HotplugHints, notify: Callable[[], None]) -> Iterator[None]:
    """Call ``notify`` in the running loop for what concerns us while the block runs; close the socket.

    Args:
        source: of ``open_uevents``; if None, there are no events.
        hints: which events concern us.
        notify: called once for everything that has come by then.
    """
    if source is None:
        yield
        return
    loop = asyncio.get_running_loop()
    source.setblocking(False)
    number = source.fileno()

    def readable() -> None:
        try:
            if _read(source, hints):
                notify()
        except OSError as e:
            log.warning("the kernel's events are not heard any more; directories are listed", error=str(e))
            loop.remove_reader(number)

    loop.add_reader(number, readable)
    try:
        yield
    finally:
        loop.remove_reader(number)
        source.close()


def _read(source: socket.socket, hints: HotplugHints) -> bool:
    """Read what is there, and return whether any of it concerns us."""
    found = False
    for _ in range(_MOST_AT_ONCE):
        try:
            datagram, sender = source.recvfrom(_MOST_BYTES)
        except BlockingIOError:
            break
        except OSError as e:
            if not is_shortage(e):
                raise
            found = True  # more came than there was room for: anything may have happened
            continue
        if not datagram:
            break
        # Of the kernel only, whose number is 0: processes can send into the group as well.
        from_kernel = not isinstance(sender, tuple) or sender[0] == 0
        found = found or (from_kernel and concerns_us(datagram, hints))
    return found
