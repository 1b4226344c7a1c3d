"""What people are told of devices that are not published, however many nodes there are."""

from __future__ import annotations

import builders

from dra_driver.api import codec
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.fleet import withheld_notes


def inventory(node: str, *drivers: str, plugins: tuple[str, ...] = ()) -> DeviceInventory:
    body = builders.inventory(node)
    others = [{"driver": d, "pools": [node], "devices": ["gpu-0", "gpu-1"]} for d in drivers]
    body["status"]["publication"] = {"otherDrivers": others, "withheldFor": list(plugins)}
    return codec.convert(DeviceInventory, body)


def test_nodes_are_counted_and_a_few_are_named() -> None:
    found = [inventory(f"n{i}", "x.example") for i in range(5000)]
    (note,) = withheld_notes(found)
    assert note.startswith("10000 devices of nodes n0, n1, n10 and 4997 more are not published: ")
    assert note.endswith("DRA driver x.example has the same")


def test_of_many_reasons_some_are_told() -> None:
    many = inventory("n1", *(f"d{i}.example" for i in range(20)), plugins=("example.com/gpu",))
    notes = withheld_notes([many, inventory("n2")])
    assert notes[0] == "devices of node n1 are not published: a device plugin hands out example.com/gpu there"
    assert len(notes) == 9
    assert notes[-1] == "devices are withheld for 13 more reasons"
    assert withheld_notes([inventory("n2")]) == ()
