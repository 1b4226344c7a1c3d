"""What others may rely on: the names that the documentation promises, recorded with their signatures."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import os
import re
from typing import Any, Protocol

import pytest
from nonempty import nonempty
from paths import GOLDEN, PROJECT

PAGE = (PROJECT / "docs" / "library.md").read_text()
RECORD = GOLDEN / "public_names.json"


def promised() -> dict[str, list[str]]:
    """Module → names, as the table of the page says."""
    found: dict[str, list[str]] = {}
    for module, names in re.findall(r"^\| `(dra_driver[\w.]*)` \| (.+) \|$", PAGE, re.MULTILINE):
        listed = importlib.import_module(module).__all__
        found[module] = sorted(listed if names.startswith("all ") else re.findall(r"`(\w+)`", names))
        assert set(found[module]) <= set(listed), f"{module}: not in __all__"
    return found


def signature(value: Any) -> Any:
    """What of a name others see: of a class its fields, members and methods; of a function its parameters."""
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return {m.name: str(m.value) for m in value}
    if inspect.isclass(value):
        # What Python itself says of a class, and how, differs between its versions.
        inherited = {*dir(BaseException), *dir(tuple), *dir(Protocol)}
        members: dict[str, Any] = {"bases": [b.__name__ for b in value.__bases__]}
        if Protocol not in value.__mro__:
            members["()"] = _parameters(value)
        for name, member in sorted(inspect.getmembers(value)):
            if not name.startswith("_") and name not in inherited:
                members[name] = _parameters(member) if callable(member) else "attribute"
        return members
    if callable(value):
        return _parameters(value)
    return repr(value) if isinstance(value, str | int | float) else "value"


def _parameters(value: Any) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "?"
    parts = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else ...)
        for p in found.parameters.values()
        if not p.name.startswith("_")
    ]
    return str(inspect.Signature(parts))


def recorded() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    return found


def present() -> dict[str, dict[str, Any]]:
    return {
        module: {name: signature(getattr(importlib.import_module(module), name)) for name in names}
        for module, names in promised().items()
    }


def test_public_names_are_as_recorded() -> None:
    now = present()
    if os.environ.get("UPDATE_GOLDEN"):
        RECORD.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    before = recorded()
    assert now.keys() == before.keys()
    for module, names in before.items():
        for name, was in names.items():
            assert name in now[module], f"{module}.{name} is gone: others rely on it (docs/library.md)"
            assert now[module][name] == was, f"{module}.{name} has changed (docs/library.md)"
        assert sorted(now[module]) == sorted(names), f"{module}: record new names (UPDATE_GOLDEN=1)"


def test_a_parameter_that_goes_is_noticed() -> None:
    """The record has what callers write."""
    allocate = recorded()["dra_driver.structured"]["allocate"]
    assert allocate.startswith("(snapshot, claims, *, strategy=")
    assert recorded()["dra_driver.sdk"]["ClaimPreparation"]["plan_device"] == "(self, use)"
    assert "settings" in recorded()["dra_driver.sdk"]["DevicePlan"]["()"]


@pytest.mark.parametrize("module", sorted(promised()))
def test_public_names_are_documented(module: str) -> None:
    found = importlib.import_module(module)
    for name in nonempty(promised()[module]):
        value = getattr(found, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert inspect.getdoc(value), f"{module}.{name}"


def test_the_examples_of_the_page_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/library.md", "exec"), names)


def test_every_package_says_that_it_is_typed() -> None:
    for package in ("dra_driver", "controller", "kubelet_plugin"):
        assert (PROJECT / package / "py.typed").is_file()
