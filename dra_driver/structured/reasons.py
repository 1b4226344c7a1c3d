"""Why nothing fits, in words."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.structured.types import NodeReasons

__all__ = ["summary"]


def summary(reasons: Sequence[NodeReasons]) -> str:
    """One sentence over all nodes."""
    return f"0 of {len(reasons)} nodes"
