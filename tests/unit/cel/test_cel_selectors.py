"""Selectors on devices: attributes, capacities, absence, operators, functions, limits."""

from __future__ import annotations

import pytest

from dra_driver import cel
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Device, DeviceAttribute, DeviceCapacity

DRIVER = "gpu.example.com"


def a_device(**overrides: object) -> Device:
    fields: dict[str, object] = {
        "name": "gpu-0",
        "attributes": {
            "model": DeviceAttribute(string_value="A100"),
            "index": DeviceAttribute(int_value=3),
            "healthy": DeviceAttribute(bool_value=True),
            "driverVersion": DeviceAttribute(version_value="550.54.15"),
            "resource.kubernetes.io/pcieRoot": DeviceAttribute(string_value="pci0000:01"),
        },
        "capacity": {
            "memory": DeviceCapacity(value=Quantity.parse("40Gi")),
            "big": DeviceCapacity(value=Quantity.parse("160Ti")),
        },
    }
    return Device(**{**fields, **overrides})  # type: ignore[arg-type]


def evaluate(expression: str, device: Device | None = None, **environment: bool) -> bool:
    """``expression`` with ``A`` and ``C`` short for the device's attributes and capacities."""
    text = expression.replace("$A", f'device.attributes["{DRIVER}"]').replace(
        "$C", f'device.capacity["{DRIVER}"]'
    )
    view = cel.DeviceView(
        DRIVER, device or a_device(), list_attributes=environment.get("list_type_attributes", False)
    )
    selector = cel.compile_selector(text, environment=cel.Environment(**environment))
    return selector.matches(view)


@pytest.mark.parametrize(
    "expression",
    [
        '$A.model == "A100"',
        '$A["model"] != "H100"',
        "$A.index == 3 && $A.index < 3.5 && $A.index > 2u",
        "$A.healthy",
        '$A.driverVersion.isGreaterThan(semver("535.0.0"))',
        '$A.driverVersion == semver("550.54.15+build")',
        '$C.memory.compareTo(quantity("32Gi")) >= 0',
        '$C.memory == quantity("40960Mi")',
        '$C.memory.sub(quantity("8Gi")).isLessThan(quantity("40Gi"))',
        f'device.driver == "{DRIVER}"',
        "!device.allowMultipleAllocations",
        'device.attributes["resource.kubernetes.io"].pcieRoot.startsWith("pci")',
        '$A.?model.orValue("none") == "A100"',
        '$A.?absent.orValue("none") == "none"',
        '!has($A.absent) || $A.absent == "x"',
        '"model" in $A && !("absent" in $A)',
        '$A.model in ["A100", "H100"]',
        '$A.model.matches("^A[0-9]+$")',
        'cel.bind(a, $A, a.model == "A100" && a.index == 3)',
        '$A.exists(k, k == "model")',
        '$A.transformMap(k, v, k == "model", v) == {"model": "A100"}',
        "[3, 1, 2].sortBy(x, -x) == [3, 2, 1]",
        "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6]",
        '["b", "a"].sort().join("+") == "a+b"',
        'optional.of($A.index).optMap(x, int(x) + 1).value() == 4',
        'isSemver("v1.2", true) && !isSemver("v1.2")',
        'timestamp("2024-02-29T12:00:00Z") + duration("24h") == timestamp("2024-03-01T12:00:00Z")',
        'timestamp("2024-02-29T12:00:00Z").getDayOfWeek() == 4',
        'timestamp("2024-02-29T12:00:00Z").getHours("+02:30") == 14',
        'string(duration("90m") - duration("1.5s")) == "5398.5s"',
        'ip("192.168.1.4").family() == 4 && cidr("192.168.0.0/16").containsIP("192.168.1.4")',
        'url("https://h:8/p?a=1&a=2#f").getQuery() == {"a": ["1", "2"]}',
        'url("https://h:8/p?a=1#f").getEscapedPath() == "/p"',
        '!format.dns1123Label().validate("ok-1").hasValue()',
        '"%s|%d|%.1f|%x|%s".format(["a", 1, 1.25, 255, ["b", 2]]) in ["a|1|1.2|ff|[\\"b\\", 2]"]',
        '"%.2f".format([1234567.0]) == "1,234,567.00"',
        "string(1.0) == '1' && string(1e21) == '1e+21' && string(0.25) == '0.25'",
        "-7 / 2 == -3 && -7 % 2 == -1 && 0x10 == 16",
        "b'\\x41' == b'A' && '\\u00e9' == 'é' && r'\\d' == '\\\\d'",
        "google.protobuf.BoolValue{value: true} == true",
        "type($A.index) == int",
        "{1: 'a', 2: 'b'}.all(k, v, k > 0 && v != '')",
    ],
)  # fmt: skip
def test_these_match(expression: str) -> None:
    assert evaluate(expression)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('$A.absent == "x"', "no such key: absent"),
        ('device.attributes["elsewhere"].model == "x"', "no such key: model"),
        ("$A.index / 0 == 1", "division by zero"),
        ("9223372036854775807 + $A.index > 0", "integer overflow"),
        ("$A.model", "could not be converted to bool"),
        ("$A.model && true", "no such overload"),
        ('$A.driverVersion == "550.54.15"', "no such overload"),
        ("$C.big.asInteger() > 0", "cannot convert value to integer"),
        ("[1, 2][2] == 1", "index out of bounds"),
        ('quantity("4 GB") == $C.memory', "is not a quantity"),
    ],
)
def test_these_have_no_value(expression: str, message: str) -> None:
    with pytest.raises(cel.CelRuntimeError, match=message):
        evaluate(expression)


