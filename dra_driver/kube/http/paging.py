"""How large the pages of a list are.

The API takes a number of items. What a page may cost is bytes: 500 objects of a tenant's can be gigabytes.
So the number follows from the bytes that items had so far, and a page that is longer all the same is given up
and asked for anew with fewer items, until it has a single one.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LARGEST_OBJECT", "LARGEST_PAGE", "MOST_ITEMS", "PageSize"]

MOST_ITEMS: Final = 500  # as client-go
LARGEST_PAGE: Final = 16 * 1024 * 1024
"""Bytes of a page of several items beyond which it is given up."""
LARGEST_OBJECT: Final = 32 * 1024 * 1024
"""Bytes of a single object. etcd takes 1.5 MiB, which JSON with its escapes makes up to six times as long."""

_WANTED: Final = 4 * 1024 * 1024
_FIRST: Final = 64
# By which a page may have more items than the one before: the next objects may be another tenant's.
_GROWTH: Final = 4


class PageSize:
    """Number of items of the next page.

    Attributes:
        items: that are asked for.
    """

    def __init__(self) -> None:
        self.items = _FIRST

    @property
    def longest(self) -> int:
        """Bytes that the answer may have."""
        return LARGEST_PAGE if self.items > 1 else LARGEST_OBJECT

    def fits(self, items: int, size: int) -> None:
        """Take in how long a page was."""
        wanted = items * _WANTED // size if size else MOST_ITEMS
        self.items = max(1, min(wanted, self.items * _GROWTH, MOST_ITEMS))

    def exceeds(self) -> None:
        """Take in that a page was too long."""
        self.items = max(1, self.items // _GROWTH)
