"""The node's memory on a disk that survives, with a crash or an error at a chosen effect."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver import cdi
from dra_driver.api.meta import Uid
from dra_driver.cdi import Spec
from dra_driver.preparation import Checkpoint, PreparedClaim


class Crash(Exception):
    """The process is gone; what follows in it does not happen."""


@dataclass
class Disk:
    """What survives.

    Attributes:
        trouble_at: number of the effect at which it happens, from 0; None: never.
        after: whether the effect reaches the disk first.
        error: an OSError for the caller instead of a crash.
    """

    checkpoint: bytes = field(default_factory=lambda: Checkpoint().encode())
    specs: dict[Uid, bytes] = field(default_factory=dict)
    effects: int = 0
    trouble_at: int | None = None
    after: bool = False
    error: bool = False

    def claims(self) -> dict[str, str]:
        """State of every record."""
        return {c.uid: c.state.value for c in Checkpoint.decode(self.checkpoint)}

    def effect(self, *, done: bool) -> None:
        """Around every effect."""
        if not done:
            self.effects += 1
        if self.trouble_at == self.effects - 1 and done == self.after:
            self.trouble_at = None
            if self.error:
                raise OSError(errno.ENOSPC, "No space left on device")
            raise Crash


class DiskCheckpoints:
    """Implements ``reservations.Checkpoints``."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.current = Checkpoint()

    async def load(self) -> str:
        self.current = Checkpoint.decode(self._disk.checkpoint)
        return ""

    async def refresh(self) -> str | None:
        before, self.current = self.current, Checkpoint.decode(self._disk.checkpoint)
        return "" if self.current != before else None

    @property
    def is_folded(self) -> bool:
        return True

    async def fold(self) -> None:
        pass

    async def booted(self, boot_id: str) -> None:
        if self.current.boot_id != boot_id:
            self._write(self.current.with_boot_id(boot_id))

    async def save(self, *claims: PreparedClaim) -> None:
        self._write(self.current.changed({c.uid: c for c in claims}))

    async def forget(self, uid: Uid) -> None:
        if self.current.get(uid) is not None:
            self._write(self.current.without(uid))

    def _write(self, new: Checkpoint) -> None:
        self._disk.effect(done=False)
        self._disk.checkpoint = new.encode()
        self._disk.effect(done=True)
        self.current = new


class DiskSpecs:
    """Implements ``cdi_directory.Specs``."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def write(self, uid: Uid, spec: Spec) -> None:
        self._disk.effect(done=False)
        self._disk.specs[uid] = cdi.encode(spec)
        self._disk.effect(done=True)

    async def verify(self, uid: Uid, spec: Spec) -> bool:
        if self._disk.specs.get(uid) == cdi.encode(spec):
            return False
        await self.write(uid, spec)
        return True

    async def holds(self, uid: Uid, spec: Spec) -> bool:
        return self._disk.specs.get(uid) == cdi.encode(spec)

    async def remove(self, uid: Uid) -> None:
        if uid in self._disk.specs:
            self._disk.effect(done=False)
            del self._disk.specs[uid]
            self._disk.effect(done=True)

    async def ours(self) -> Mapping[Uid, bytes]:
        return dict(self._disk.specs)

    async def clean(self) -> None:
        pass
