"""What is admitted of a pool that has become kube-scheduler's, and how it is listed."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import DRIVER, device

from dra_driver.api import codec
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.own.policy import DevicePolicy
from dra_driver.api.resource import Device, ResourceSlice
from dra_driver.ownership import SHARE
from dra_driver.publishing.forms import Listing, list_forms
from dra_driver.resourceslice import PublishOptions, Usage, build_slices

PROFILE = {
    "name": "half.20gb",
    "placements": [{"start": start, "size": 1} for start in range(2)],
    "capacity": {"memory": {"value": "20Gi"}},
}
GPUS = [device(f"gpu-{i}", "40Gi", partitions=[PROFILE]) for i in range(2)]
INVENTORY = codec.convert(DeviceInventory, builders.inventory("n1", *GPUS))
PARTS = {f"gpu-{i}-mig-half-20gb-{start}" for i in range(2) for start in range(2)}
WHOLE, SHARES = {"gpu-0", "gpu-1"}, {"gpu-0#share", "gpu-1#share"}
FORMS = PARTS | WHOLE | SHARES


def published(spec: dict[str, Any], *held: str) -> list[ResourceSlice]:
    """Return slices as a policy wants them, where devices are held by name."""
    policy = codec.convert(DevicePolicy, {"metadata": {"name": "p"}, "spec": spec})
    shared, held = "share" in spec, tuple(form.removesuffix(SHARE) for form in held)
    now = {} if not held else _devices(published(spec))
    usage = Usage(frozenset(() if shared else held), frozenset(held if shared else ()), now)
    return _slices(build_slices(INVENTORY, [policy], usage, options=PublishOptions(open=True)).slices)


def _slices(contents: Any) -> list[ResourceSlice]:
    made, contents = [], tuple(contents)
    for number, content in enumerate(contents):
        counters = {"sharedCounters": codec.plain(content.shared_counters)} if content.shared_counters else {}
        body = builders.resource_slice("n1", *[codec.plain(d) for d in content.devices], **counters)
        body["spec"]["pool"]["resourceSliceCount"] = len(contents)
        body["metadata"]["name"] = f"s{number}"
        made.append(codec.convert(ResourceSlice, body))
    return made


def _devices(slices: list[ResourceSlice]) -> dict[str, Device]:
    return {d.name: d for s in slices for d in s.spec.devices}


def admitted(listing: Listing) -> set[str]:
    free = FORMS if listing.free is None else listing.free
    return set(free) - listing.kept


@pytest.mark.parametrize(
    ("spec", "held", "expected"),
    [
        ({}, (), WHOLE),
        ({"partitions": {"profiles": ["*"]}}, (), WHOLE | PARTS),
        ({"share": {"maxShares": 2}}, (), SHARES),
        ({"hide": True}, (), set()),
        ({}, ("gpu-0",), {"gpu-1"}),
        ({"share": {"maxShares": 2}}, ("gpu-0#share",), {"gpu-1#share"}),
        # With a part the whole, but not the part beside it; with the whole all parts.
        (
            {"partitions": {"profiles": ["*"]}},
            ("gpu-0-mig-half-20gb-0",),
            {"gpu-0-mig-half-20gb-1", "gpu-1", "gpu-1-mig-half-20gb-0", "gpu-1-mig-half-20gb-1"},
        ),
        (
            {"partitions": {"profiles": ["*"]}},
            ("gpu-0",),
            {"gpu-1", "gpu-1-mig-half-20gb-0", "gpu-1-mig-half-20gb-1"},
        ),
        # What is gone is nothing that could exclude others.
        ({}, ("gpu-9", "gpu-9#share"), WHOLE),
    ],
)
def test_admitted_is_what_is_published_beside_what_is_held(
    spec: dict[str, Any], held: tuple[str, ...], expected: set[str]
) -> None:
    assert admitted(list_forms(INVENTORY.spec.devices, published(spec), held)) == expected


def test_what_is_withdrawn_when_it_is_free_is_not_admitted() -> None:
    """Freed by one claim and given to another before the slices change, it would not be counted any more."""
    part = "gpu-0-mig-half-20gb-0"
    slices = published({}, part)
    assert _devices(slices).keys() == WHOLE | {part}
    assert admitted(list_forms(INVENTORY.spec.devices, slices, ())) == WHOLE


def test_the_shorter_list_is_taken() -> None:
    whole = list_forms(INVENTORY.spec.devices, published({}), ())
    assert whole == Listing(frozenset(WHOLE))
    parts = list_forms(INVENTORY.spec.devices, published({"partitions": {"profiles": ["*"]}}), ())
    assert parts == Listing(None, frozenset(SHARES))
    assert list_forms((), [], ()) == Listing()


def test_of_a_pool_whose_slices_are_gone_nothing_is_admitted() -> None:
    assert list_forms(INVENTORY.spec.devices, [], ()) == Listing(frozenset())


def test_of_a_pool_of_which_slices_are_missing_nothing_is_admitted() -> None:
    """What is held may be in one of these, so that the counters that are left are not known."""
    body = builders.resource_slice("n1", device("gpu-0", "40Gi"), count=2)
    listing = list_forms(INVENTORY.spec.devices, [codec.convert(ResourceSlice, body)], ())
    assert listing == Listing(frozenset())


def test_beside_a_part_that_is_held_and_not_published_nothing_of_its_gpu_is_admitted() -> None:
    """As an API server without taints has it where the part alone is unhealthy."""
    whole = published({"partitions": {"profiles": ["*"]}})
    listing = list_forms(INVENTORY.spec.devices, whole, ("gpu-0-mig-other-0",))
    assert admitted(listing) == WHOLE | PARTS
    slices = published({})
    assert admitted(list_forms(INVENTORY.spec.devices, slices, ("gpu-0-mig-half-20gb-0",))) == {"gpu-1"}
    takes = {"consumesCounters": [{"counterSet": "gpu-0", "counters": {"c": {"value": "1"}}}]}
    some = [device("gpu-0-mig-half-20gb-1", "20Gi", **takes)]
    sets = [{"name": "gpu-0", "counters": {"c": {"value": "1"}}}]
    body = builders.resource_slice("n1", *some, sharedCounters=sets)
    known = [codec.convert(ResourceSlice, body)]
    assert admitted(list_forms(INVENTORY.spec.devices, known, ())) == {"gpu-0-mig-half-20gb-1"}
    assert not admitted(list_forms(INVENTORY.spec.devices, known, ("gpu-0-mig-half-20gb-0",)))


def test_only_the_newest_generation_counts() -> None:
    old = published({"partitions": {"profiles": ["*"]}})
    body = builders.resource_slice("n1", device("gpu-0", "40Gi"), generation=7)
    new = codec.convert(ResourceSlice, body)
    assert new.spec.driver == DRIVER
    assert admitted(list_forms(INVENTORY.spec.devices, [*old, new], ())) == {"gpu-0"}
