"""Results of selectors: known per content, bounded whoever writes the expressions."""

from __future__ import annotations

import tracemalloc

from dra_driver import cel
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.resource import Device, DeviceAttribute
from dra_driver.structured.model.pools import DeviceEntry
from dra_driver.structured.model.selectors import SelectorCache
from dra_driver.structured.model.types import DEFAULT, DeviceID

DRIVER = DriverName("gpu.example.com")
MIB = 1 << 20


def entries(count: int) -> list[DeviceEntry]:
    return [
        DeviceEntry(
            id=DeviceID(DRIVER, PoolName("node-0"), f"gpu-{i}"),
            device=Device(
                name=f"gpu-{i}",
                attributes={
                    "model": DeviceAttribute(string_value="A100" if i % 2 else "H100"),
                    "uuid": DeviceAttribute(string_value=f"GPU-{i}"),
                },
            ),
            shareable=False,
            node_name="node-0",
            node_selector=None,
            all_nodes=False,
        )
        for i in range(count)
    ]


MODEL = f'device.attributes["{DRIVER}"].model'
UUID = f'device.attributes["{DRIVER}"].uuid'


def test_a_result_costs_the_same_whether_it_was_known_or_not() -> None:
    cache = SelectorCache(DEFAULT)
    (entry, other) = entries(2)
    for expression in (
        f'{MODEL} == "A100"',
        f'{MODEL}.matches("^" + {MODEL})',
        "lists.range(1000).all(x, x >= 0)",
        f'device.attributes["{DRIVER}"].absent == 1',
        "1 +",
    ):
        first = cache.evaluate(expression, entry)
        assert (
            cache.evaluate(expression, entry) == first == SelectorCache(DEFAULT).evaluate(expression, entry)
        )
        assert first.cost >= 1
        assert cache.matches(expression, entry) == first.value
        assert cache.evaluate(expression, other).cost == first.cost


def test_compiled_selectors_that_are_kept_are_bounded() -> None:
    cache = SelectorCache(DEFAULT)
    (entry,) = entries(1)
    kept = f'{MODEL} == "H100"'
    assert cache.matches(kept, entry) is True
    references = cache.references(kept)
    # A megabyte each, as their patterns may come to that.
    for i in range(80):
        cache.matches(f'{MODEL}.matches("{i}.{{999}}")', entry)
    # It had to make room, and is compiled again.
    assert cel.compile_selector(kept).references is not references
    assert cache.matches(kept, entry) is True
    last = f'{MODEL}.matches("79.{{999}}")'
    assert cache.references(last) is cel.compile_selector(last).references


def test_results_that_are_kept_are_bounded() -> None:
    cache = SelectorCache(DEFAULT, most_bytes=MIB // 2)
    devices = entries(300)
    expressions = [f'{UUID} == "GPU-{i}"' for i in range(30)]
    for expression in expressions:
        cache.references(expression)
    tracemalloc.start()
    try:
        for expression in expressions:
            for entry in devices:
                cache.matches(expression, entry)
        # 9,000 results were asked for, which take 2 MB.
        assert tracemalloc.get_traced_memory()[0] < MIB // 2
    finally:
        tracemalloc.stop()
    assert [cache.matches(expressions[3], entry) for entry in devices[:5]] == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_devices_seen_as_a_whole_take_little_memory() -> None:
    whole = Device(
        name="gpu-0",
        attributes={f"a{i}": DeviceAttribute(string_value=f"{i:064}") for i in range(32)},
    )
    view = cel.DeviceView(DRIVER, whole)
    selector = cel.compile_selector(f'device.attributes["{DRIVER}"].all(k, k != "x")')
    assert selector.references.everything
    key = selector.projection_key(view)
    assert isinstance(key, bytes)
    assert len(key) == 16
    other = Device(name="gpu-0", attributes={**whole.attributes, "a0": DeviceAttribute(string_value="0")})
    assert selector.projection_key(cel.DeviceView(DRIVER, other)) != key
    assert selector.projection_key(cel.DeviceView(DRIVER, whole)) == key
