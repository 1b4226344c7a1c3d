"""Kinds of opaque parameters that drivers of third parties bring, where they are installed beside us."""

from __future__ import annotations

from importlib import metadata
from typing import Final

import structlog

from dra_driver.api.own.kinds import BackendParameters, kinds_by_name

__all__ = ["ENTRY_POINTS", "installed_kinds"]

ENTRY_POINTS: Final = "dra_driver.parameters"

log = structlog.get_logger(__name__)


def installed_kinds() -> dict[tuple[str, str], type[BackendParameters]]:
    """Return the kinds by ``apiVersion`` and ``kind``; of one name the first.

    What cannot be loaded, or is no kind, is logged and left out: the node checks again, and the webhook of
    all other drivers must not end for it.
    """
    found: dict[tuple[str, str], type[BackendParameters]] = {}
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            brought = kinds_by_name(entry.load())
        except Exception as e:
            log.error("parameters of a driver cannot be checked", entry=entry.value, error=str(e))
            continue
        found = brought | found
    return found
