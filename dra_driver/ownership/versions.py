"""Which of two versions of an object is the newer one."""

from __future__ import annotations

__all__ = ["is_newer"]


def is_newer(a: str, b: str) -> bool:
    """Return whether resourceVersion ``a`` is ``b`` or later; they are comparable as numbers (KEP-5504)."""
    return a == b or (a.isdigit() and b.isdigit() and int(a) >= int(b))
