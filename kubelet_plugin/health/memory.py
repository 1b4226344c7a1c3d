"""Health conditions that outlive the agent: events of the hardware come only once.

One file, written before it is reported that a condition has begun or ended: a GPU that was sick when the
agent was killed is sick when the agent is back. It is of one boot of the machine, because a restart of the
machine resets every device. What else ends a condition is the backend's to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

import msgspec
import structlog

from dra_driver.api import codec
from dra_driver.errors import DecodeError
from dra_driver.ports import DeviceBackend, HealthMemory
from kubelet_plugin.core import files
from kubelet_plugin.core.notices import HEALTH_MEMORY_DAMAGED

__all__ = ["HealthFile", "health_memories"]

VERSION: Final = 1
FILE_MODE: Final = 0o600

log = structlog.get_logger(__name__)


class _Envelope(msgspec.Struct, frozen=True):
    """The form of the checkpoint: the checksum is over the bytes of ``payload`` as they stand."""

    version: int
    checksum: str
    payload: msgspec.Raw


class _Payload(msgspec.Struct, frozen=True, rename="camel"):
    boot_id: str
    backends: dict[str, msgspec.Raw]


def health_memories(backends: Sequence[DeviceBackend]) -> Iterator[HealthMemory]:
    """Return the backends that have something to be kept."""
    return (b for b in backends if isinstance(b, HealthMemory))


class HealthFile:
    """The file of what backends want to be kept.

    Two instances of the plugin may share the file: each adds what the other has written before it writes.

    Args:
        path: the file; ``FILE.previous`` is the version before the last write.
        backends: the node's; those that keep nothing are left out.
        boot_id: of this boot; empty where unknown, then nothing is taken to be of an earlier one.
        report: called with the kind (see ``notices``) and the text of a finding.
    """

    def __init__(
        self,
        path: Path,
        backends: Sequence[DeviceBackend],
        executor: Executor,
        *,
        boot_id: str = "",
        report: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._path = path
        self._previous = path.with_name(f"{path.name}.previous")
        self._memories = {memory.name: memory for memory in health_memories(backends)}
        self._executor = executor
        self._boot_id = boot_id
        self._report = report
        self._seen: tuple[int, ...] | None = None
        self._written: dict[str, bytes] = {}
        # Also of backends that are not configured now, or do not answer.
        self._kept: Mapping[str, bytes] = {}
        # Whether the file is worth keeping as the previous version; not so after it was found damaged.
        self._usable = True
        self._one = asyncio.Lock()

    async def load(self) -> None:
        """Load what was kept, before the hardware is looked at for the first time."""
        if self._memories:
            loop = asyncio.get_running_loop()
            for problem in await loop.run_in_executor(self._executor, self._load):
                self._report(HEALTH_MEMORY_DAMAGED, problem)

    async def keep(self) -> None:
        """Write what has changed, durably; what cannot be written is logged and tried again next time."""
        if not self._memories:
            return
        async with self._one:
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, self._keep)
            except OSError as e:
                log.error(
                    "the health of devices could not be written down", path=str(self._path), error=str(e)
                )

    # --- in a thread ----------------------------------------------------------------------------------------

    def _load(self) -> list[str]:
        problems: list[str] = []
        for path in (self._path, self._previous):
            try:
                with self._locked():
                    files.remove_temporary(path.parent, self._path.name)
                    self._seen = _identity(self._path)
                    self._take(path.read_bytes())
                break
            except FileNotFoundError:
                continue
            except (OSError, DecodeError) as e:
                self._usable = self._usable and path != self._path
                log.error("what was known of the devices' health is lost", path=str(path), error=str(e))
                problems.append(f"the record of the devices' health {path} cannot be used: {e}")
        return problems

    def _keep(self) -> None:
        now = self._remembered()
        if now == self._written and _identity(self._path) == self._seen:
            return
        with self._locked():
            if _identity(self._path) != self._seen:
                try:
                    self._take(self._path.read_bytes())
                except FileNotFoundError:
                    pass
                except DecodeError as e:
                    self._usable = False
                    log.error("the record of the devices' health is written anew", error=str(e))
            now = self._remembered()
            backends = {**self._kept, **now}
            payload = codec.encode(
                _Payload(self._boot_id, {name: msgspec.Raw(data) for name, data in sorted(backends.items())})
            )
            head = codec.encode({"version": VERSION, "checksum": _checksum(payload)})
            if self._usable:
                files.keep_previous(self._path, self._previous)
            files.write(self._path, head[:-1] + b',"payload":' + payload + b"}\n", FILE_MODE)
            self._seen, self._written, self._usable = _identity(self._path), now, True

    def _remembered(self) -> dict[str, bytes]:
        """Return what each backend remembers; one that fails or gives no JSON costs the others nothing."""
        found: dict[str, bytes] = {}
        for name, memory in self._memories.items():
            try:
                found[name] = memory.health_memory()
                msgspec.json.decode(found[name])
            except Exception as e:
                # A bug, maybe a third party's.
                log.error("what a backend knows of health cannot be kept", backend=name, error=repr(e)[:300])
                found.pop(name, None)
                if name in self._written:
                    found[name] = self._written[name]
        return found

    def _take(self, data: bytes) -> None:
        envelope = codec.decode(_Envelope, data)
        if _checksum(bytes(envelope.payload)) != envelope.checksum:
            raise DecodeError(f"checksum is {envelope.checksum[:80]!r}, which is not that of the content")
        payload = codec.decode(_Payload, bytes(envelope.payload))
        if self._boot_id and payload.boot_id and payload.boot_id != self._boot_id:
            log.info("the devices' health was written down before the machine was restarted; it is not used")
            return
        kept = {name: bytes(raw) for name, raw in payload.backends.items()}
        self._kept = kept
        problems: list[str] = []
        for name, memory in self._memories.items():
            try:
                if name in kept:
                    memory.recall_health(kept[name])
            except DecodeError as e:
                problems.append(f"{name}: {e}")
            except Exception:
                # A bug in a backend must not end the plugin at each of its starts.
                log.exception("a backend does not take back what it knew of health", backend=name)
        if problems:
            raise DecodeError("; ".join(problems))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold a lock against another instance, for the time of one write."""
        files.make_directory(self._path.parent, 0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path.with_name(f"{self._path.name}.lock"), flags, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _checksum(payload: bytes) -> str:
    return f"sha256:{hashlib.sha256(payload).hexdigest()}"


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
