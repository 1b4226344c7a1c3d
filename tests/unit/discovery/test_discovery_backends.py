"""Which backend ``--backend`` opens, third parties' among them, and what ``devices`` says of none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from dra_driver import discovery
from dra_driver.cli import main
from dra_driver.discovery.core.hotplug import HotplugSource
from dra_driver.errors import ConfigurationError
from dra_driver.hardware import DiscoveredDevice
from dra_driver.ports import DeviceBackend

ROOTS = {"sysfs_root": Path("/nonexistent/sys"), "dev_root": Path("/nonexistent/dev")}


def open_backend(spec: str) -> DeviceBackend:
    return discovery.open_backend(spec, **ROOTS, node_name="node-1")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "'' is unknown; allowed are nvml, amdgpu"),
        ("nvmll", "'nvmll' is unknown; allowed are nvml, amdgpu"),
        ("nvml=x", "allowed are --backend nvml, and --backend nvml=mig"),
        ("simulated", "a profile is missing: allowed are simulated=NAME with arc, assorted"),
        ("simulated=", "a profile is missing"),
    ],
)
def test_a_wrong_backend_is_refused_with_what_is_allowed(spec: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_backend(spec)
    assert message in str(caught.value)


def test_a_driver_of_nics_looks_for_nics() -> None:
    assert discovery.hardware_backends("rdma.dra-driver.dev") == ("rdma",)
    assert discovery.hardware_backends("gpu.dra-driver.dev") == ("nvml", "amdgpu", "intel")
    assert discovery.hardware_backends("gpu.example.com") == ("nvml", "amdgpu", "intel")


def test_the_seed_of_simulated_devices_is_the_node() -> None:
    def first(node: str) -> str:
        return discovery.open_backend("simulated=t4x2", **ROOTS, node_name=node).discover()[0].uuid

    assert first("a") == first("a") != first("b")


def install(folder: Path, module: str, code: str, entry: str) -> None:
    """An installed package with one entry point, as pip would leave it."""
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dra_driver.backends]\n{entry}\n")


THIRD_PARTY = """
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.hardware import DiscoveredDevice

class Backend:
    name = "acme"
    def __init__(self, arg): self.arg = arg
    def discover(self): return [DiscoveredDevice(InventoryDevice(name="acme-" + self.arg), uuid="u")]
    def close(self): pass

def factory(arg, *, sysfs_root, dev_root, node_name):
    return Backend(arg)
