"""Gathers the pages of the documentation site: ``python docs/site.py OUT``, then Zensical builds OUT.

Most pages are the Markdown files of this folder. From elsewhere come ARCHITECTURE.md, CONTRIBUTING.md and
CHANGELOG.md, one page for each example with its manifests, and the reference, which is made of the code:
flags of the commands, fields of the DevicePolicy, metrics, public Python names. Links between files of the
repository become links between pages; links to source files become their paths.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import posixpath
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import python_reference
import values_reference
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.own.policy import DevicePolicy
from dra_driver.cli import common
from dra_driver.cli.display.helps import help_of
from dra_driver.cli.main import COMMANDS
from dra_driver.discovery import schema_docs

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "deploy" / "examples"
WORKLOADS = ROOT / "deploy" / "workloads"

# Repository path → page.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "deploy/examples": "examples/index.md",
    "deploy/workloads/README.md": "workloads/index.md",
    "deploy/helm/dra-driver/values.yaml": "reference/helm-values.md",
    "tests/golden/account_tables.md": "reference/accounts.md",
    # Code that a page of the reference is made of: a link to it leads there on the site.
    "controller/observe/metrics.py": "reference/metrics.md",
    "deploy/helm/dra-driver/files/alerts": "reference/alerts.md",
    "dra_driver/discovery/core/schema.py": "reference/attributes.md",
    "dra_driver/discovery/nvidia/xids.py": "reference/xids.md",
}

OBJECTS: dict[str, type[msgspec.Struct]] = {"DevicePolicy": DevicePolicy, "DeviceInventory": DeviceInventory}
# The driver's own kinds, and what a reader needs to know first.
KINDS = {
    "DevicePolicy": "[DevicePolicy](../device-policy.md) describes what policies do, and how they combine.",
    "DeviceInventory": "Each object describes the devices of one node (`spec`) and their state (`status`). "
    "The node agent writes `spec`. [Concepts](../concepts.md) says how it becomes ResourceSlices.",
}

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def main() -> None:
    """Writes all pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder that is made anew")
    out: Path = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    pages = {**PAGES, **{f"deploy/examples/{e.name}": f"examples/{e.stem}.md" for e in examples()}}
    workloads = sorted(p for p in WORKLOADS.iterdir() if p.is_dir())
    pages |= {f"deploy/workloads/{w.name}": f"workloads/{w.name}.md" for w in workloads}
    for file in sorted((ROOT / "docs").rglob("*.md")):
        pages[file.relative_to(ROOT).as_posix()] = file.relative_to(ROOT / "docs").as_posix()
    for picture in sorted((ROOT / "docs").rglob("*.svg")):
        pages[picture.relative_to(ROOT).as_posix()] = name = picture.relative_to(ROOT / "docs").as_posix()
        write(out / name, picture.read_text(encoding="utf-8"))
    for picture in sorted((ROOT / "docs").rglob("*.webp")):
        pages[picture.relative_to(ROOT).as_posix()] = name = picture.relative_to(ROOT / "docs").as_posix()
        (out / name).write_bytes(picture.read_bytes())
    write(out / "site.css", (ROOT / "docs" / "site.css").read_text(encoding="utf-8"))
    for source, page in pages.items():
        if source.endswith(".md"):
            write(out / page, linked((ROOT / source).read_text(encoding="utf-8"), source, page, pages))
    write(out / "examples" / "index.md", example_index())
    for example in examples():
        source = f"deploy/examples/{example.name}/README.md"
        text = linked(example_page(example), source, "examples/x", pages)
        write(out / "examples" / f"{example.stem}.md", text)
    for workload in workloads:
        write(out / "workloads" / f"{workload.name}.md", example_page(workload))
    write(out / "reference" / "commands.md", "".join(commands()))
    for kind, words in KINDS.items():
        write(out / "reference" / f"{kind.lower()}.md", "".join(fields_of(kind, words)))
    write(out / "reference" / "metrics.md", "".join(metrics()))
    write(out / "reference" / "python.md", "".join(python_reference.page()))
    write(out / "reference" / "helm-values.md", values_reference.page())
    write(out / "reference" / "alerts.md", "".join(alerts()))
    write(out / "reference" / "xids.md", xids())
    write(out / "reference" / "attributes.md", attributes())
    unreachable = sorted(set(map(str, _pages(out))) - set(_nav()))
    if unreachable:
        sys.exit(f"mkdocs.yml: nav lacks {', '.join(unreachable)}")


