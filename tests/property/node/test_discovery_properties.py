"""Whatever a profile contains, it is decoded or refused in words; versions are semantic or absent."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api.version import Version
from dra_driver.discovery.core import schema
from dra_driver.discovery.simulated import profile as simulated_profile
from dra_driver.discovery.simulated.gpu_entries import GPU_KEYS
from dra_driver.errors import ConfigurationError

scalars = st.one_of(
    st.text(max_size=20),
    st.integers(-(10**20), 10**20),
    st.booleans(),
    st.none(),
    st.sampled_from(
        ["A100-40", "0000:3b:00.0", "40Gi", "1e999", "nvidia", "/dev/null", "12.4", "pci0000:3a"]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
partition = st.dictionaries(
    st.sampled_from(["name", "id", "size", "starts", "memory", "x"]), values, max_size=6
)
gpu = st.dictionaries(st.sampled_from([*GPU_KEYS, "x"]), values, max_size=8) | st.fixed_dictionaries(
    {
        "pciAddress": st.just("0000:3b:00.0"),
        "product": st.just("T4"),
        "partitions": st.lists(partition, max_size=2),
    }
)
documents = st.fixed_dictionaries(
    {"gpus": st.lists(gpu, max_size=3) | values},
    optional={
        "nvlink": values | st.lists(st.fixed_dictionaries({"members": values}), max_size=2),
        "driverVersion": values,
    },
)


@given(documents)
def test_any_document_is_decoded_or_refused(document: object) -> None:
    try:
        machine = simulated_profile.decode(json.dumps(document), "p")
    except ConfigurationError as e:
        findings = e.findings
    else:
        assert len({d.function.address for d in machine.devices}) == len(machine.devices)
        return
    assert findings
    assert all(f.startswith("simulated profile p: ") and len(f) < 2000 for f in findings)


@given(st.text(max_size=200))
def test_any_text_is_decoded_or_refused(text: str) -> None:
    try:
        simulated_profile.decode(text, "p")
    except ConfigurationError:
        pass


@given(
    st.text(max_size=80)
    | st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,4}){0,4}([-+][0-9A-Za-z.-]{0,10})?", fullmatch=True)
)
def test_versions_are_semantic_or_absent(text: str) -> None:
    version = schema.semantic_version(text)
    if version is not None:
        Version.parse(version)
        assert schema.semantic_version(version) == version
        assert len(version) <= 64


@given(
    st.dictionaries(
        st.sampled_from([s.name for s in schema.ATTRIBUTES]),
        st.text() | st.integers() | st.booleans() | st.none(),
    ),
    st.dictionaries(st.sampled_from([s.name for s in schema.CAPACITIES]), st.integers() | st.none()),
)
def test_what_is_built_keeps_the_limits_of_the_api(
    facts: dict[str, str | int | bool | None], capacity: dict[str, int | None]
) -> None:
    properties = schema.build(facts, capacity)
    given_names = {n for n, v in {**facts, **capacity}.items() if v is not None}
    kept = {
        *properties.attributes,
        *properties.capacity,
        *properties.dropped,
        *(n for n, _ in properties.rejected),
    }
    assert kept == given_names
    for value in properties.attributes.values():
        if value.string_value is not None:
            assert 0 < len(value.string_value.encode()) <= 64
        if value.int_value is not None:
            assert -(2**63) <= value.int_value < 2**63
