"""Has every module compiled by one process of a run in a fresh clone, and not by all of them.

Each process of a parallel run collects all tests, in the same order: where nothing is compiled yet, each
would compile everything, at the same time as the others. So each begins with a share of its own, and finds
the rest compiled by then. Once everything is compiled, there is nothing to do.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import py_compile
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

__all__ = ["compile_share", "share_of"]

PRODUCT = ("dra_driver", "controller", "kubelet_plugin")


def share_of(files: Iterable[Path], number: int, count: int) -> Sequence[Path]:
    """Return every ``count``-th of some files, in order, beginning with the one of this number."""
    return sorted(files)[number::count]


def compile_share(config: pytest.Config) -> None:
    """Compile this process's share of what is not compiled yet; nothing where there is one process."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count == 1 or sys.dont_write_bytecode:
        return
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    product = (path for name in PRODUCT for path in (config.rootpath / name).rglob("*.py"))
    for path in share_of(product, number, count):
        if not _is_compiled(path):
            with contextlib.suppress(OSError):  # a tree that cannot be written is only slower
                py_compile.compile(str(path), quiet=2)
    left_out = set(config.getini("norecursedirs"))
    folders = [Path(argument) for argument in config.args if Path(argument).is_dir()]
    tests = (path for folder in folders for path in folder.rglob("test_*.py"))
    for path in share_of((p for p in tests if left_out.isdisjoint(p.parts)), number, count):
        if not _is_compiled(path, "-pytest-"):
            _load(path)


def _load(path: Path) -> None:
    """Load a module of tests, which compiles it in pytest's way; pytest finds it loaded later."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    # What is wrong with a module, or why it is skipped, is reported when it is collected.
    with contextlib.suppress(Exception, pytest.skip.Exception), warnings.catch_warnings(action="error"):
        importlib.import_module(path.stem)


def _is_compiled(path: Path, how: str = "") -> bool:
    """Return whether there is a compiled form; ``how``: that of pytest, whose version is in the name."""
    plain = Path(importlib.util.cache_from_source(str(path)))
    return any(plain.parent.glob(f"{plain.stem}{how}*.pyc")) if how else plain.exists()
