"""What the independent CDI reader accepts, refuses and makes of a container: as containerd was seen to do."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sim import cdi_reader
from dra_driver.sim.cdi_reader import CdiRegistry, ContainerView


def spec(version: str = "0.5.0", kind: str = "k8s.gpu.example.com/claim", **more: Any) -> dict[str, Any]:
    return {
        "cdiVersion": version,
        "kind": kind,
        "devices": [{"name": "a", "containerEdits": {"env": ["A=1"]}}],
        **more,
    }


def registry(tmp_path: Path, *specs: dict[str, Any], **names: str) -> CdiRegistry:
    for i, document in enumerate(specs):
        (tmp_path / f"s{i}.json").write_text(json.dumps(document))
    return CdiRegistry([tmp_path], stat_device=lambda path: ("c", 195, len(path)))


ID = "k8s.gpu.example.com/claim=a"


@pytest.mark.parametrize("version", ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0"])
def test_accepts_the_versions_that_containerd_accepts(tmp_path: Path, version: str) -> None:
    assert registry(tmp_path, spec(version)).devices == (ID,)


@pytest.mark.parametrize(
    ("document", "finding"),
    [
        (spec("0.2.0"), "cdiVersion '0.2.0' is not one of"),
        (spec("1.0.0"), "cdiVersion '1.0.0' is not one of"),
        (spec(kind="novendor"), "is not vendor/class"),
        (spec(kind="1x/y"), "is not vendor/class"),
        (spec(devices=[]), "devices is empty"),
        (spec(devices=[{"name": "a", "containerEdits": {}}]), "containerEdits is empty"),
        (spec(devices=[{"name": "-a", "containerEdits": {"env": ["A=1"]}}]), "is not a device name"),
        (spec(devices=2 * spec()["devices"]), "occurs twice"),
        (spec("0.4.0", devices=[{"name": "1a", "containerEdits": {"env": ["A=1"]}}]), "needs 0.5.0"),
        (
            spec("0.4.0", containerEdits={"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/y"}]}),
            "deviceNodes.hostPath, which needs 0.5.0",
        ),
        (spec("0.6.0", containerEdits={"additionalGids": [5]}), "needs 0.7.0"),
        (spec("0.5.0", annotations={"a": "b"}), "needs 0.6.0"),
        (spec(containerEdits={"env": ["NOVALUE"]}), "is not NAME=value"),
        (spec(containerEdits={"hooks": [{"hookName": "never", "path": "/x"}]}), "hookName 'never'"),
        (spec(containerEdits={"deviceNodes": [{"path": "/dev/x", "permissions": "rx"}]}), "permissions 'rx'"),
        (spec(surprise=1), "surprise"),
    ],
)
def test_a_bad_spec_disables_itself_alone(tmp_path: Path, document: dict[str, Any], finding: str) -> None:
    good = spec(kind="k8s.other.example.com/claim")
    found = registry(tmp_path, document, good)
    assert found.devices == ("k8s.other.example.com/claim=a",)
    assert finding in found.errors[tmp_path / "s0.json"]


def test_reads_json_and_yaml_and_nothing_else(tmp_path: Path) -> None:
    for name in ("one.json", "two.yaml", "three.yml", "four.tmp", ".five.json.swp"):
        (tmp_path / name).write_text(json.dumps(spec(kind=f"k8s.{name.split('.')[0] or 'x'}/claim")))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "six.json").write_text(json.dumps(spec(kind="k8s.six/claim")))
    (tmp_path / "broken.json").write_text("{")
    found = CdiRegistry([tmp_path])
    assert found.devices == ("k8s.one/claim=a", "k8s.two/claim=a")
    assert set(found.errors) == {tmp_path / "broken.json"}


def test_a_device_in_two_files_of_a_directory_cannot_be_resolved(tmp_path: Path) -> None:
    found = registry(tmp_path, spec(), spec())
    assert found.conflicts == {ID}
    with pytest.raises(cdi_reader.UnresolvableDevices, match="unresolvable CDI devices k8s"):
        found.inject([ID])


def test_a_later_directory_has_priority(tmp_path: Path) -> None:
    first, second = tmp_path / "etc", tmp_path / "run"
    first.mkdir()
    second.mkdir()
    (first / "a.json").write_text(json.dumps(spec()))
    (second / "a.json").write_text(
        json.dumps(spec(devices=[{"name": "a", "containerEdits": {"env": ["A=2"]}}]))
    )
    assert CdiRegistry([first, second]).inject([ID]).env == {"A": "2"}


def test_absent_directory_is_empty(tmp_path: Path) -> None:
    assert CdiRegistry([tmp_path / "absent"]).devices == ()


def test_edits_are_merged_as_the_runtime_merges_them(tmp_path: Path) -> None:
    document = spec(
        containerEdits={"env": ["COMMON=spec", "A=spec"]},
        devices=[
            {
                "name": "a",
                "containerEdits": {
                    "env": ["A=device"],
                    "deviceNodes": [{"path": "/dev/n0", "hostPath": "/host/n0"}, {"path": "/dev/ctl"}],
                    "mounts": [
                        {"hostPath": "/h/deep", "containerPath": "/usr/lib/deep", "options": ["ro", "bind"]},
                        {"hostPath": "/h/top", "containerPath": "/top"},
                    ],
                    "hooks": [{"hookName": "createContainer", "path": "/bin/h", "args": ["h", "x"]}],
                },
            },
            {
                "name": "b",
                "containerEdits": {
                    "env": ["B=1"],
                    "deviceNodes": [{"path": "/dev/ctl"}, {"path": "/dev/n1"}],
                },
            },
        ],
    )
    found = registry(tmp_path, document)
    view = found.inject([ID, ID, ID[:-1] + "b"], ContainerView(env={"A": "pod", "KEPT": "1"}))
    assert view.env == {"A": "device", "KEPT": "1", "COMMON": "spec", "B": "1"}
    assert [d.path for d in view.devices] == ["/dev/n0", "/dev/ctl", "/dev/n1"]
    assert view.devices[0].host_path == "/host/n0"
    assert view.devices[0].permissions == "rwm"
    assert [m.destination for m in view.mounts] == ["/top", "/usr/lib/deep"]
    assert view.cdi_devices == (ID, ID[:-1] + "b")
    oci = view.as_oci()
    assert "A=device" in oci["process"]["env"]
    assert oci["hooks"] == {"createContainer": [{"path": "/bin/h", "args": ["h", "x"]}]}
    assert oci["linux"]["devices"][0]["major"] == 195


def test_a_node_that_is_given_by_its_numbers_need_not_exist_on_the_host(tmp_path: Path) -> None:
    """Recorded from containerd 1.7.24 and 2.3.0 with runc 1.1.5; without the major number it is looked at."""
    node = {"path": "/dev/nvidia-caps/nvidia-cap0", "type": "c", "major": 237, "fileMode": 292}
    file = tmp_path / "numbers.json"

    def devices(**more: object) -> list[cdi_reader.DeviceView]:
        edits = {"deviceNodes": [{**node, **more}]}
        file.write_text(json.dumps(spec(devices=[{"name": "a", "containerEdits": edits}])))
        found = CdiRegistry([tmp_path])
        return found.inject([ID]).devices

    (made,) = devices(permissions="rw")
    assert (made.type, made.major, made.minor, made.file_mode) == ("c", 237, 0, 0o444)
    assert made.permissions == "rw"
    with pytest.raises(cdi_reader.CdiError, match="failed to stat CDI host device"):
        devices(major=0)
    with pytest.raises(cdi_reader.CdiError, match="failed to stat CDI host device"):
        devices(type="")


def test_a_missing_or_false_device_node_is_refused_as_the_runtime_refuses_it(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    with pytest.raises(cdi_reader.CdiError, match="is not a device node"):
        cdi_reader.stat_device_node(str(plain))
    with pytest.raises(cdi_reader.CdiError, match="failed to stat"):
        cdi_reader.stat_device_node(str(tmp_path / "absent"))
    status = Path("/dev/null").stat()
    assert cdi_reader.stat_device_node("/dev/null") == (
        "c",
        os.major(status.st_rdev),
        os.minor(status.st_rdev),
    )
    assert cdi_reader.simulated_device_node(str(plain)) == ("c", 0, 0)
