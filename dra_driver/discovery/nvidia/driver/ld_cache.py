"""Reads the dynamic linker's cache (``/etc/ld.so.cache``) of another root: which library is where.

The format of glibc since 2.2: a header with a magic text, the number of entries and the length of the
strings, then entries of 24 bytes (flags, offset of the name, offset of the path, two that we do not need),
then the strings. Offsets count from the magic. A file may begin with the older format, which is skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

__all__ = ["libraries"]

_MAGIC: Final = b"glibc-ld.so.cache1.1"
_HEADER: Final = struct.Struct("<20sII20x")
_ENTRY: Final = struct.Struct("<iIIIQ")
_MAX_ENTRIES: Final = 100_000


def libraries(data: bytes) -> Iterator[tuple[str, str]]:
    """Return name and path of every entry, in the order of the cache; nothing if it is no cache."""
    start = data.find(_MAGIC)
    if start < 0 or len(data) < start + _HEADER.size:
        return
    _, count, _ = _HEADER.unpack_from(data, start)
    if count > _MAX_ENTRIES:
        return
    for i in range(count):
        offset = start + _HEADER.size + i * _ENTRY.size
        if offset + _ENTRY.size > len(data):
            return
        _, name, path, _, _ = _ENTRY.unpack_from(data, offset)
        yield _text(data, start + name), _text(data, start + path)


def _text(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset)
    return data[offset : end if end >= 0 else len(data)].decode("utf-8", "replace")
