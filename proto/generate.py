#!/usr/bin/env python3
"""Generates the typed gRPC stubs in ``dra_driver/wire`` from the sources next to this file.

``generate.py`` writes them; ``generate.py --check`` writes nothing and exits 1 with the names of the files
that are not what the sources give. The directories below ``proto/`` mirror the Python path, so that the
generated modules import each other by their real names.
"""

from __future__ import annotations

import argparse
import importlib.resources
import os
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
ROOT = PROTO.parent
WIRE = Path("dra_driver", "wire")


def generate(into: Path) -> None:
    """Writes the stubs below ``into``.

    Raises:
        SystemExit: protoc refused a source; it has said why.
    """
    # The mypy plugins are found by PATH; they are installed next to the interpreter that runs us.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    well_known = str(importlib.resources.files("grpc_tools") / "_proto")
    sources = sorted(str(p.relative_to(PROTO)) for p in (PROTO / WIRE).glob("*.proto"))
    outputs = [f"--{plugin}_out={into}" for plugin in ("python", "grpc_python")]
    outputs += [f"--{plugin}_out=quiet:{into}" for plugin in ("mypy", "mypy_grpc")]
    code = protoc.main(["protoc", f"-I{PROTO}", f"-I{well_known}", *outputs, *sources])
    if code != 0:
        raise SystemExit(code)


def generated(below: Path) -> dict[str, bytes]:
    """Content of every generated file below a root, by name."""
    return {p.name: p.read_bytes() for p in (below / WIRE).glob("*_pb2*.py*")}


def drift() -> list[str]:
    """Names of files that differ from what the sources give, are missing, or have no source any more."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        expected, present = generated(Path(scratch)), generated(ROOT)
    return sorted(
        str(WIRE / n) for n in expected.keys() | present.keys() if expected.get(n) != present.get(n)
    )


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Generate dra_driver/wire from proto/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stubs have drifted")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    names = drift()
    for name in names:
        print(f"{name} is not what proto/ gives; run: make proto", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
