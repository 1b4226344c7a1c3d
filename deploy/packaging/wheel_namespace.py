"""A build hook of hatchling: in the wheel everything lies inside ``dra_driver``.

The source tree has three packages side by side. As top-level packages of an installation, ``controller`` and
``kubelet_plugin`` would lie where any other project's may: the one that is installed later would overwrite
the other. So the wheel has ``dra_driver.controller`` and ``dra_driver.kubelet_plugin``, and the import
statements in it say so. An editable installation runs the source tree as it is.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAMESPACE = "dra_driver"
# Top-level packages of the source tree that move into the namespace.
MOVED = ("controller", "kubelet_plugin")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


class WheelNamespace(BuildHookInterface[Any]):
    """Writes the three packages as one into a temporary folder, of which the wheel is made."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the written folder as the wheel's content; editable installations keep the source tree."""
        if version == "editable":
            return
        self._written = tempfile.TemporaryDirectory(prefix="dra-driver-wheel-")
        package = Path(self._written.name, NAMESPACE)
        write_package(Path(self.root), package)
        build_data["force_include"][str(package)] = NAMESPACE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if version != "editable":
            self._written.cleanup()


def write_package(root: Path, package: Path) -> None:
    """Write the packages below ``root`` as the one package that the wheel has.

    Raises:
        ValueError: a module imports in a way that cannot be moved, or a name in the namespace is taken.
    """
    shutil.copytree(root / NAMESPACE, package, ignore=_LEFT_OUT)
    for name in MOVED:
        shutil.copytree(root / name, package / name, ignore=_LEFT_OUT)
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        moved = moved_imports(source, path.relative_to(package).as_posix())
        if moved != source:
            path.write_text(moved, encoding="utf-8")


def moved_imports(source: str, name: str) -> str:
    """Return the source with imports of moved packages from the namespace; lines keep their numbers.

    Args:
        source: of a module.
        name: of its file, for errors.

    Raises:
        ValueError: ``import controller.x`` binds the name ``controller``, which is no longer there; and the
            name of a moved module in a string would still be the old one.
    """
    lines = source.splitlines(keepends=True)
    for node in _nodes(source, name):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _moves(node.module or ""):
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace("from ", f"from {NAMESPACE}.", 1)
        elif isinstance(node, ast.Import) and any(_moves(alias.name) for alias in node.names):
            raise ValueError(
                f"{name}:{node.lineno}: write `from PACKAGE import MODULE` for {' and '.join(MOVED)}"
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _names_module(node.value):
            raise ValueError(
                f"{name}:{node.lineno}: {node.value!r} names a module that moves; use __package__"
            )
    return "".join(lines)


def _nodes(source: str, name: str) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(source, filename=name))


def _moves(module: str) -> bool:
    return module.partition(".")[0] in MOVED


def _names_module(text: str) -> bool:
    """Tell whether a string is the dotted name of a moved module, and not a sentence about one."""
    return "." in text and _moves(text) and all(part.isidentifier() for part in text.split("."))
