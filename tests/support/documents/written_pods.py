"""Pods as other controllers write them (``tests/support/workloads``), and what the docs add to them."""

from __future__ import annotations

import copy
import functools
from typing import Any, Final

import yaml
from manifest_files import documents
from paths import PROJECT, SUPPORT

__all__ = ["PAGE", "documented", "pods_of", "with_metadata"]

PAGE: Final = PROJECT / "docs" / "workload-controllers.md"


def pods_of(controller: str) -> list[dict[str, Any]]:
    """Return the pods that a controller has written, in the order in which it does."""
    return copy.deepcopy(_written(controller))


@functools.cache
def _written(controller: str) -> list[dict[str, Any]]:
    return documents(SUPPORT / "workloads" / f"{controller}.yaml")


def documented(kind: str) -> dict[str, Any]:
    """Return the first object of a kind in the page about controllers."""
    for block in PAGE.read_text().split("```yaml\n")[1:]:
        for body in yaml.safe_load_all(block.partition("```")[0]):
            if body and body["kind"] == kind:
                found: dict[str, Any] = body
                return found
    raise AssertionError(f"{PAGE.name} has no {kind}")


def with_metadata(body: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """Return a pod with labels and annotations of a pod template besides its own."""
    body = copy.deepcopy(body)
    for what in ("labels", "annotations"):
        more = template.get("metadata", {}).get(what, {})
        body["metadata"][what] = {**body["metadata"].get(what, {}), **more}
    return body
