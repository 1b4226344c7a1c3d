"""The two places where the node remembers claims, as the engine sees them. Tests bring their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from dra_driver.api.meta import Uid
from dra_driver.cdi import Spec
from dra_driver.preparation import Checkpoint, PreparedClaim

__all__ = ["NO_CHECKPOINT", "Checkpoints", "Specs"]

# Answer of ``load`` where there was never anything, as on the first start.
NO_CHECKPOINT: Final = "no checkpoint"


class Checkpoints(Protocol):
    """The durable records of claims."""

    @property
    def current(self) -> Checkpoint:
        """What is durable now."""
        ...

    async def load(self) -> str:
        """Reads what is there into ``current``.

        Returns:
            Why records may be missing (``NO_CHECKPOINT``, nothing readable, or only an older version); empty
            where all is well.
        """
        ...

    async def refresh(self) -> bool:
        """Reads into ``current`` what another instance has written since; says whether there was anything.

        The caller holds the state lock and nothing of its own is being written.
        """
        ...

    async def save(self, *claims: PreparedClaim) -> None:
        """Writes records; on return they survive the end of the process, however it ends.

        A record that is not COMPLETED survives a power failure too. One that is may be found as it was
        before: the reboot has ended whatever used the devices, and the kubelet prepares again.

        Raises:
            OSError: ``current`` is as it was before.
        """
        ...

    async def booted(self, boot_id: str) -> None:
        """Notes which boot of the machine the records are of.

        Raises:
            OSError: ``current`` is as it was before.
        """
        ...

    async def forget(self, uid: Uid) -> None:
        """Removes a record durably; success where there is none.

        Raises:
            OSError: ``current`` is as it was before.
        """
        ...


class Specs(Protocol):
    """The CDI documents of this driver's claims."""

    async def write(self, uid: Uid, spec: Spec) -> None:
        """Writes the document of a claim; what reads it never sees half of it.

        Raises:
            OSError: the file is as it was before.
        """
        ...

    async def verify(self, uid: Uid, spec: Spec) -> bool:
        """Writes the document again if the file is missing or differs; says whether it did.

        Raises:
            OSError: it differs and cannot be written.
        """
        ...

    async def holds(self, uid: Uid, spec: Spec) -> bool:
        """Whether the file of a claim is there and has just this document.

        Raises:
            OSError: it cannot be read.
        """
        ...

    async def remove(self, uid: Uid) -> None:
        """Removes the document; success where there is none.

        Raises:
            OSError: it is still there.
        """
        ...

    async def ours(self) -> Mapping[Uid, bytes]:
        """The content of every file whose name says that it is of a claim of this driver.

        Raises:
            OSError: the directory cannot be read.
        """
        ...

    async def clean(self) -> None:
        """Removes what a crash left of writes. The caller holds the state lock: nobody writes.

        Raises:
            OSError: the directory cannot be written.
        """
        ...
