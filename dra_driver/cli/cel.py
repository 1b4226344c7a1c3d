"""``dra-driver cel``: a selector on the devices of a cluster or of manifests, or selectors of recorded cases.

A file of cases is JSON, also gzipped::

    {"cases": [{"name": "…", "expression": "…", "env": "stored" | "new",
                "device": {"driver": "…", "attributes": {…}, "capacity": {…},
                           "allowMultipleAllocations": bool},
                "features": {"listTypeAttributes": bool, "consumableCapacity": bool}}]}

``env``, ``features`` and all fields of ``device`` may be absent.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from dra_driver import cel
from dra_driver.api import codec
from dra_driver.api.resource import (
    RESOURCE_SLICES,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    ResourceSlice,
)
from dra_driver.cli import common
from dra_driver.cli.allocator import manifests as allocator_manifests
from dra_driver.cli.display.progress import shown_if_long
from dra_driver.cli.display.report import Table
from dra_driver.cli.display.terminal import print_report
from dra_driver.cli.explaining.selectors import evaluate, evaluation_data, evaluation_report
from dra_driver.cli.live.reading import Lister
from dra_driver.errors import ConfigurationError, DecodeError, InvalidInput
from dra_driver.kube import KubeApi

__all__ = ["FAILURE", "add_arguments", "run"]


FAILURE: Final = 3
"""Exit status where the cluster cannot be read: 1 means that no device is selected."""

_EPILOG = """examples:
  dra-driver cel 'device.attributes["gpu.dra-driver.dev"].?model.orValue("") == "H100-80GB-HBM3"'
  dra-driver cel 'device.driver == "gpu.dra-driver.dev"' -f slices.yaml -o wide

exit status: 0 a device is selected, 1 none is, 2 the selector is invalid, 3 the cluster cannot be read

Without -f, the slices of a live cluster are read. An API server refuses a selector whose estimated cost is
above 1,000,000; the cost on devices also counts work that Kubernetes omits."""


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
    parser.epilog = _EPILOG
    parser.add_argument(
        "expression",
        nargs="?",
        default="",
        metavar="EXPRESSION",
        help="selector, as in a claim or a DeviceClass",
    )
    where = parser.add_argument_group("devices")
    allocator_manifests.add_file_argument(where)
    common.add_cluster_arguments(where)
    parser.add_argument(
        "--cases",
        type=Path,
        metavar="FILE",
        help="recorded cases instead of an expression: JSON, may be gzipped",
    )
    common.add_output_argument(parser, wide="a row for each device")


def run(args: argparse.Namespace) -> int:
    """Evaluate the selector, or each case, and print the results.

    Returns:
        0 if a device is selected, or if these were cases; 1 if none is.

    Raises:
        ConfigurationError: the file of cases cannot be read, or has none.
        InvalidInput: the expression is not a selector, or there is none.
    """
    if bool(args.expression) == bool(args.cases):
        raise InvalidInput("give an EXPRESSION, or --cases FILE" + (", not both" if args.cases else ""))
    if args.cases:
        _print_cases(args)
        return 0
    # What is no selector is said before anything is read.
    evaluate(args.expression, ())
    slices = _slices_of_files(args.file) if args.file else asyncio.run(_slices_of_cluster(args))
    evaluation = evaluate(args.expression, slices)
    if args.output in ("json", "yaml"):
        common.print_data(evaluation_data(evaluation), args.output)
    else:
        print_report(evaluation_report(evaluation, wide=args.output == "wide"))
    return 0 if evaluation.selected else 1


def _slices_of_files(files: Sequence[str]) -> Sequence[ResourceSlice]:
    found = allocator_manifests.read(files).slices
    if not found:
        raise InvalidInput(f"-f {' '.join(files)}: there is no ResourceSlice")
    return found


async def _slices_of_cluster(args: argparse.Namespace) -> Sequence[ResourceSlice]:
    async with await KubeApi.connect(
        args.kubeconfig, context=args.context, user_agent="dra-driver-cel"
    ) as client:
        with shown_if_long("reading resourceslices of the cluster"):
            return await Lister(client).all(RESOURCE_SLICES)


# --- recorded cases -----------------------------------------------------------------------------------------


def _print_cases(args: argparse.Namespace) -> None:
    results = [_evaluate(case) for case in _read(args.cases).cases]
    if args.output in ("json", "yaml"):
        common.print_data({"cases": [msgspec.to_builtins(r) for r in results]}, args.output)
        return
    rows = [(r.name, _outcome(r), r.message) for r in results]
    print_report([[Table(("CASE", "OUTCOME", "REASON"), rows)]])


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
        why = str(e).removeprefix(f"{_Cases.__name__}: ")
        raise ConfigurationError(f"--cases {path}: not a file of CEL cases: {why}") from e
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
