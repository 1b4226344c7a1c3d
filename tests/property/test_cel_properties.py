"""Selectors: any text gives a bool or one of our errors; equal keys mean equal outcomes."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver import cel
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Device, DeviceAttribute, DeviceCapacity

NAMES = ("a", "b", "c")
AMOUNTS = ("1", "1000m", "0.0", "160Ti", "1.5Gi", "1536Mi", "10E")

attributes = st.dictionaries(
    st.sampled_from([*NAMES, *(f"other/{n}" for n in NAMES)]),
    st.one_of(
        st.sampled_from(["x", "y", "1.0.0", ""]).map(lambda v: DeviceAttribute(string_value=v)),
        st.integers(0, 2).map(lambda v: DeviceAttribute(int_value=v)),
        st.booleans().map(lambda v: DeviceAttribute(bool_value=v)),
        st.sampled_from(["1.0.0", "2.0.0-rc.1"]).map(lambda v: DeviceAttribute(version_value=v)),
    ),
)
capacities = st.dictionaries(
    st.sampled_from(NAMES),
    st.sampled_from(AMOUNTS).map(lambda v: DeviceCapacity(value=Quantity.parse(v))),
)
devices = st.builds(
    lambda a, c, many: cel.DeviceView(
        "d", Device(name="g", attributes=a, capacity=c, allow_multiple_allocations=many)
    ),
    attributes,
    capacities,
    st.booleans(),
)

values = st.one_of(
    st.builds(
        "device.attributes[{!r}].{}".format, st.sampled_from(["d", "other", "none"]), st.sampled_from(NAMES)
    ),
    st.sampled_from(
        ["1", "1.0", "2u", "true", "'x'", "semver('1.0.0')", "null", "device.driver", "[1, 2]", "['x']"]
    ),
)
amounts = st.recursive(
    st.one_of(
        st.builds("device.capacity['d'].{}".format, st.sampled_from(NAMES)),
        st.builds("quantity('{}')".format, st.sampled_from(AMOUNTS)),
    ),
    lambda inner: st.builds("{}.{}({})".format, inner, st.sampled_from(["add", "sub"]), inner),
    max_leaves=4,
)
tests = st.one_of(
    st.builds("({} {} {})".format, values, st.sampled_from(["==", "!=", "<", ">=", "in", "+"]), values),
    st.builds("({} {} {})".format, amounts, st.sampled_from(["==", "!="]), amounts),
    st.builds("{}.{}({})".format, amounts, st.sampled_from(["isGreaterThan", "compareTo"]), amounts),
    st.builds("{}.isInteger()".format, amounts),
    st.builds("has(device.attributes['d'].{})".format, st.sampled_from(NAMES)),
    st.builds("('{}' in device.attributes['d'])".format, st.sampled_from(NAMES)),
    st.sampled_from(["device.allowMultipleAllocations", "device.attributes['d'].size() == 2"]),
    st.builds("device.attributes['d'].exists(k, v, v == {})".format, values),
    st.builds("cel.bind(m, device.attributes['d'], m.a == {})".format, values),
    st.builds("device.attributes['d'].?{}.orValue({})".format, st.sampled_from(NAMES), values),
    values,
)
expressions = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=5,
)


TOKENS = [
    *(
        "device",
        ".",
        "attributes",
        "[",
        "]",
        "(",
        ")",
        "?",
        ":",
        ",",
        "{",
        "}",
        "'d'",
        '"x"',
        "1",
        "2.5",
        "-",
    ),
    *(
        "!",
        "&&",
        "||",
        "==",
        "in",
        "all",
        "exists",
        "map",
        "x",
        "has",
        "cel",
        "bind",
        "true",
        "null",
        "//",
        "r'",
    ),
    "\\",
]


def outcome(expression: str, device: cel.DeviceView) -> tuple[bool | str, object]:
    selector = cel.compile_selector(expression)
    key = selector.projection_key(device)
    try:
        return selector.matches(device), key
    except cel.CelRuntimeError as e:
        return "internal error" if "internal error" in str(e) else "no value", key


@settings(max_examples=examples(400), deadline=None)
@given(expressions, devices, devices)
def test_equal_keys_mean_equal_outcomes(expression: str, one: cel.DeviceView, other: cel.DeviceView) -> None:
    try:
        first, first_key = outcome(expression, one)
    except cel.CelCompileError:
        return
    assert first != "internal error"
    assert outcome(expression, one) == (first, first_key)
    second, second_key = outcome(expression, other)
    assert first_key != second_key or first == second


@settings(max_examples=examples(300), deadline=None)
@given(tests, tests, devices)
def test_and_is_or_upside_down(left: str, right: str, device: cel.DeviceView) -> None:
    try:
        both, _ = outcome(f"({left}) && ({right})", device)
        turned, _ = outcome(f"!(!({left}) || !({right}))", device)
        swapped, _ = outcome(f"({right}) && ({left})", device)
    except cel.CelCompileError:
        return
    assert both == turned == swapped


@settings(max_examples=examples(400), deadline=None)
@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(
            st.sampled_from(TOKENS),
            max_size=25,
        ).map(" ".join),
    )
)  # fmt: skip
def test_any_text_compiles_or_is_refused_with_a_reason(text: str) -> None:
    try:
        cel.compile_selector(text, environment=cel.NEW)
    except cel.CelCompileError:
        assert [f.reason for f in cel.validate_selector(text)] == ["Invalid"]
    else:
        assert "Invalid" not in [f.reason for f in cel.validate_selector(text)]
