"""Equal parts of many devices are kept once, and nothing that is written differently is taken for equal."""

from __future__ import annotations

import msgspec

from dra_driver.api import codec
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Device

PARTITION = (
    '{"name":"1g.10gb","profileId":19,"placements":[{"start":0,"size":1},{"start":1,"size":1}],'
    '"attributes":{"type":{"string":"mig"},"parentUUID":{"string":"%s"}},'
    '"capacity":{"memory":{"value":"9984Mi"}}}'
)


def device(uuid: str, memory: str) -> str:
    attributes = f'{{"model":{{"string":"H100"}},"uuid":{{"string":"{uuid}"}},"index":{{"int":1}}}}'
    return (
        f'{{"name":"gpu","attributes":{attributes},"capacity":{{"memory":{{"value":"{memory}"}}}},'
        f'"partitions":[{PARTITION % uuid}]}}'
    )


def test_devices_of_one_model_share_what_is_equal() -> None:
    a, b = (codec.decode(InventoryDevice, device(uuid, "80Gi")) for uuid in ("GPU-a", "GPU-b"))
    assert a.attributes["model"] is b.attributes["model"]
    assert a.capacity is b.capacity
    assert a.partitions[0].placements is b.partitions[0].placements
    assert a.partitions[0].capacity is b.partitions[0].capacity
    assert a.partitions[0].attributes["type"] is b.partitions[0].attributes["type"]
    assert (a.attributes["uuid"].string_value, b.attributes["uuid"].string_value) == ("GPU-a", "GPU-b")


def test_equal_amounts_that_are_written_differently_stay_as_they_were_written() -> None:
    for memory in ("80Gi", "81920Mi", "85899345920", "80Gi"):
        found = codec.decode(InventoryDevice, device("GPU-a", memory))
        assert found.capacity["memory"].value.format is Quantity.parse(memory).format
        text = str(Quantity.parse(memory))  # as Kubernetes writes it
        assert msgspec.json.decode(codec.encode(found.capacity)) == {"memory": {"value": text}}


def test_a_one_is_no_true() -> None:
    for text in ('{"int":1}', '{"bool":true}', '{"string":"1"}', '{"version":"1"}'):
        found = codec.decode(Device, f'{{"name":"x","attributes":{{"a":{text}}}}}')
        assert codec.encode(found.attributes["a"]).decode() == text


def test_a_device_with_a_request_policy_keeps_it() -> None:
    text = '{"memory":{"value":"8Gi","requestPolicy":{"default":"1Gi","validRange":{"min":"1Gi"}}}}'
    found = codec.decode(Device, f'{{"name":"x","capacity":{text}}}')
    assert msgspec.json.decode(codec.encode(found.capacity)) == msgspec.json.decode(text)
