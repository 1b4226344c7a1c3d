"""Whatever sysfs and people write: it is read or refused, never a crash."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.discovery.amd import kfd as amdgpu_kfd
from dra_driver.discovery.core.host import sysfs
from dra_driver.discovery.generic import spec as generic_spec
from dra_driver.discovery.rdma import backend as rdma
from dra_driver.discovery.simulated import profile
from dra_driver.errors import ConfigurationError

TEXTS = st.text(max_size=60) | st.sampled_from(
    ["0x", "-1", "0000:05:00.0", "accel/*", "../x", "{name}", "1e52"]
)
SCALARS = TEXTS | st.integers() | st.booleans() | st.none()
GENERIC_KEYS = (
    "devices", "name", "match", "pci", "dev", "vendor", "class", "sysfs", "nodes", "attributes", "model",
    "value", "type", "capacity", "memory", "factor", "cdi", "deviceNodes", "env", "mounts", "hostPath",
)  # fmt: skip
PROFILE_KEYS = (
    "devices",
    "kind",
    "at",
    "deviceID",
    "processors",
    "modules",
    "memory",
    "computePartitions",
    "driver",
)


def documents(keys: tuple[str, ...]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(keys) | TEXTS
    return st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6),
        max_leaves=20,
    )


LINES = st.lists(st.tuples(st.text(max_size=9), st.sampled_from(" =:\t"), st.integers().map(str) | st.text()))


@given(LINES.map(lambda lines: "\n".join(map("".join, lines))), st.sampled_from([None, "=", ":"]))
def test_properties_are_numbers_below_a_limit(text: str, separator: str | None) -> None:
    for name, value in sysfs.key_values(text, separator).items():
        assert name
        assert 0 <= value < 10**20


@given(st.integers(0, 2**70))
def test_a_target_is_a_name_or_unknown(number: int) -> None:
    name = amdgpu_kfd.gfx_target(number)
    assert name is None or name.startswith("gfx")


@given(st.text())
def test_a_rate_is_positive_or_unknown(text: str) -> None:
    rate = rdma.parse_rate(text)
    assert rate is None or rate > 0


@given(st.binary(max_size=200), st.sampled_from([10, 16]))
@settings(max_examples=examples(50))
def test_a_number_fits_or_is_unknown(content: bytes, base: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        number = sysfs.read_number(path, base)
    assert number is None or 0 <= number < 2**64


# Most of what is drawn of single words is refused; these have what a description must have.
WHOLE = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["npu", "fpga-1"]),
        "match": st.fixed_dictionaries({"dev": st.lists(st.sampled_from([*"a*?./", ".."])).map("".join)}),
    },
    optional={"sysfs": st.lists(st.sampled_from([*"a/.", "{name}", ".."])).map("".join)},
)


@given(documents(GENERIC_KEYS) | st.fixed_dictionaries({"devices": st.lists(WHOLE, max_size=2)}))
def test_a_description_of_devices_is_read_or_refused(document: Any) -> None:
    try:
        rules = generic_spec.decode(yaml.safe_dump(document), "x")
    except ConfigurationError:
        return
    for rule in rules:
        assert rule.name
        assert ".." not in (rule.dev or "").split("/")
        assert ".." not in (rule.sysfs or "").split("/")


@given(documents(PROFILE_KEYS))
def test_a_description_of_a_machine_is_read_or_refused(document: Any) -> None:
    try:
        profile.decode(yaml.safe_dump(document), "x")
    except ConfigurationError:
        pass
