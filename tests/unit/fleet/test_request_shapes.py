"""Request shapes: the words and JSON that they are written in, and all that can be wrong with them."""

from __future__ import annotations

import json

import pytest
from builders import DRIVER

from dra_driver.api import codec
from dra_driver.errors import ConfigurationError
from dra_driver.fleet import parse_shapes


def findings(*texts: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse_shapes(texts, DRIVER)
    return list(caught.value.findings)


def test_words_become_a_claim() -> None:
    (shape,) = parse_shapes(["big=8 gpu model H100 memory 64Gi same nvlinkGroup same numaNode"], DRIVER)
    devices = json.loads(codec.encode(shape.spec))["devices"]
    (request,) = devices["requests"]
    assert shape.name == "big"
    assert request["exactly"]["deviceClassName"] == DRIVER
    assert request["exactly"]["count"] == 8
    assert request["exactly"]["capacity"] == {"requests": {"memory": "64Gi"}}
    assert "H100" in request["exactly"]["selectors"][0]["cel"]["expression"]
    assert [c["matchAttribute"] for c in devices["constraints"]] == [
        f"{DRIVER}/nvlinkGroup",
        "resource.kubernetes.io/numaNode",
    ]


def test_a_shape_without_a_name_is_named_by_its_words() -> None:
    shapes = parse_shapes(["mig profile 7g.80gb", "2 nic.example.com"], DRIVER)
    assert [s.name for s in shapes] == ["mig-profile-7g.80gb", "2-nic.example.com"]
    assert shapes[0].spec.devices.requests[0].exactly.device_class_name == f"mig.{DRIVER}"  # type: ignore[index, union-attr]


def test_a_spec_in_json_is_taken_as_it_is() -> None:
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 3}}]}}
    (shape,) = parse_shapes([f"three={json.dumps(spec)}"], DRIVER)
    assert shape.claim("c-1").spec.devices.requests[0].exactly.count == 3  # type: ignore[index, union-attr]
    assert shape.claim("c-1").metadata.name == "c-1"


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found = findings(
        "a=8 gpus",
        "a=gpu colour red",
        "a=gpu memory lots same",
        "b=",
        "0 gpu",
        "64 gpu",
        "x/y=gpu",
        'c={"a": 1}',
    )
    text = "\n".join(found)
    assert "KIND 'gpus': must be gpu, mig, partition, vf, vfio, nvidia, amd, intel or the name of a" in text
    assert "unknown word 'colour'" in text
    assert "memory 'lots': is not a value of memory" in text
    assert "same '': is not a value of same" in text
    assert "says nothing" in text
    assert "0 devices" in text
    assert "asks for 64 devices; a claim can have 32" in text
    assert "name 'x/y'" in text
    assert "unknown field" in text
    assert len(found) == 9


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"exactly": {"deviceClassName": "g", "allocationMode": "All"}}, "only numbers of devices"),
        ({"exactly": {"deviceClassName": "g", "adminAccess": True}}, "admin access takes no devices"),
        ({}, "neither exactly nor firstAvailable"),
        (
            {"exactly": {"deviceClassName": "g", "selectors": [{"cel": {"expression": "device.x == 1"}}]}},
            "selector: ",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused(request_: dict[str, object], text: str) -> None:
    spec = {"devices": {"requests": [{"name": "r", **request_}]}}
    assert text in findings(f"s={json.dumps(spec)}")[0]
    assert "requests is empty" in findings('s={"devices": {}}')[0]


def test_names_are_unique_and_few() -> None:
    assert findings("a=gpu", "a=mig") == ["--shape: a is given twice"]
    assert "at most 32" in findings(*(f"s{i}=gpu" for i in range(33)))[0]
