"""The driver's own manifests, for a node without GPUs that cannot pull images."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml


def load(folder: Path) -> list[dict[str, Any]]:
    """All documents of a folder and the folders in it, in the order of their paths."""
    found: list[dict[str, Any]] = []
    for file in sorted(folder.rglob("*.yaml")):
        found += [d for d in yaml.safe_load_all(file.read_text(encoding="utf-8")) if d]
    return found


def adapt(documents: Iterable[dict[str, Any]], image: str, backends: Iterable[str]) -> list[dict[str, Any]]:
    """The documents with our image, and the node agent with other backends; all else is as it was.

    Changes the documents in place.

    Raises:
        ValueError: no node agent is among them, so that the backends would have gone nowhere.
    """
    adapted = list(documents)
    agents = 0
    for document in adapted:
        if document["kind"] not in ("DaemonSet", "Deployment"):
            continue
        for container in document["spec"]["template"]["spec"]["containers"]:
            container["image"] = image
            container["imagePullPolicy"] = "Never"
            if container["command"][:2] == ["dra-driver", "kubelet-plugin"]:
                agents += 1
                container["args"] = [*container["args"], *(f"--backend={b}" for b in backends)]
    if not agents:
        raise ValueError("no container of the manifests runs [dra-driver, kubelet-plugin]")
    return adapted
