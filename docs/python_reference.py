"""The reference of the public Python names, made of their docstrings: ``reference/python.md`` of the site.

Which names are public, the table of docs/library.md says.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

LIBRARY = Path(__file__).parent / "library.md"
_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):")
_ENTRY = re.compile(r"(\*{0,2}[\w.`() |]+): (.*)")
# What Python gives every class, error or protocol.
_INHERITED = {*dir(object), *dir(BaseException), *dir(tuple), *dir(Protocol)}


def promised() -> dict[str, list[str]]:
    """Return the public names of each module."""
    found: dict[str, list[str]] = {}
    text = LIBRARY.read_text(encoding="utf-8")
    for module, names in re.findall(r"^\| `(dra_driver[\w.]*)` \| (.+) \|$", text, re.MULTILINE):
        listed = importlib.import_module(module).__all__
        found[module] = sorted(listed if names.startswith("all ") else re.findall(r"`(\w+)`", names))
    return found


def page() -> Iterator[str]:
    """Yield the parts of the page."""
    yield "# Public Python names\n\nWhat may be relied on: [libraries](../library.md#what-is-public). "
    yield "How a driver is written with `dra_driver.sdk`: [writing a driver](../sdk.md).\n"
    for module, names in promised().items():
        yield f"\n## {module}\n"
        imported = importlib.import_module(module)
        for name in names:
            yield from _entry(name, getattr(imported, name))


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"\n### {name}\n\n"
    if isinstance(value, str | int | float):
        yield f"`{value!r}`\n"
        return
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        yield _words(value) + "".join(f"- `{m.name}`: {m.value}\n" for m in value)
        return
    is_protocol = inspect.isclass(value) and Protocol in value.__mro__
    if not is_protocol:
        yield f"```python\n{name}{_signature(value)}\n```\n\n"
    yield _words(value)
    if inspect.isclass(value):
        yield from _members(value)


def _members(value: type) -> Iterator[str]:
    for name, member in inspect.getmembers(value):
        called = name == "__call__" and Protocol in value.__mro__
        if not called and (name.startswith("_") or name in _INHERITED or name.isupper()):
            continue
        if isinstance(member, property):
            yield f"\n**`{name}`**: {_words(member)}"
        elif inspect.isroutine(member):
            shown = _signature(member).replace("(self, ", "(", 1).replace("(self)", "()", 1)
            yield f"\n**`{name}{shown}`**\n\n{_words(member)}"


def _signature(value: Any) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(…)"
    parameters = [p for p in found.parameters.values() if not p.name.startswith("_")]
    # Defaults that are objects are long, and differ between versions of Python.
    plain = (str, int, float, type(None))
    shown = [
        p if p.default is p.empty or isinstance(p.default, plain) else p.replace(default=...)
        for p in parameters
    ]
    text = str(found.replace(parameters=shown)).replace("=Ellipsis", "=...").replace(" = Ellipsis", " = ...")
    # Names without their modules, annotations without quotation marks.
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", re.sub(r"'([\w\[\], .|]+)'", r"\1", text))


def _words(value: Any) -> str:
    """Return a docstring of Google's form as Markdown."""
    lines = (inspect.getdoc(value) or "").replace("``", "`").splitlines()
    out: list[str] = []
    within = False
    for line in lines:
        section = _SECTION.fullmatch(line)
        entry = _ENTRY.fullmatch(line.strip())
        indent = len(line) - len(line.lstrip())
        if section is not None:
            out += [*([""] if out and out[-1] else []), f"**{section[1]}**", ""]
            within = True
        elif within and indent == 4 and entry is not None:
            out.append(f"- `{entry[1].strip('`')}`: {entry[2]}")
        elif within and indent >= 4:
            out.append(f"  {line.strip()}" if out[-1].startswith(("- ", "  ")) else line.strip())
        else:
            within = within and not line.strip()
            out.append(line)
    return "\n".join(out).strip() + "\n"
