"""What is needed of the headers of a shared library: its word size and its SONAME (System V ABI, ELF)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["Library", "read_library"]

_LOAD: Final = 1
_DYNAMIC: Final = 2
_STRINGS: Final = 5
_SONAME: Final = 14
_MOST_HEADERS: Final = 128
_MOST_DYNAMIC: Final = 64 * 1024
_LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class Library:
    """Headers of a library.

    Attributes:
        bits: 32 or 64.
        soname: the name by which other programs are linked with it; empty if it has none.
    """

    bits: int
    soname: str = ""


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def read_library(path: Path) -> Library | None:
    """Return the headers of a file; None if it cannot be read or is no little-endian ELF file."""
    try:
        with path.open("rb") as file:
            identity = file.read(16)
            if (
                identity[:4] != b"\x7fELF"
                or len(identity) < 16
                or identity[5] != 1
                or identity[4] not in (1, 2)
            ):
                return None
            bits = 32 * identity[4]
            segments = tuple(_segments(file, bits))
            return Library(bits, _soname(file, bits, segments))
    except (OSError, OverflowError, ValueError, struct.error):
        return None


def _segments(file: BinaryIO, bits: int) -> Iterator[_Segment]:
    file.seek(0)
    if bits == 64:
        start, size, count = struct.unpack("<32xQ14xHH6x", file.read(64))
    else:
        start, size, count = struct.unpack("<28xI10xHH6x", file.read(52))
    for i in range(min(count, _MOST_HEADERS)):
        file.seek(start + i * size)
        if bits == 64:
            kind, offset, address, length = struct.unpack("<I4xQQ8xQ16x", file.read(56))
        else:
            kind, offset, address, length = struct.unpack("<III4xI12x", file.read(32))
        yield _Segment(kind, offset, address, length)


def _soname(file: BinaryIO, bits: int, segments: tuple[_Segment, ...]) -> str:
    dynamic = next((s for s in segments if s.kind == _DYNAMIC), None)
    if dynamic is None:
        return ""
    entry = struct.Struct("<qQ" if bits == 64 else "<iI")
    file.seek(dynamic.offset)
    data = file.read(min(dynamic.size, _MOST_DYNAMIC))
    found = dict(entry.iter_unpack(data[: len(data) // entry.size * entry.size]))
    if _SONAME not in found or _STRINGS not in found:
        return ""
    address = found[_STRINGS] + found[_SONAME]
    for segment in segments:
        if segment.kind == _LOAD and segment.address <= address < segment.address + segment.size:
            file.seek(segment.offset + address - segment.address)
            name = file.read(_LONGEST_NAME + 1).partition(b"\0")[0].decode("utf-8", "replace")
            # It becomes a path: a name is one part of it.
            return name if "/" not in name and name not in ("", ".", "..") else ""
    return ""