def _pages(out: Path) -> Iterator[Path]:
    """Pages that a reader finds through the navigation only."""
    for page in out.rglob("*.md"):
        if page.parent.name not in ("examples", "workloads") or page.name == "index.md":
            yield page.relative_to(out)


def _nav() -> Iterator[str]:
    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from walk(inner)

    yield from walk(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


def write(path: Path, text: str) -> None:
    """Writes one page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def linked(text: str, source: str, page: str, pages: dict[str, str]) -> str:
    """The text with links between files as links between pages; code blocks stay as they are."""

    def replace(match: re.Match[str]) -> str:
        words, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        found = pages.get(file) or next((pages[p] for p in _parents(file) if p in pages), None)
        if found is None and not (ROOT / file).exists():
            return match[0]  # the build says that it is broken
        if found is None:
            return words if words.startswith("`") else f"{words} (`{file}`)"
        url = posixpath.relpath(found, posixpath.dirname(page) or ".")
        return f"[{words}]({url}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(replace, part) for part in parts)


def _parents(file: str) -> Iterator[str]:
    """Folders of an example's file: its page shows it."""
    if file.startswith("deploy/examples/"):
        while (file := posixpath.dirname(file)) != "deploy":
            yield file


# --- examples -----------------------------------------------------------------------------------------------


def examples() -> list[Path]:
    """Folders and single manifests, in order."""
    return sorted(p for p in EXAMPLES.iterdir() if p.is_dir() or p.suffix == ".yaml")


def _manifests(example: Path) -> list[Path]:
    return sorted(example.rglob("*.yaml")) if example.is_dir() else [example]


def _title(example: Path) -> tuple[str, str]:
    """Title and introduction: of README.md, else of the first comment of the first manifest."""
    readme = example / "README.md"
    if readme.is_file():
        title, _, rest = readme.read_text(encoding="utf-8").partition("\n")
        return title.lstrip("# "), rest.strip()
    lines: list[str] = []
    for manifest in _manifests(example)[:1]:
        for line in manifest.read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                break
            lines.append(line.lstrip("# "))
    title, _, rest = " ".join(lines).partition(". ")
    return title.rstrip(".:") or example.stem, rest


def example_index() -> str:
    """The list of all examples."""
    rows = "".join(f"* [{_title(e)[0]}]({e.stem}.md)\n" for e in examples())
    return (
        "# Examples\n\nOne for each thing that people ask for. Each runs as it is, on simulated devices as "
        f"on real ones that have what it asks for:\n\n{rows}\n`kubectl apply -R -f deploy/examples` applies "
        "all of them, `make demo` runs them on the embedded cluster.\n"
    )


def example_page(example: Path) -> str:
    """Its words and its manifests."""
    title, rest = _title(example)
    blocks = [
        f"`{m.relative_to(ROOT).as_posix()}`\n\n```yaml\n{m.read_text(encoding='utf-8').rstrip()}\n```\n"
        for m in _manifests(example)
    ]
    return f"# {title}\n\n{rest}\n\n" + "\n".join(blocks)


# --- reference ----------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """Every flag of every command, in the groups and with the defaults that ``--help`` shows."""
    yield "# Commands and flags\n\nMade of the code. Every command also has `--help`.\n"
    for name, (module, text) in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"dra-driver {name}")
        importlib.import_module(f"dra_driver.cli.{module}").add_arguments(parser)
        yield f"\n## dra-driver {name}\n\n{_sentence(text)}\n\n"
        yield from _parser(parser)
        yield from _epilog(parser.epilog or "")
    yield "\n## Of every command\n\n"
    parser = argparse.ArgumentParser(prog="dra-driver")
    common.add_logging_arguments(parser)
    yield from _parser(parser)


