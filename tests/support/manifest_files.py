"""Manifests, read by libyaml: PyYAML's own parser takes ten times as long, again in each process of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

__all__ = ["documents"]

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def documents(*files: Path) -> list[dict[str, Any]]:
    """Return the documents of YAML files in order, empty ones left out."""
    return [d for file in files for d in yaml.load_all(file.read_bytes(), Loader=_Loader) if d]
