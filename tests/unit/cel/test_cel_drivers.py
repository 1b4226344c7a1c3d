"""Which drivers' devices a selector can match at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver import cel
from dra_driver.api.resource import Device, DeviceAttribute

NAMES = ("a.example.com", "b.example.com", "c.example.com")
A, B = 'device.driver == "a.example.com"', '"b.example.com" == device.driver'


@pytest.mark.parametrize(
    ("expression", "drivers"),
    [
        (A, {"a.example.com"}),
        (f'{A} && device.attributes["a.example.com"].type == "gpu"', {"a.example.com"}),
        (f'device.attributes["a.example.com"].fast && ({A})', {"a.example.com"}),
        (f"{A} || {B}", {"a.example.com", "b.example.com"}),
        (f"{A} && {B}", set()),
        (f"{A} || false", {"a.example.com"}),
        ('device.driver in ["a.example.com", "b.example.com"]', {"a.example.com", "b.example.com"}),
        ("false", set()),
        ("true", None),
        (f"!({A})", None),
        ('device.driver != "a.example.com"', None),
        (f"{A} || true", None),
        (f'{A} || device.attributes["x"].y', None),
        (f"{A} ? true : true", None),
        ('device.driver.startsWith("a.")', None),
        ('device.driver in ["a.example.com", device.driver]', None),
        ("has(device.driver)", None),
        ('device.attributes["a.example.com"].type == "gpu"', None),
        (f"cel.bind(x, 1, {A})", None),
        (f"[1, 2].exists(i, {A})", None),
    ],
)
def test_what_is_plain_is_found_and_the_rest_may_be_any(expression: str, drivers: set[str] | None) -> None:
    found = cel.compile_selector(expression).drivers
    assert found == (None if drivers is None else frozenset(drivers))


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: f"({p[0]}) && ({p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]}) || ({p[1]})"),
        inner.map(lambda e: f"!({e})"),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]}) ? ({p[1]}) : ({p[2]})"),
        inner.map(lambda e: f"[{e}].all(x, x)"),
    )


atoms = st.one_of(
    st.sampled_from(NAMES).map(lambda n: f'device.driver == "{n}"'),
    st.sampled_from(NAMES).map(lambda n: f'"{n}" != device.driver'),
    st.lists(st.sampled_from(NAMES)).map(lambda ns: f"device.driver in {ns!r}"),
    st.sampled_from(["true", "false", 'device.attributes["d"].on', 'device.attributes["d"].absent']),
)


@given(st.recursive(atoms, combined, max_leaves=8))
def test_no_device_of_another_driver_is_ever_matched(expression: str) -> None:
    selector = cel.compile_selector(expression)
    for name in NAMES:
        device = Device(name="x", attributes={"d/on": DeviceAttribute(bool_value=True)})
        try:
            matches = selector.matches(cel.DeviceView(name, device))
        except cel.CelRuntimeError:
            continue
        assert not matches or selector.drivers is None or name in selector.drivers
