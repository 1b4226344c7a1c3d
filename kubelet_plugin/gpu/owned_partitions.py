"""Which partitions of GPUs an administrator owns, so that they are never destroyed by this driver on its own.

An administrator owns

* every partition of the node while its Node has one of the labels that NVIDIA's MIG manager works by;
* the partitions and the partitions of the GPUs whose UUIDs are in the file ``owned-partitions`` of the state
  directory, one a line; what follows a ``#`` is a comment.

A partition that a process uses is nobody's to destroy: the driver refuses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dra_driver.errors import PrepareError
from dra_driver.hardware import GpuInstance

__all__ = ["FILE", "MANAGER_LABELS", "owner"]

FILE: Final = "owned-partitions"
MANAGER_LABELS: Final = ("nvidia.com/mig.config", "nvidia.com/mig.config.state")
_MOST_BYTES: Final = 1 << 20
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:/_.-]{0,127}")


def owner(gpu: str, instance: GpuInstance, *, labels: Mapping[str, str], file: Path) -> str:
    """Return what says that an administrator owns the partition, as a clause; empty if nothing does.

    Args:
        gpu: UUID of its GPU.
        instance: the partition.
        labels: of the Node.
        file: the list of UUIDs; it need not exist.

    Raises:
        PrepareError: the file is there and cannot be understood: then it is not known what is owned.
    """
    for label in MANAGER_LABELS:
        if label in labels:
            return f"the Node has the label {label}"
    listed = _listed(file)
    return next((f"{uuid} is in {file}" for uuid in (gpu, instance.uuid) if uuid and uuid in listed), "")


def _listed(file: Path) -> frozenset[str]:
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES + 1).decode("utf-8")
    except FileNotFoundError:
        return frozenset()
    except (OSError, UnicodeDecodeError) as e:
        raise PrepareError(f"{file} cannot be read: {e}") from e
    words = [word for line in text.splitlines() if (word := line.partition("#")[0].strip())]
    wrong = next((w for w in words if not _UUID.fullmatch(w)), "")
    if wrong or len(text) > _MOST_BYTES:
        raise PrepareError(
            f"{file}: {wrong[:80]!r} is not a UUID of a GPU or a partition; expected one per line"
        )
    return frozenset(words)
