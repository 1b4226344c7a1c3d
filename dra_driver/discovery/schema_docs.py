"""Writes the tables of ``attributes.md`` from the code: ``python -m dra_driver.discovery.schema_docs docs``.

They are between a pair of comments. With ``--check`` nothing is written; the exit status is 1 if the page
is old. The table of XIDs is a page of the reference, which ``docs/site.py`` writes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dra_driver.discovery.core import schema
from dra_driver.discovery.nvidia import xids

__all__ = ["main", "render", "tables", "xid_table"]

_BACKENDS = ("nvml", "amdgpu", "intel", "rdma")


def tables() -> str:
    """Return both tables in Markdown."""
    lines = ["| attribute | type | meaning | reported by |", "| --- | --- | --- | --- |"]
    lines += [f"| `{s.name}` | {s.kind} | {s.meaning} | {_backends(s.by)} |" for s in schema.ATTRIBUTES]
    lines += ["", "| capacity | meaning | reported by |", "| --- | --- | --- |"]
    lines += [f"| `{s.name}` | {s.meaning} | {_backends(s.by)} |" for s in schema.CAPACITIES]
    return "\n".join(lines)


def xid_table() -> str:
    """Return the XIDs in Markdown: one table for each effect on the GPU."""
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


def render(text: str, marker: str, content: str) -> str:
    """Return the page with the content between ``<!-- marker -->`` and ``<!-- /marker -->``."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def main(arguments: Sequence[str]) -> int:
    """Bring the page in the folder up to date, or check it."""
    folder = Path(next((a for a in arguments if not a.startswith("-")), "docs"))
    path = folder / "attributes.md"
    text = path.read_text(encoding="utf-8")
    wanted = render(text, "tables", tables())
    if wanted == text:
        return 0
    if "--check" in arguments:
        print(f"{path}: is old; write it anew: python -m dra_driver.discovery.schema_docs {folder}")
        return 1
    path.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
