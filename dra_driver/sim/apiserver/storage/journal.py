"""The file that keeps a server's objects over restarts: one line of JSON for every change.

A change is in the file before it is answered or watched, so a server that is killed at any moment comes
back with all that it has answered, and its resource versions go on where they were. A last line that is cut
off has never been answered, and is left out. When the file is several times as large as its objects, a new
one is written and replaces it in one step.

The first line identifies the file; its ``versions`` are those of the last change of each kind, so that
watches know which history is gone. Lines are written, not synced to the disk: a power failure may lose the
last ones.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from dra_driver.errors import ConfigurationError
from dra_driver.sim.apiserver.objects.status import Raw

__all__ = ["Journal", "Kept", "change_line"]

FORMAT = "dra-driver sim objects 1"
SMALLEST = 4 * 1024 * 1024
"""Bytes that a file may always have before it is written anew."""

GROWTH = 3
"""It is written anew when it has this many times the size of what it was when it was last written."""

_encode = msgspec.json.Encoder().encode


class _Change(NamedTuple):
    """One line. ``object`` is None for a deletion; ``plural`` is empty if only the version has advanced."""

    version: int
    group: str = ""
    plural: str = ""
    namespace: str = ""
    name: str = ""
    object: Raw | None = None


class _Header(msgspec.Struct, frozen=True):
    """The first line."""

    format: str
    version: int
    versions: dict[str, int]


class Kept(NamedTuple):
    """What a file holds.

    Attributes:
        version: the newest resource version.
        objects: objects by group, plural, namespace and name.
        versions: version of the last change, by group and plural.
    """

    version: int
    objects: Mapping[tuple[str, str, str, str], Raw]
    versions: Mapping[tuple[str, str], int]


class Journal:
    """An open file.

    Args:
        path: the file; it is created if it is not there.

    Attributes:
        kept: what the file held when it was opened.

    Raises:
        ConfigurationError: it cannot be used, is used by another server, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1
        self._file = -1
        try:
            self._lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with open(self._file, "rb", closefd=False) as f:
                data = f.read()
            self.kept, whole = _read(data, path)
            if whole < len(data):
                os.ftruncate(self._file, whole)
        except BlockingIOError:
            self.close()
            raise ConfigurationError(f"--data {path}: another server uses it") from None
        except OSError as e:
            self.close()
            raise ConfigurationError(f"--data {path}: {e.strerror or e}") from e
        except ConfigurationError:
            self.close()
            raise
        self._size = self._limit = whole  # so that the first change rewrites it, with a header

    def close(self) -> None:
        """Close the file."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._file = self._lock = -1

    @property
    def full(self) -> bool:
        """Whether it should be rewritten."""
        return self._size >= self._limit

    def append(self, line: bytes) -> None:
        """Append a line of ``change_line``.

        Raises:
            OSError: it cannot be written; then nothing of it is in the file.
        """
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, "no space left")
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def rewrite(self, version: int, versions: Mapping[str, int], changes: Iterator[bytes]) -> None:
        """Replace the file by one that has nothing but the present objects.

        Args:
            version: the newest resource version.
            versions: version of the last change, by ``group/plural``.
            changes: a line of ``change_line`` for each object.

        Raises:
            OSError: it cannot be written; the old file is still in its place.
        """
        temporary = self.path.with_name(f"{self.path.name}.new")
        header = {"format": FORMAT, "version": version, "versions": versions}
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
            f.write(_encode(header) + b"\n")
            f.writelines(changes)
            f.flush()
            os.fsync(f.fileno())
            size = f.tell()
        temporary.replace(self.path)
        os.close(self._file)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._size, self._limit = size, max(SMALLEST, GROWTH * size)


def change_line(version: int, group: str, plural: str, key: tuple[str, str], encoded: bytes) -> bytes:
    """Return the line of a change.

    Args:
        version: resource version of the change.
        group: API group of the kind.
        plural: plural name of the kind; empty if only the version has advanced.
        key: namespace and name.
        encoded: the object as JSON; ``null`` if it is deleted.
    """
    return _encode([version, group, plural, *key])[:-1] + b"," + encoded + b"]\n"


def _read(data: bytes, path: Path) -> tuple[Kept, int]:
    """Return what the lines hold, and how many bytes of them are complete."""
    whole = data.rfind(b"\n") + 1
    if not whole:
        if data and not FORMAT.encode().startswith(data[11 : 11 + len(FORMAT)]):
            raise ConfigurationError(f"--data {path}: is no file of an API server")
        return Kept(0, {}, {}), 0
    header, *lines = data[: whole - 1].split(b"\n")
    try:
        head = msgspec.json.decode(header, type=_Header)
        known = head.format == FORMAT
    except msgspec.DecodeError:
        known = False
    if not known:
        raise ConfigurationError(f"--data {path}: is no file of an API server (no {FORMAT!r} in line 1)")
    version = head.version
    objects: dict[tuple[str, str, str, str], Raw] = {}
    versions = {_pair(name): v for name, v in head.versions.items()}
    decoder = msgspec.json.Decoder(_Change)
    for number, line in enumerate(lines, start=2):
        try:
            change = decoder.decode(line)
        except msgspec.DecodeError as e:
            raise ConfigurationError(f"--data {path}: line {number} is damaged: {e}") from None
        version = max(version, change.version)
        if not change.plural:
            continue
        kind = (change.group, change.plural)
        versions[kind] = max(versions.get(kind, 0), change.version)
        key = (*kind, change.namespace, change.name)
        if change.object is None:
            objects.pop(key, None)
        else:
            objects[key] = change.object
    return Kept(version, objects, versions), whole


def _pair(name: str) -> tuple[str, str]:
    group, _, plural = name.rpartition("/")
    return group, plural
