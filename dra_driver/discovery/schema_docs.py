"""Tables of what the code knows, in Markdown, for the reference that ``docs/site.py`` writes."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.discovery.core import schema
from dra_driver.discovery.nvidia import xids

__all__ = ["schema_tables", "xid_tables"]

_BACKENDS = ("nvml", "amdgpu", "intel", "rdma")


def schema_tables() -> str:
    """Return all attributes and capacities, with the backends that report each."""
    lines = ["| attribute | type | meaning | reported by |", "| --- | --- | --- | --- |"]
    lines += [f"| `{s.name}` | {s.kind} | {s.meaning} | {_backends(s.by)} |" for s in schema.ATTRIBUTES]
    lines += ["", "| capacity | meaning | reported by |", "| --- | --- | --- |"]
    lines += [f"| `{s.name}` | {s.meaning} | {_backends(s.by)} |" for s in schema.CAPACITIES]
    return "\n".join(lines)


def xid_tables() -> str:
    """Return the XIDs: one table for each effect on the GPU."""
    parts = []
    for effect in reversed(xids.Effect):
        lines = [f"## {effect.value}", "", "| XID | what happened | NVIDIA's advice |", "| --- | --- | --- |"]
        for row in (r for r in xids.ROWS if r.effect is effect):
            codes = row.codes.replace("-", "–").replace(" ", ", ")
            advice = f"`{row.action}`" if row.action else ""
            lines.append(f"| {codes} | {row.text} | {advice} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _backends(by: Sequence[str]) -> str:
    named = [backend for backend in _BACKENDS if backend in by]
    return "all" if len(named) == len(_BACKENDS) else ", ".join(named)