def test_and_and_or_absorb_a_failure_that_the_other_side_decides() -> None:
    assert evaluate("$A.absent || true")
    assert not evaluate("$A.absent && false")
    assert evaluate('["absent", "model"].exists(k, $A[k] == "A100")')
    with pytest.raises(cel.CelRuntimeError):
        evaluate("$A.absent && true")


def test_a_version_in_a_list_of_constants_fails_beyond_absorption() -> None:
    with pytest.raises(cel.CelPanic):
        evaluate('$A.driverVersion in ["550.54.15"] || true')


def test_failed_comparisons_are_unequal() -> None:
    assert evaluate('$A.driverVersion != "550.54.15"')
    assert not evaluate('"550.54.15" == $A.driverVersion')


def test_a_sum_is_equal_only_from_the_left() -> None:
    assert evaluate('$C.memory.add(quantity("1Gi")) == quantity("41Gi")')
    with pytest.raises(cel.CelRuntimeError):
        evaluate('quantity("41Gi") == $C.memory.add(quantity("1Gi"))')


def test_sums_do_not_change_the_device_nor_constants() -> None:
    device = a_device()
    for _ in range(2):
        assert evaluate('$C.big.add(quantity("1")).compareTo(quantity("160Ti")) == 1', device)
        assert evaluate('quantity("160Ti").add(1).compareTo(quantity("160Ti")) == 1', device)
    assert Quantity.parse("160Ti").nano == 160 * 2**40 * 10**9
    assert device.capacity["big"].value.nano == 160 * 2**40 * 10**9


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "1:1: syntax error"),
        ("true &&", "1:8: syntax error: expected an expression, found the end"),
        ("true\n  && )", "2:6: syntax error"),
        ("device.foo == 1", "undefined field 'foo'"),
        ("model == 1", "undeclared reference to 'model'"),
        ("$A.model.nope()", "undeclared reference to 'nope'"),
        ("$C.memory > quantity('1')", "found no matching overload for '_>_'"),
        ("1", "must evaluate to bool or the unknown type, not int"),
        ("$A", "must evaluate to bool"),
        ("[1, 'a'].size() == 2", "expected type 'int' but found 'string'"),
        ("$A.model.matches('[')", "invalid matches argument"),
        ("duration('1 day') > duration('1s')", "invalid duration argument"),
        ("int('x') == 1", "type conversion error"),
        ("9223372036854775808 > 0", "out of range"),
        ("if == 1", "reserved identifier: if"),
        ("has(device.attributes['a'])", r"invalid argument to has\(\)"),
        ("'\\q' == 'q'", "unknown escape"),
        ("(" * 300 + "true" + ")" * 300, "nested deeper than 250"),
        ("1" + "+1" * 300 + " == 301", "nested deeper than 250"),
        ("math.abs(1) == 1", "undeclared reference to 'math'"),
    ],
)
def test_these_do_not_compile(expression: str, message: str) -> None:
    with pytest.raises(cel.CelCompileError, match=message):
        evaluate(expression)


def test_deep_but_legal_nesting_compiles() -> None:
    assert evaluate("(" * 240 + "true" + ")" * 240)
    assert evaluate("1" + "+1" * 200 + " == 201")
    assert evaluate("!" * 1000 + "true")
    assert evaluate(" && ".join(["true"] * 1000))


@pytest.mark.parametrize(
    "attributes",
    [
        {"v": DeviceAttribute(version_value="one")},
        {"v": DeviceAttribute()},
        {"v": DeviceAttribute(strings=("a", "b"))},
    ],
)
def test_an_attribute_that_cannot_be_read_fails_every_expression(
    attributes: dict[str, DeviceAttribute],
) -> None:
    with pytest.raises(cel.CelRuntimeError, match="attribute v: "):
        evaluate("true", a_device(attributes=attributes))


def test_list_attributes_behind_their_gate() -> None:
    device = a_device(attributes={"links": DeviceAttribute(strings=("a", "b"))})
    assert evaluate('$A.links.includes("b")', device, list_type_attributes=True)
    assert evaluate('$A.links.exists(l, l == "a") && "b" in $A.links', device, list_type_attributes=True)
    assert evaluate("$A.links.size() == 2", device, list_type_attributes=True)


def test_gates_apply_to_new_objects_only() -> None:
    new = cel.Environment(new=True, consumable_capacity=False)
    with pytest.raises(cel.CelCompileError):
        cel.compile_selector("device.allowMultipleAllocations", environment=new)
    with pytest.raises(cel.CelCompileError):
        cel.compile_selector("[1].includes(1)", environment=cel.NEW)
    cel.compile_selector("[1].includes(1) && !device.allowMultipleAllocations")


def test_the_cost_is_limited_at_run_time() -> None:
    ten = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
    nested = "true"
    for i in range(6):
        nested = f"{ten}.all(x{i}, {nested})"
    with pytest.raises(cel.CelPanic, match="cost limit exceeded"):
        evaluate(nested)
    with pytest.raises(cel.CelPanic, match="cost limit exceeded"):
        evaluate("lists.range(1000000000000).size() > 0 || true")
    with pytest.raises(cel.CelPanic, match="operation cancelled"):
        evaluate("lists.range(500000).transformMap(i, v, v).size() > 0")


def test_what_validation_finds() -> None:
    def reasons(expression: str) -> list[str]:
        return [f.reason for f in cel.validate_selector(expression)]

    assert reasons("true") == []
    assert reasons("true" + " " * 10_236) == []
    assert reasons("true" + " " * 10_237) == ["TooLong"]
    assert reasons("1") == ["Invalid"]
    assert reasons('type(device.attributes["d"].x) == int') == ["TooExpensive"]


def test_compiling_again_gives_the_same_selector() -> None:
    assert cel.compile_selector("true") is cel.compile_selector("true")
