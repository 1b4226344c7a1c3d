"""The chart's values, made of ``values.yaml`` and its schema: ``reference/helm-values.md`` of the site."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[1] / "deploy" / "helm" / "dra-driver"

HEAD = """\
# Values of the chart

Made of the chart's `values.yaml` and its schema. The chart refuses unknown values and values that contradict
each other."""
TABLE = "| value | default | meaning |\n| --- | --- | --- |"

# Values that mean the same wherever they stand.
COMMON: Mapping[str, str] = {
    "create": "Install the class.",
    "extendedResourceName": "Name for pods' `resources.limits`, such as nvidia.com/gpu.",
    "nodeSelector": "Labels of nodes for the pods.",
    "podAnnotations": "Annotations of the pods.",
    "priorityClassName": "Priority of the pods.",
    "resources": "Requests and limits of the container.",
    "tolerations": "Tolerations of the pods.",
}
_PAGE = re.compile(r"docs/([\w-]+)\.md")
_CLASSES = re.compile(r"^deviceClasses\.\w+\.")
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9]*):(?P<rest>.*)$")


def comments() -> dict[str, str]:
    """Path of each value → the comment above it in values.yaml."""
    found: dict[str, str] = {}
    path: list[str] = []
    pending: list[str] = []
    for line in (CHART / "values.yaml").read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("#"):
            pending.append(line.strip().lstrip("# "))
            continue
        key = _KEY.match(line)
        if key:
            path = [*path[: len(key["indent"]) // 2], key["key"]]
            if pending:
                found[".".join(path)] = " ".join(pending)
        pending = []
    return found


def page() -> str:
    """Return the page: each value with its default, what else is allowed, and its comment."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    said = comments()
    sections: dict[str, list[str]] = {}
    for path, part, default in _leaves(schema, values):
        text = said.get(path) or COMMON[path.rpartition(".")[2]]
        first, has_more, _ = path.partition(".")
        rows = sections.setdefault(first if has_more else "General", [])
        name = _CLASSES.sub("deviceClasses.CLASS.", path)
        row = f"| `{name}` | {_default(part, default)} | {text} |"
        if row not in rows:
            rows.append(row)
    lines = [HEAD]
    for section, rows in sections.items():
        lines += ["", f"## {section}", ""]
        groups = [(p, said[p]) for p in said if p.split(".")[0] == section and _is_group(schema, p)]
        for path, text in groups:
            lines.append(text if path == section else f"* `{path}`: {text}")
            lines += [""] if path == section else []
        lines += [""] if groups and lines[-1] else []
        lines += [TABLE, *rows]
    return _PAGE.sub(r"[\1](../\1.md)", "\n".join([*lines, ""]))


def _leaves(
    schema: Mapping[str, Any], values: Any, path: str = ""
) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    for name, part in schema["properties"].items():
        here = f"{path}.{name}" if path else name
        if name not in values:
            continue  # Helm's own, such as global
        if _has_keys(part):
            yield from _leaves(part, values[name], here)
        else:
            yield here, part, values[name]


def _has_keys(part: Mapping[str, Any]) -> bool:
    # "resources" has keys in the schema, but is a value of Kubernetes'.
    return bool(part.get("required")) and part.get("type") == "object"


def _is_group(schema: Mapping[str, Any], path: str) -> bool:
    for name in path.split("."):
        if not _has_keys(schema) or name not in schema["properties"]:
            return False
        schema = schema["properties"][name]
    return _has_keys(schema)


def _default(part: Mapping[str, Any], default: Any) -> str:
    """Return the default, and what else is allowed."""
    found = f"`{default if isinstance(default, str) and default else json.dumps(default)}`"
    if "enum" in part:
        others = [v if isinstance(v, str) else json.dumps(v) for v in part["enum"] if v != default]
        return f"{found}, or {', '.join(f'`{v}`' for v in others)}"
    if "minimum" in part and "maximum" in part:
        return f"{found} ({part['minimum']} to {part['maximum']})"
    return found
