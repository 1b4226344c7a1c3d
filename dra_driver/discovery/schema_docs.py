"""Writes what the code knows into the documentation: ``python -m dra_driver.discovery.schema_docs docs``.

Tables of attributes and capacities go into ``attributes.md``, that of XIDs into ``observability.md``, each
between a pair of comments. With ``--check`` nothing is written; the exit status is 1 where something is old.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dra_driver.discovery.core import schema
from dra_driver.discovery.nvidia import xids

__all__ = ["main", "render", "tables", "xid_table"]

_COLUMNS = ("nvml", "amdgpu", "intel", "rdma")


def tables() -> str:
    """Return both tables in Markdown."""
    head = " | ".join(_COLUMNS)
    rule = " | ".join(":-:" for _ in _COLUMNS)
    lines = [f"| attribute | type | meaning | {head} |", f"| --- | --- | --- | {rule} |"]
    lines += [f"| `{s.name}` | {s.kind} | {s.meaning} | {_marks(s.by)} |" for s in schema.ATTRIBUTES]
    lines += ["", f"| capacity | meaning | {head} |", f"| --- | --- | {rule} |"]
    lines += [f"| `{s.name}` | {s.meaning} | {_marks(s.by)} |" for s in schema.CAPACITIES]
    return "\n".join(lines)


def xid_table() -> str:
    """Return the table of XIDs in Markdown, by what they mean for the GPU."""
    lines = [
        "| XID | what has happened | NVIDIA's advice | what it means for the GPU |",
        "| --- | --- | --- | --- |",
    ]
    for effect in reversed(xids.Effect):
        for row in (r for r in xids.ROWS if r.effect is effect):
            codes = row.codes.replace("-", "–").replace(" ", ", ")
            advice = f"`{row.action}`" if row.action else ""
            lines.append(f"| {codes} | {row.text} | {advice} | {effect.value} |")
    return "\n".join(lines)


def _marks(by: Sequence[str]) -> str:
    return " | ".join("✓" if column in by else "" for column in _COLUMNS)


def render(text: str, marker: str, content: str) -> str:
    """Return the page with the content between ``<!-- marker -->`` and ``<!-- /marker -->``."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def main(arguments: Sequence[str]) -> int:
    """Bring the pages in the folder up to date, or check them."""
    check = "--check" in arguments
    folder = Path(next((a for a in arguments if not a.startswith("-")), "docs"))
    pages = {"attributes.md": ("tables", tables()), "observability.md": ("xids", xid_table())}
    old = 0
    for name, (marker, content) in pages.items():
        path = folder / name
        text = path.read_text(encoding="utf-8")
        wanted = render(text, marker, content)
        if wanted == text:
            continue
        old += 1
        if check:
            print(f"{path}: is old; write it anew: python -m dra_driver.discovery.schema_docs {folder}")
        else:
            path.write_text(wanted, encoding="utf-8")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
