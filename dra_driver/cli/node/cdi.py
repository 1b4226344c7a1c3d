"""``dra-driver cdi``: the CDI documents of this node, as a container runtime sees them."""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from dra_driver import cdi
from dra_driver.api import codec
from dra_driver.cli import common
from dra_driver.errors import DraError, InvalidInput
from dra_driver.preparation import RECORD_ANNOTATION, PreparedClaim

__all__ = ["add_arguments", "run"]


_DIRECTORIES: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
_SUFFIXES: Final = (".json", ".yaml", ".yml")
_MAX_BYTES: Final = 4 * 1024 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action_parser(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=text, formatter_class=parser.formatter_class)

    listing = action_parser(
        "list", "list the devices of all documents, and the claims of this driver's devices"
    )
    validating = action_parser(
        "validate", "check documents as strictly as a runtime; exit status 1 if one would be refused"
    )
    showing = action_parser("show", "show what a container with a device gets")
    for action in (listing, validating, showing):
        action.add_argument(
            "--cdi-dir",
            type=Path,
            action="append",
            metavar="DIR",
            help="directory of CDI documents (repeatable); later ones take precedence; "
            f"default: {', '.join(map(str, _DIRECTORIES))}",
        )
        common.add_output_argument(action)
    validating.add_argument(
        "files", type=Path, nargs="*", metavar="FILE", help="documents to check; default: those of --cdi-dir"
    )
    showing.add_argument(
        "device", metavar="DEVICE", help="VENDOR/CLASS=NAME, or NAMESPACE/NAME or UID of a claim"
    )


def run(args: argparse.Namespace) -> int:
    """Run one action.

    Returns:
        0: done, and every document that was read is valid.

    Raises:
        InvalidInput: a file or a device does not exist.
    """
    folders: Sequence[Path] = args.cdi_dir or _DIRECTORIES
    match args.action:
        case "list":
            return _list(_read_all(folders), args.output)
        case "validate":
            return _validate([_read(f) for f in args.files] or _read_all(folders), args.output)
        case _:
            return _show(_read_all(folders), args.device, args.output)


@dataclass(frozen=True, slots=True)
class _Document:
    """A file with its document, or with the findings for which it is none."""

    path: Path
    spec: cdi.Spec | None = None
    findings: tuple[str, ...] = ()
    claim: PreparedClaim | None = None


def _read_all(folders: Sequence[Path]) -> list[_Document]:
    found: list[_Document] = []
    for folder in folders:
        try:
            names = sorted(p for p in folder.iterdir() if p.suffix in _SUFFIXES and p.name[0] != ".")
        except FileNotFoundError:
            continue
        except OSError as e:
            raise InvalidInput(f"--cdi-dir {folder}: {e.strerror}") from e
        found += map(_read, names)
    return found


def _read(path: Path) -> _Document:
    try:
        # Opening a pipe would block.
        if not stat.S_ISREG(path.stat().st_mode):
            return _Document(path, findings=("not a regular file",))
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as e:
        return _Document(path, findings=(f"cannot be read: {e.strerror}",))
    if len(data) > _MAX_BYTES:
        return _Document(path, findings=(f"over {_MAX_BYTES} bytes",))
    try:
        spec = cdi.decode(data if path.suffix == ".json" else cdi.json_of_yaml(data))
    except DraError as e:
        return _Document(path, findings=(str(e),))
    return _Document(path, spec, cdi.validate(spec), _claim(spec))


def _claim(spec: cdi.Spec) -> PreparedClaim | None:
    text = spec.annotations.get(RECORD_ANNOTATION)
    if text is None:
        return None
    try:
        return codec.decode(PreparedClaim, text)
    except DraError:
        return None


def _owner(document: _Document) -> str:
    return str(document.claim.key) if document.claim is not None else "-"


def _list(documents: Sequence[_Document], output: str) -> int:
    devices = [
        {
            "device": f"{d.spec.kind}={device.name}",
            "claim": _owner(d),
            "cdiVersion": d.spec.cdi_version,
            "file": str(d.path),
        }
        for d in documents
        if d.spec is not None
        for device in d.spec.devices
    ]
    broken = [{"file": str(d.path), "findings": list(d.findings)} for d in documents if d.findings]
    if output != "table":
        common.print_data({"devices": devices, "invalid": broken}, output)
        return 0
    header = ("DEVICE", "CLAIM", "CDI VERSION", "FILE")
    rows = [tuple(map(_plain, d.values())) for d in devices]
    if rows:
        common.print_table(header, rows)
    else:
        print("No CDI devices.")
    for b in broken:
        print(_plain(f"invalid: {b['file']}: {'; '.join(b['findings'])}"))
    return 0


def _plain(text: str) -> str:
    """Return the text without control characters: anyone may have written it, and a terminal shows it."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _conflicts(documents: Sequence[_Document]) -> Iterator[tuple[Path, str]]:
    """Return the names that two documents of one directory define: a runtime takes neither."""
    seen: dict[tuple[Path, str], Path] = {}
    for d in documents:
        for device in d.spec.devices if d.spec is not None else ():
            name = f"{d.spec.kind}={device.name}" if d.spec is not None else ""
            first = seen.setdefault((d.path.parent, name), d.path)
            if first != d.path:
                yield d.path, f"device {name} is in {first.name} too: runtimes use neither"


def _validate(documents: Sequence[_Document], output: str) -> int:
    conflicts = list(_conflicts(documents))
    results = [
        {
            "file": str(d.path),
            "findings": [*d.findings, *(text for path, text in conflicts if path == d.path)],
        }
        for d in documents
    ]
    if output != "table":
        common.print_data({"documents": results}, output)
    for r in results if output == "table" else ():
        print(_plain(f"{r['file']}: {'; '.join(r['findings']) or 'valid'}"))
    if not documents and output == "table":
        print("No CDI documents.")
    return 1 if any(r["findings"] for r in results) else 0


def _show(documents: Sequence[_Document], wanted: str, output: str) -> int:
    shown: list[dict[str, Any]] = []
    for d in documents:
        if d.spec is None:
            continue
        of_claim = d.claim is not None and wanted in (d.claim.uid, str(d.claim.key))
        shown += [
            {
                "device": f"{d.spec.kind}={device.name}",
                "file": str(d.path),
                "claim": _owner(d),
                "containerEdits": msgspec.json.decode(
                    codec.encode(cdi.merge(d.spec.container_edits, device.container_edits))
                ),
            }
            for device in d.spec.devices
            if of_claim or f"{d.spec.kind}={device.name}" == wanted
        ]
    if not shown:
        raise InvalidInput(
            f"{wanted[:300]!r}: no such CDI device, and no claim of ours with that name or UID; "
            "`dra-driver cdi list` shows what there is"
        )
    common.print_data({"devices": shown}, "yaml" if output == "table" else output)
    return 0