def _parser(parser: argparse.ArgumentParser, prefix: str = "") -> Iterator[str]:
    for group in parser._action_groups:
        rows = []
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, sub in action.choices.items():
                    yield f"**`{prefix}{name}`**: {sub.description or ''}\n\n"
                    yield from _parser(sub, f"{prefix}{name} ")
            elif not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
                rows.append((_name(action), help_of(action) % vars(action)))
        if not rows:
            continue
        # The first two are argparse's own, for what has no group.
        titled = group not in parser._action_groups[:2]
        if titled:
            yield f"**{_sentence(group.title or '')}** {group.description or ''}\n\n"
        yield _table(("flag" if rows[0][0].startswith("`-") else "argument", "meaning"), rows) + "\n"


def _name(action: argparse.Action) -> str:
    """Return the names of an argument, and what it takes."""
    value = "" if action.nargs == 0 else action.metavar or "|".join(map(str, action.choices or ()))
    if not action.option_strings:
        return f"`{value or action.dest}`"
    return ", ".join(f"`{o}`" for o in action.option_strings) + (f" `{value}`" if value else "")


def _epilog(text: str) -> Iterator[str]:
    """The end of the help: lists keep their lines."""
    for paragraph in text.split("\n\n"):
        title, is_list, lines = paragraph.partition(":\n  ")
        if is_list:
            yield f"{_sentence(title)[:-1]}:\n\n```text\n{textwrap.dedent(f'  {lines}')}\n```\n\n"
        elif paragraph:
            yield f"{_cell(paragraph[:1].upper() + paragraph[1:])}\n\n"


def fields_of(kind: str, words: str) -> Iterator[str]:
    """Every field of one of our kinds, from the schema of its CustomResourceDefinition."""
    crd = yaml.safe_load((ROOT / f"deploy/manifests/crds/{_plural(kind)}.yaml").read_text(encoding="utf-8"))
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    yield (
        f"# {kind} fields\n\nMade of the schema that the API server checks "
        f"(`{crd['spec']['group']}/{version['name']}`, {crd['spec']['scope'].lower()}). {words}\n"
    )
    for part in ("spec", "status"):
        if part in schema["properties"]:
            said = dict(_meanings(OBJECTS[kind], ""))
            rows = [
                (path, *rest, meaning or said.get(f"{part}.{path.strip('`')}", ""))
                for path, *rest, meaning in _fields(schema["properties"][part], "")
            ]
            yield f"\n## {part}\n\n" + _table((f"field of `{part}`", "type", "allowed", "meaning"), rows)
    rules = [r["message"] for r in _rules(schema)]
    if rules:
        yield "\n## Rules\n\nBeyond that the API server refuses:\n\n" + "".join(f"* {m}\n" for m in rules)


def _meanings(struct: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, str]]:
    """Path of each field on the wire, and what the docstring of its struct says of it."""
    said = _attributes(struct.__doc__ or "")
    hints = get_type_hints(struct)
    for name, wire in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        yield f"{prefix}{wire}", said.get(name, "")
        for inner, suffix in _inside(hints[name], "."):
            yield from _meanings(inner, f"{prefix}{wire}{suffix}")


def _inside(hint: Any, suffix: str) -> Iterator[tuple[type[msgspec.Struct], str]]:
    """Structs in a type: of a list, of a map, or the type itself."""
    origin = get_origin(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint, suffix
    elif origin is not None:
        within = {tuple: "[].", Mapping: ".<name>."}.get(origin, suffix)
        for argument in get_args(hint):
            yield from _inside(argument, within)


def _attributes(docstring: str) -> dict[str, str]:
    """Name → text, of the section ``Attributes`` of a docstring."""
    section = inspect.cleandoc(docstring).partition("\nAttributes:\n")[2]
    found = re.findall(r"(?m)^    (\w+): (.*(?:\n        .*)*)", section)
    return {name: _sentence(" ".join(text.split())).replace("``", "`") for name, text in found}


def _plural(kind: str) -> str:
    return f"{kind[:-1]}ies".lower()


def _fields(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, ...]]:
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        kind = field.get("type", "int or string" if field.get("x-kubernetes-int-or-string") else "")
        inner, suffix = field, "."
        if kind == "array":
            inner, suffix = field["items"], "[]."
            kind = f"list of {inner.get('type', 'values')}"
        elif isinstance(field.get("additionalProperties"), dict):
            inner, suffix = field["additionalProperties"], ".<name>."
            kind = f"map of {inner.get('type', 'values')}"
        yield f"`{path}`", kind, _limits(field), field.get("description", "")
        yield from _fields(inner, path + suffix)


