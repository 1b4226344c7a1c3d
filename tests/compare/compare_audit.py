"""The API server's audit log: who wrote what."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Audit", "Written", "count"]

Written = Counter[tuple[str, str]]
"""Writes by writer and by what was written: ``("kube-scheduler", "create pods/binding")``."""

_REFUSED = 400


def count(lines: Iterable[str], namespace: str) -> Written:
    """Count the writes to objects of a namespace that the API server has carried out.

    Args:
        lines: of the audit log, one JSON object each.
        namespace: of the objects.
    """
    found: Written = Counter()
    for line in lines:
        entry = json.loads(line)
        about = entry.get("objectRef") or {}
        if about.get("namespace") != namespace or entry["responseStatus"].get("code", 0) >= _REFUSED:
            continue
        kind = "/".join(filter(None, (about["resource"], about.get("subresource", ""))))
        writer = entry.get("userAgent", "").split("/", 1)[0]
        found[writer, f"{entry['verb']} {kind}"] += 1
    return found


class Audit:
    """What is written to a namespace from now on.

    Args:
        file: the audit log.
        namespace: of the objects.
    """

    def __init__(self, file: Path, namespace: str) -> None:
        self._file = file
        self._namespace = namespace
        self._begin = file.stat().st_size

    def written(self) -> Written:
        """Return what has been written until now."""
        with self._file.open("rb") as log:
            log.seek(self._begin)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        return count(whole.decode().splitlines(), self._namespace)
