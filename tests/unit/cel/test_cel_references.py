"""What of a device a selector depends on, and the key made of it."""

from __future__ import annotations

import pytest

from dra_driver import cel
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Device, DeviceAttribute, DeviceCapacity


def view(uuid: str = "GPU-1", model: str = "A100", memory: str = "40Gi", driver: str = "d") -> cel.DeviceView:
    return cel.DeviceView(
        driver,
        Device(
            name="gpu",
            attributes={
                "uuid": DeviceAttribute(string_value=uuid),
                "d/model": DeviceAttribute(string_value=model),
                "index": DeviceAttribute(int_value=1),
            },
            capacity={"memory": DeviceCapacity(value=Quantity.parse(memory))},
        ),
    )


@pytest.mark.parametrize(
    ("expression", "attributes", "capacity"),
    [
        ('device.attributes["d"].model == "A100"', [("d", "model")], []),
        ("has(device.attributes.d.model)", [("d", "model")], []),
        ('"model" in device.attributes["d"]', [("d", "model")], []),
        ('device.attributes["d"].?model.hasValue()', [("d", "model")], []),
        ('device.attributes["d"][?"model"].hasValue()', [("d", "model")], []),
        ('cel.bind(a, device.attributes["d"], a.x && a.y)', [("d", "x"), ("d", "y")], []),
        ('device.capacity["d"].memory.isGreaterThan(quantity("1"))', [], [("d", "memory")]),
        ('["A", "B"].exists(m, device.attributes["d"].model == m)', [("d", "model")], []),
        ('cel.bind(device, true, device)', [], []),
        ("true", [], []),
    ],
)  # fmt: skip
def test_constant_keys_are_the_projection(
    expression: str, attributes: list[tuple[str, str]], capacity: list[tuple[str, str]]
) -> None:
    found = cel.compile_selector(expression).references
    assert list(found.attributes) == attributes
    assert list(found.capacity) == capacity
    assert not found.everything
    assert not found.driver


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["d"].size() > 0',
        'device.attributes["d"].exists(k, k == "x")',
        'device.attributes[device.driver].model == "x"',
        '"d" in device.attributes',
        'device.attributes["d"] == device.attributes["e"]',
        "device == device",
        'cel.bind(a, device.attributes["d"], a.size() == 1)',
        '["a"].exists(k, device.attributes["d"][k] == 1)',
    ],
)
def test_computed_keys_sizes_and_iteration_see_everything(expression: str) -> None:
    assert cel.compile_selector(expression).references.everything


def test_the_key_leaves_out_what_is_not_seen() -> None:
    selector = cel.compile_selector('device.attributes["d"].model == "A100"')
    assert selector.projection_key(view(uuid="1")) == selector.projection_key(view(uuid="2", memory="1Gi"))
    assert selector.projection_key(view()) != selector.projection_key(view(model="H100"))
    everything = cel.compile_selector('device.attributes["d"].size() == 3')
    assert everything.projection_key(view(uuid="1")) != everything.projection_key(view(uuid="2"))
    assert everything.projection_key(view()) == everything.projection_key(view())


def test_the_key_tells_types_and_absence_apart() -> None:
    selector = cel.compile_selector('device.attributes["d"].x == 1')

    def key(value: DeviceAttribute | None) -> object:
        attributes = {} if value is None else {"x": value}
        return selector.projection_key(cel.DeviceView("d", Device(name="g", attributes=attributes)))

    values = [
        None,
        DeviceAttribute(int_value=1),
        DeviceAttribute(bool_value=True),
        DeviceAttribute(string_value="1"),
        DeviceAttribute(version_value="1.0.0"),
    ]
    assert len({key(v) for v in values}) == len(values)


def test_the_key_tells_how_quantities_are_written_where_that_is_seen() -> None:
    amount = cel.compile_selector('device.capacity["d"].memory == quantity("1")')
    written = cel.compile_selector('device.capacity["d"].memory.isInteger()')
    assert amount.projection_key(view(memory="1")) == amount.projection_key(view(memory="1000m"))
    assert written.projection_key(view(memory="1")) != written.projection_key(view(memory="1000m"))


def test_a_device_that_cannot_be_read_has_a_key_of_its_own() -> None:
    selector = cel.compile_selector("true")
    broken = Device(name="g", attributes={"v": DeviceAttribute(version_value="x")})
    assert selector.projection_key(cel.DeviceView("d", broken)) != selector.projection_key(view())


def test_the_driver_and_the_sharing_flag_are_part_of_the_key_where_they_are_read() -> None:
    selector = cel.compile_selector('device.driver == "d" && !device.allowMultipleAllocations')
    assert selector.references.driver
    assert selector.references.allow_multiple_allocations
    assert selector.projection_key(view(driver="d")) != selector.projection_key(view(driver="e"))