def _limits(field: dict[str, Any]) -> str:
    found = [", ".join(f"`{v}`" if v else "empty" for v in field["enum"])] if "enum" in field else []
    found += [f"default `{field['default']}`"] if "default" in field else []
    words = {
        "minimum": "≥",
        "maximum": "≤",
        "minLength": "length ≥",
        "maxLength": "length ≤",
        "minItems": "at least",
        "maxItems": "at most",
        "maxProperties": "at most",
    }
    found += [f"{word} {field[key]}" for key, word in words.items() if key in field]
    found += [f"`{field['pattern']}`"] if "pattern" in field else []
    return ", ".join(found)


def _rules(schema: dict[str, Any]) -> Iterator[dict[str, str]]:
    yield from schema.get("x-kubernetes-validations", ())
    for inner in (
        *schema.get("properties", {}).values(),
        schema.get("items"),
        schema.get("additionalProperties"),
    ):
        if isinstance(inner, dict):
            yield from _rules(inner)


def metrics() -> Iterator[str]:
    """Every metric of the controller, and of the node agent."""
    from controller.observe.metrics import Metrics as ControllerMetrics
    from kubelet_plugin.telemetry.metrics import Metrics as AgentMetrics
    from kubelet_plugin.telemetry.metrics import Sources

    nothing: Any = lambda: ()  # noqa: E731
    sources = Sources(
        devices=nothing, claims=nothing, failures=dict, registrations=lambda: 0, registered=lambda: False
    )
    yield "# Metrics\n\nMade of the code. What they mean for a node: "
    yield "[health and metrics](../observability.md).\n"
    for title, text in (
        ("The controller", ControllerMetrics().text()),
        ("The node agent", AgentMetrics(sources).render(())),
    ):
        families = sorted(text_string_to_metric_families(text.decode()), key=lambda f: f.name)
        rows = [
            (f"`{f.name}{'_total' if f.type == 'counter' else ''}`", f.type, f.documentation)
            for f in families
            if not f.name.endswith("_created")
        ]
        yield f"\n## {title}\n\n" + _table(("metric", "type", "meaning"), rows)


def alerts() -> Iterator[str]:
    """Every alert of the chart."""
    yield (
        "# Alerts\n\nMade of the chart's files (`deploy/helm/dra-driver/files/alerts`); the value "
        "`monitoring.prometheusRule` installs them for prometheus-operator. What to do: "
        "[troubleshooting](../troubleshooting.md).\n\n"
    )
    rows = []
    for file in sorted((ROOT / "deploy/helm/dra-driver/files/alerts").glob("*.yaml")):
        for group in yaml.safe_load(file.read_text(encoding="utf-8")):
            for rule in group["rules"]:
                words = rule["annotations"]
                text = f"{words['summary']} {words.get('description', '')}"
                rows.append(
                    (f"`{rule['alert']}`", rule["labels"]["severity"], rule.get("for", "at once"), text)
                )
    yield _table(("alert", "severity", "after", "says"), rows)


def attributes() -> str:
    """Every attribute and capacity of the schema."""
    return (
        "# All attributes and capacities\n\nMade of the code. How to use them: "
        f"[attributes](../attributes.md).\n\n{schema_docs.schema_tables()}\n"
    )


def xids() -> str:
    """What each XID of NVIDIA's means for the GPU."""
    return (
        "# XIDs of NVIDIA GPUs\n\nMade of the code. The source is NVIDIA's [XID catalogue]"
        "(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) for Ampere and newer GPUs, "
        "as of 2025-10-29; descriptions and effects are this driver's. How conditions end: "
        f"[health](../observability.md#when-a-condition-ends).\n\n{schema_docs.xid_tables()}\n"
    )


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [tuple(header)]
    lines.append(tuple("---" for _ in lines[0]))
    lines += [tuple(_cell(c) for c in row) for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", " ".join(str(text).split()).replace("|", "\\|"))
    return "".join(p if p.startswith("`") else p.replace("<", "&lt;") for p in parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


if __name__ == "__main__":
    main()