"""


def test_a_third_party_brings_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme_good", THIRD_PARTY, "acme = acme_good:factory")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert discovery.backend_names()[0] == "nvml"
    assert discovery.backend_names()[-2:] == ("simulated", "acme")
    assert [d.device.name for d in open_backend("acme=7").discover()] == ["acme-7"]


def test_a_third_party_cannot_take_a_built_in_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme_evil", THIRD_PARTY, "simulated = acme_evil:factory")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(open_backend("simulated=t4x2").discover()) == 2


def test_a_third_party_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "acme_bad", "raise OSError('no firmware')", "acme = acme_bad:factory")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match="acme_bad:factory cannot be loaded: OSError: no firmware"):
        open_backend("acme")


@pytest.mark.parametrize(
    ("code", "lacking"),
    [
        (THIRD_PARTY.replace("def close(self): pass", ""), "close()"),
        (THIRD_PARTY.replace('name = "acme"', "name = None"), "name (a text)"),
        (THIRD_PARTY.replace("return Backend(arg)", "return None"), "name (a text), discover(), close()"),
    ],
)
def test_what_is_no_backend_is_refused_with_what_it_lacks(
    code: str, lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"acme_{len(lacking)}"
    install(tmp_path, module, code, f"{module} = {module}:factory")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        open_backend(module)
    assert str(caught.value).endswith(f" is no DeviceBackend: it lacks {lacking}")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ('["a", "a"]', "device 'a': 2 devices have this name"),
        ('["A_b"]', "device 'A_b': not a name of a device"),
        ('["x" * 64]', "not a name of a device"),
        ('["a\\x1b[2J"]', "not a name of a device"),
    ],
)
def test_devices_refuses_names_that_the_api_would_refuse(
    names: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = f"[DiscoveredDevice(InventoryDevice(name=n), uuid=str(i)) for i, n in enumerate({names})]"
    one = '[DiscoveredDevice(InventoryDevice(name="acme-" + self.arg), uuid="u")]'
    code = THIRD_PARTY.replace(one, found)
    module = f"acme_names_{abs(hash(names))}"
    install(tmp_path, module, code, f"{module} = {module}:factory")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main.main(["devices", "--backend", module]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert "\x1b" not in err


def test_a_backend_says_that_its_devices_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = THIRD_PARTY.replace('name = "acme"', 'name = "acme"; simulated = True')
    install(tmp_path, "acme_declared", declared, "declared = acme_declared:factory")
    install(tmp_path, "acme_silent", THIRD_PARTY, "silent = acme_silent:factory")
    monkeypatch.syspath_prepend(str(tmp_path))
    specs = ("simulated=t4x2", "declared=7", "nvml", "nvml=mig", "rdma", "silent=7")
    assert [s for s in specs if discovery.is_simulated(open_backend(s))] == ["simulated=t4x2", "declared=7"]


@pytest.mark.parametrize(
    ("spec", "modules", "folders"),
    [
        ("nvml", {"nvidia", "nvidia_uvm"}, {"sys/module/nvidia/drivers", "dev", "sys/class/drm", "dev/dri"}),
        ("amdgpu", {"amdgpu"}, {"sys/module/amdgpu/drivers", "sys/class/drm", "dev/dri"}),
        (
            "intel",
            {"i915", "xe"},
            {"sys/module/i915/drivers", "sys/module/xe/drivers", "sys/class/drm", "dev/dri"},
        ),
        ("rdma", set(), {f"sys/class/infiniband{kind}" for kind in ("", "_verbs", "_mad")}),
    ],
)
def test_a_backend_says_where_it_shows_that_its_devices_come_and_go(
    spec: str, modules: set[str], folders: set[str]
) -> None:
    opened = discovery.open_backend(spec, sysfs_root=Path("sys"), dev_root=Path("dev"), node_name="n")
    assert isinstance(opened, HotplugSource)
    hints = opened.hotplug()
    assert hints.modules == modules
    assert {str(folder) for folder, _ in hints.folders} == folders
    assert dict(hints.folders).get(Path("dev"), "nvidia") == "nvidia"


class Empty:
    name = "a"

    def discover(self) -> Sequence[DiscoveredDevice]:
        return ()

    def close(self) -> None:
        pass


def test_what_was_looked_for_counts_the_gpus_without_driver(tmp_path: Path) -> None:
    for i, (kind, vendor) in enumerate(
        (("0x030200", "0x10de"), ("0x120000", "0x1002"), ("0x020000", "0x10de"), ("0x120000", "0x8086"))
    ):
        function = tmp_path / "bus" / "pci" / "devices" / f"0000:0{i}:00.0"
        function.mkdir(parents=True)
        (function / "class").write_text(f"{kind}\n")
        (function / "vendor").write_text(f"{vendor}\n")
    kept = discovery.LastKnownGood(Empty())
    kept.look()
    lines = discovery.diagnostics([kept], sysfs_root=tmp_path, dev_root=tmp_path)
    assert "a: no devices" in lines
    assert (
        f"sysfs: {tmp_path}/bus/pci/devices: 4 PCI functions; display controllers: 1 NVIDIA, 1 AMD, 0 Intel"
        in lines
    )


def test_a_factory_that_breaks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme_raise", "def factory(arg, **_): return [][0]", "acme = acme_raise:factory")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match="acme_raise:factory makes no backend: IndexError"):
        open_backend("acme")


def test_every_wrong_backend_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["devices", "--backend", "nvml=x", "--backend", "cuda", "--backend", "rdma"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "nvml=x" in lines[0]
    assert "'cuda' is unknown; allowed are nvml, amdgpu" in lines[1]


def test_devices_prints_the_documented_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["devices", "--backend", "simulated=mixed", "--output", "json"]) == 0
    devices = json.loads(capsys.readouterr().out)["devices"]
    assert len(devices) == 5
    for device in devices:
        assert {"name", "attributes", "capacity"} <= device.keys()
        for value in device["attributes"].values():
            assert len(value) == 1
            assert value.keys() <= {"string", "int", "bool", "version"}
        assert device["capacity"]["memory"].keys() == {"value"}


def test_devices_prints_yaml_and_a_table_of_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["devices", "--backend", "simulated=t4x2", "--output", "yaml"]) == 0
    names = [d["name"] for d in yaml.safe_load(capsys.readouterr().out)["devices"]]
    assert main.main(["devices", "--backend", "simulated=t4x2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["NAME", "MODEL", "MEMORY"]
    assert [line.split()[:3] for line in lines[1:]] == [[name, "T4", "15Gi"] for name in names]


def test_several_backends_are_shown_together(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--backend", "simulated=t4x2", "--backend", "simulated=l4x4", "--output", "json"]
    assert main.main(["devices", *flags]) == 0
    assert len(json.loads(capsys.readouterr().out)["devices"]) == 6


def test_a_wrong_profile_is_a_usage_error_with_every_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.yaml").write_text("a: 1\nb: 2\ngpus: []\n")
    assert main.main(["devices", "--backend", f"simulated={tmp_path}/p.yaml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 2
