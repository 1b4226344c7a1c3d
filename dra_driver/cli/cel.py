"""``dra-driver cel``: device selectors on recorded cases.

A file of cases is JSON, also gzipped::

    {"cases": [{"name": "…", "expression": "…", "env": "stored" | "new",
                "device": {"driver": "…", "attributes": {…}, "capacity": {…},
                           "allowMultipleAllocations": bool},
                "features": {"listTypeAttributes": bool, "consumableCapacity": bool}}]}

``env``, ``features`` and all fields of ``device`` may be absent.
"""

from __future__ import annotations

import argparse
import gzip
import zlib
from pathlib import Path

import msgspec

from dra_driver import cel
from dra_driver.api import codec
from dra_driver.api.resource import Device, DeviceAttribute, DeviceCapacity
from dra_driver.cli import common
from dra_driver.errors import ConfigurationError, DecodeError

__all__ = ["add_arguments", "run"]


class _Features(msgspec.Struct, rename="camel"):
    list_type_attributes: bool = False
    consumable_capacity: bool = True


class _Device(msgspec.Struct, rename="camel"):
    driver: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    allow_multiple_allocations: bool | None = None


class _Case(msgspec.Struct):
    name: str
    expression: str
    env: str = "stored"
    device: _Device = msgspec.field(default_factory=_Device)
    features: _Features = msgspec.field(default_factory=_Features)


class _Cases(msgspec.Struct):
    cases: list[_Case]


class _Result(msgspec.Struct):
    name: str
    compile_error: bool
    runtime_error: bool
    match: bool | None
    too_long: bool
    too_expensive: bool
    message: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``dra-driver cel``."""
    parser.add_argument(
        "--cases", required=True, type=Path, metavar="FILE", help="recorded cases, JSON, may be gzipped"
    )
    common.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate each case and print the results.

    Raises:
        ConfigurationError: the file cannot be read, or it has no cases.
    """
    results = [_evaluate(case) for case in _read(args.cases).cases]
    if args.output == "table":
        rows = [(r.name, _outcome(r), r.message) for r in results]
        print(common.table(("CASE", "OUTCOME", "REASON"), rows))
    else:
        common.print_data({"cases": [msgspec.to_builtins(r) for r in results]}, args.output)
    return 0


def _read(path: Path) -> _Cases:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except OSError as e:
        raise ConfigurationError(f"--cases {path}: cannot be read: {e.strerror or e}") from e
    except (EOFError, zlib.error) as e:
        raise ConfigurationError(f"--cases {path}: damaged gzip data: {e}") from e
    try:
        cases = codec.decode(_Cases, data)
    except DecodeError as e:
        raise ConfigurationError(f"--cases {path}: not a file of CEL cases: {e}") from e
    for case in cases.cases:
        if case.env not in ("stored", "new"):
            raise ConfigurationError(
                f"--cases {path}: case {case.name!r}: env is {case.env!r}; stored and new are allowed"
            )
    return cases


def _evaluate(case: _Case) -> _Result:
    environment = cel.Environment(
        new=case.env == "new",
        list_type_attributes=case.features.list_type_attributes,
        consumable_capacity=case.features.consumable_capacity,
    )
    reasons = {f.reason for f in cel.validate_selector(case.expression, environment=environment)}
    result = _Result(
        name=case.name,
        compile_error=False,
        runtime_error=False,
        match=None,
        too_long="TooLong" in reasons,
        too_expensive="TooExpensive" in reasons,
    )
    device = Device(
        name=case.name,
        attributes=case.device.attributes or {},
        capacity=case.device.capacity or {},
        allow_multiple_allocations=case.device.allow_multiple_allocations,
    )
    view = cel.DeviceView(case.device.driver, device, list_attributes=case.features.list_type_attributes)
    try:
        result.match = cel.compile_selector(case.expression, environment=environment).matches(view)
    except cel.CelCompileError as e:
        result.compile_error, result.message = True, str(e)
    except cel.CelRuntimeError as e:
        result.runtime_error, result.message = True, str(e)
    return result


def _outcome(result: _Result) -> str:
    if result.compile_error:
        return "compile error"
    if result.runtime_error:
        return "runtime error"
    return "match" if result.match else "no match"
