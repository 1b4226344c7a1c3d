"""CDI documents: versions, names, validity, strict reading."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dra_driver import cdi
from dra_driver.errors import DecodeError, InvalidInput

ENV = cdi.ContainerEdits(env=("A=1",))


def spec(*, name: str = "d", edits: cdi.ContainerEdits = ENV, **more: Any) -> cdi.Spec:
    plain = cdi.Spec(
        cdi_version="0.3.0",
        kind="k8s.example.com/claim",
        devices=(cdi.Device(name=name, container_edits=edits),),
    )
    return msgspec.structs.replace(plain, **more)


@pytest.mark.parametrize(
    ("document", "version"),
    [
        (spec(), "0.3.0"),
        (spec(name="0d"), "0.5.0"),
        (spec(edits=cdi.ContainerEdits(device_nodes=(cdi.DeviceNode(path="/dev/a"),))), "0.3.0"),
        (spec(edits=cdi.ContainerEdits(device_nodes=(cdi.DeviceNode(path="/a", host_path="/b"),))), "0.5.0"),
        (
            spec(
                edits=cdi.ContainerEdits(
                    device_nodes=(
                        cdi.DeviceNode(
                            path="/dev/a", type="c", major=237, minor=0, file_mode=0o444, permissions="rw"
                        ),
                    )
                )
            ),
            "0.3.0",
        ),
        (
            spec(
                edits=cdi.ContainerEdits(mounts=(cdi.Mount(host_path="/a", container_path="/b", type="x"),))
            ),
            "0.4.0",
        ),
        (spec(annotations={"a": "b"}), "0.6.0"),
        (spec(kind="example.com/a.b"), "0.6.0"),
        (spec(edits=cdi.ContainerEdits(additional_gids=(1,))), "0.7.0"),
        (
            spec(edits=cdi.ContainerEdits(net_devices=(cdi.NetDevice(host_interface_name="a", name="b"),))),
            "1.1.0",
        ),
    ],
)
def test_the_oldest_version_that_the_content_allows(document: cdi.Spec, version: str) -> None:
    assert cdi.minimum_version(document) == version
    assert cdi.validate(cdi.with_minimum_version(document)) == ()
    if version != "0.3.0":
        assert cdi.validate(document) == (f"cdiVersion 0.3.0: the content needs {version}",)


def test_every_finding_is_named_with_its_place() -> None:
    bad = cdi.Spec(
        cdi_version="9",
        kind="x/claim",
        devices=(
            cdi.Device(name="a", container_edits=ENV),
            cdi.Device(name="a", container_edits=cdi.ContainerEdits()),
            cdi.Device(name="-", container_edits=cdi.ContainerEdits(env=("novalue",))),
            cdi.Device(
                name="b",
                container_edits=cdi.ContainerEdits(
                    device_nodes=(cdi.DeviceNode(path="", type="q", permissions="rwx"),),
                    mounts=(cdi.Mount(host_path="", container_path="/a"),),
                    hooks=(cdi.Hook(hook_name="later", path=""),),
                ),
            ),
        ),
        annotations={"Not/A/Name": ""},
    )
    text = "\n".join(cdi.validate(bad))
    for part in (
        "cdiVersion '9'",
        "kind 'x/claim'",
        "annotations: 'Not/A/Name'",
        "'a' appears more than once",
        "devices[1].containerEdits: empty",
        "devices[2].name",
        "devices[2].containerEdits.env[0]",
        "devices[3].containerEdits.deviceNodes[0].path",
        "deviceNodes[0].type: 'q'",
        "deviceNodes[0].permissions: 'rwx'",
        "mounts[0]",
        "hooks[0].hookName: 'later'",
        "hooks[0].path",
    ):
        assert part in text


def test_a_one_letter_kind_is_refused_because_containerd_panics_on_it() -> None:
    for kind in ("example.com/x", "x/claim", "claim", "/claim", "example.com/", "a b/claim"):
        with pytest.raises(InvalidInput, match="expected vendor/class"):
            cdi.qualified_name(kind, "d")
    assert cdi.qualified_name("k8s.example.com/claim", "a_b") == "k8s.example.com/claim=a_b"


def test_written_documents_are_read_back_and_unknown_fields_are_refused() -> None:
    document = spec(
        edits=cdi.ContainerEdits(
            env=("A=1",),
            device_nodes=(cdi.DeviceNode(path="/dev/a", file_mode=0o660),),
            hooks=(cdi.Hook(hook_name="createContainer", path="/bin/x", args=("x",)),),
            intel_rdt=cdi.IntelRdt(clos_id="c"),
        )
    )
    data = cdi.encode(document)
    assert cdi.decode(data) == document
    raw = json.loads(data)
    assert raw["devices"][0]["containerEdits"]["intelRdt"] == {"closID": "c"}
    raw["devices"][0]["containerEdits"]["surprise"] = 1
    with pytest.raises(DecodeError, match=r"devices\[0\].containerEdits.surprise"):
        cdi.decode(json.dumps(raw).encode())
    with pytest.raises(DecodeError):
        cdi.decode(b"\xff")


def test_merge_keeps_order_and_drops_repetitions() -> None:
    one = cdi.ContainerEdits(env=("A=1", "B=1"), device_nodes=(cdi.DeviceNode(path="/dev/a"),))
    two = cdi.ContainerEdits(env=("A=2", "B=1"), device_nodes=(cdi.DeviceNode(path="/dev/a"),))
    merged = cdi.merge(one, two)
    assert merged.env == ("A=1", "B=1", "A=2")
    assert len(merged.device_nodes) == 1
    assert not cdi.merge()
    assert msgspec.structs.replace(merged, env=())
