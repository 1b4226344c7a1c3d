"""Device nodes that belong to one device: prepare never does without them, and their numbers change."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from dra_driver.cdi.spec import ContainerEdits, DeviceNode

__all__ = ["own_nodes"]

_NUMBERED: Final = re.compile(r".*[0-9]", re.DOTALL)


def own_nodes(edits: ContainerEdits, known: Collection[str] | None) -> tuple[DeviceNode, ...]:
    """Return those device nodes of the edits that belong to the device alone.

    The other nodes are of the driver, for all of its devices.

    Args:
        edits: what a container needs for the device.
        known: paths, in the container, of the nodes that are its own, as its backend stated them. If None, as
            of a backend that does not state them and in records of versions that did not keep them, those
            whose names on the host end in a number: so the kernel names the nodes of single devices.
    """
    if known is None:
        return tuple(n for n in edits.device_nodes if _NUMBERED.fullmatch(n.host_path or n.path))
    return tuple(n for n in edits.device_nodes if n.path in known)
