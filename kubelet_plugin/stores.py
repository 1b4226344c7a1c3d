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

    async def save(self, *claims: PreparedClaim) -> None:
        """Writes records; they are durable on return.

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
        """Writes the document of a claim durably.

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

    async def remove(self, uid: Uid) -> None:
        """Removes the document durably; success where there is none.

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
