"""Which devices exclude each other, by the counters that they consume."""

from __future__ import annotations

from builders import device, resource_slice

from dra_driver.api import codec
from dra_driver.api.resource import ResourceSlice
from dra_driver.ownership import devices_in, unit_of, units


def slice_(generation: int = 1, /, **consumes: str) -> ResourceSlice:
    """Return a slice with devices that consume counters of sets."""
    devices = [
        device(
            name,
            consumesCounters=[{"counterSet": s, "counters": {"c": {"value": "1"}}} for s in sets.split()],
        )
        for name, sets in consumes.items()
    ]
    return codec.convert(ResourceSlice, resource_slice("n1", *devices, generation=generation))


def test_a_device_is_a_unit_by_itself_or_with_all_of_its_counter_set() -> None:
    found = [slice_(alone="", whole="gpu-0", half="gpu-0", other="gpu-1")]
    assert units(found) == {"alone": "alone", "whole": "gpu-0", "half": "gpu-0", "other": "gpu-1"}
    assert unit_of(found, "half") == "gpu-0"
    assert unit_of(found, "gone") == "gone"


def test_what_consumes_counters_of_several_sets_joins_them_however_they_are_met() -> None:
    """Each chain is one unit, also where the sets that are joined were joined with others before."""
    chains: list[dict[str, str]] = [
        {"x": "b c", "y": "a b", "z": "d c"},
        {"z": "d c", "y": "a b", "x": "b c"},
    ]
    for chain in chains:
        found = units([slice_(1, **chain, one="a", two="d", alone="e")])
        assert {found[n] for n in ("x", "y", "z", "one", "two")} == {"a"}
        assert found["alone"] == "e"
    assert set(units([slice_(x="c b a", one="c", two="b")]).values()) == {"a"}


def test_only_the_newest_generation_joins() -> None:
    old, new = slice_(1, both="a b", gone="a"), slice_(2, one="a", two="b")
    assert units([old, new]) == {"one": "a", "two": "b"}


def test_the_devices_of_units_are_all_that_they_exclude_and_what_they_were() -> None:
    found = [slice_(alone="", whole="gpu-0", half="gpu-0", other="gpu-1")]
    assert devices_in(found, ["gpu-0"]) == {"gpu-0", "whole", "half"}
    assert devices_in(found, ["half"]) == {"half", "whole"}, "a device that was a unit by itself"
    assert devices_in(found, ["gone", "alone"]) == {"gone", "alone"}
    assert devices_in(found, []) == set()
    # The set has joined another one since, whose name the unit has now.
    joined = [slice_(whole="gpu-1", both="gpu-0 gpu-1", third="gpu-2")]
    assert devices_in(joined, ["gpu-1"]) == {"gpu-1", "whole", "both"}
    several = [slice_(a="w x", b="y z", c="other")]
    assert devices_in(several, ["x", "z"]) == {"x", "z", "a", "b"}
