"""The SDK and its example: what a third party's driver may rely on, and what it gets of it."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from example_driver import EXAMPLE, acme_machine, install_example
from nonempty import nonempty
from paths import PROJECT

from dra_driver import sdk
from dra_driver.api.own.kinds import decode_kind, kinds_by_name
from dra_driver.api.own.partitions import partition_devices
from dra_driver.cli import main
from dra_driver.discovery import demo_spec, open_backend
from dra_driver.discovery.core.control import ToolPaths, control_of
from dra_driver.discovery.core.partition_control import PartitionsOnly
from dra_driver.errors import ConfigurationError, PrepareError

CODE = (EXAMPLE / "acme_driver.py").read_text()
PAGE = (PROJECT / "docs" / "sdk.md").read_text()


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in install_example(tmp_path / "site"):
        monkeypatch.syspath_prepend(place)


def test_the_example_finds_its_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = acme_machine(tmp_path / "machine")
    assert main.main(["devices", "--backend", "acme", "--sysfs-root", f"{root}/sys", "--output", "json"]) == 0
    first, _ = json.loads(capsys.readouterr().out)["devices"]
    assert first["name"] == "npu-0000-3b-00-0"
    assert first["attributes"]["tops"] == {"int": 400}
    assert first["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:3a"}
    assert first["capacity"]["memory"] == {"value": "16Gi"}
    assert main.main(["devices", "--backend", "acme=x", "--sysfs-root", f"{root}/sys"]) == 2
    assert main.main(["devices", "--backend", "acme", "--sysfs-root", f"{tmp_path}/none"]) == 1


def test_the_example_does_all_that_the_sdk_knows(tmp_path: Path) -> None:
    roots = {"sysfs_root": tmp_path / "none", "dev_root": tmp_path / "none"}
    backend = open_backend(demo_spec("acme", tmp_path), **roots, node_name="node1")
    for protocol in (
        sdk.ClaimPreparation, sdk.HealthSource, sdk.HotplugSource, sdk.MetricsSource, sdk.PartitionMaker,
        sdk.Simulation, sdk.TelemetrySource,
    ):  # fmt: skip
        assert isinstance(backend, protocol), protocol
    npu = backend.discover()[0]
    assert [p.name for p in partition_devices(npu.device)] == ["npu0-slice-half-0", "npu0-slice-half-1"]
    # Its partitions are made by the engine that makes those of GPUs.
    control = control_of(backend, ToolPaths())
    assert control is not None
    assert control.has(npu.uuid)
    assert not control.has("other")
    made = control.create_instance(npu.uuid, 1, 1, 1)
    assert (made.start, made.uuid) == (1, f"{npu.uuid}-1")
    assert control.create_instance(npu.uuid, 1, 1, 1) == made
    assert list(control.instances(npu.uuid)) == [made]
    control.destroy_instance(npu.uuid, made.instance_id)
    control.destroy_instance(npu.uuid, made.instance_id)
    assert list(control.instances(npu.uuid)) == []
    with pytest.raises(PrepareError, match="has no time slices"):
        control.set_time_slice(npu.uuid, "Long")
    assert isinstance(backend, sdk.TelemetrySource)
    assert [s.temperature for s in backend.sample()] == [41, 41]
    assert isinstance(backend, sdk.MetricsSource)
    assert {m.name for m in backend.metrics()} == {"retrained_links"}
    assert isinstance(backend, sdk.HealthSource)
    (tmp_path / "node1/class/acme/npu1/state").write_text("overheated\n")
    (event,) = backend.wait_for_events(5)
    assert (event.uuid, event.reason, event.severity) == ("node1-1", "NpuFault", "failed")
    assert [d.device.health[0].reason for d in backend.discover() if d.device.health] == ["NpuFault"]


def test_a_partition_that_the_device_keeps_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = {"sysfs_root": tmp_path / "none", "dev_root": tmp_path / "none"}
    backend = open_backend(demo_spec("acme", tmp_path), **roots, node_name="node1")
    control = control_of(backend, ToolPaths())
    assert control is not None
    made = control.create_instance("node1-0", 1, 0, 1)

    def full(path: object, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "unlink", full)
        with pytest.raises(PrepareError, match=r"device node1-0: OSError: .*No space left"):
            control.destroy_instance("node1-0", made.instance_id)
    assert list(control.instances("node1-0")) == [made]
    control.destroy_instance("node1-0", made.instance_id)
    assert list(control.instances("node1-0")) == []


def test_a_maker_that_destroys_nothing_is_found_out() -> None:
    kept = sdk.Partition(4, 1, 0, 1, uuid="x")

    class Careless:
        vendor = "acme"
        there: Sequence[sdk.Partition] | None = [kept]

        def partitions(self, uuid: str) -> Sequence[sdk.Partition] | None:
            return self.there

        def create_partition(self, uuid: str, profile_id: int, start: int, size: int) -> sdk.Partition:
            return kept

        def destroy_partition(self, uuid: str, instance_id: int) -> None:
            """Report success, whatever has become of it."""

    maker = Careless()
    control = PartitionsOnly(maker)
    with pytest.raises(PrepareError, match="device S0: partition 4 is still there") as raised:
        control.destroy_instance("S0", 4)
    assert raised.value.retryable
    control.destroy_instance("S0", 5)
    maker.there = None
    control.destroy_instance("S0", 4)


_IN_THREADS = """
import sys, threading
from msgspec import defstruct
from dra_driver import sdk
from dra_driver.api.own.kinds import decode_kind, kinds_by_name, kinds_by_name
from dra_driver.discovery.core.bus import pci_products
from dra_driver.discovery.core.third_parties import rebuilt

sys.setswitchinterval(1e-6)

def at_once(work):
    start = threading.Barrier(4)
    def run():
        start.wait()
        work()
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def parameters():
    parts = [defstruct(f"Part{i}", [(f"f{j}", int, 0) for j in range(6)]) for i in range(8)]
    whole = defstruct("Whole", [(f"p{i}", part | None, None) for i, part in enumerate(parts)])
    fields = {"API_VERSION": "acme.example/v1", "__annotations__": {"part": whole | None}, "part": None}
    kind = type("NpuConfig", (sdk.Parameters,), fields, frozen=True)
    kinds_by_name([kind])
    return lambda: decode_kind(kind, b'{"part": {"p0": {"f1": 2}}}')

at_once(lambda: rebuilt(sdk.DiscoveredDevice, sdk.DiscoveredDevice(sdk.describe_device("x", {}), uuid="u")))
at_once(lambda: pci_products.intel_product(0))
for _ in range(10):
    at_once(parameters())
"""


@pytest.mark.slow
def test_what_comes_first_may_be_decoded_in_several_threads_at_once() -> None:
    """The process ended with a segmentation fault: msgspec knew a class by half."""
    subprocess.run([sys.executable, "-c", _IN_THREADS], check=True, timeout=60)


def test_kinds_that_cannot_be_decoded_are_refused_at_the_start() -> None:
    fields = {"API_VERSION": "acme.example/v1", "__annotations__": {"both": int | sdk.Parameters | dict}}
    kind = type("NpuConfig", (sdk.Parameters,), fields, frozen=True)
    with pytest.raises(ConfigurationError, match="NpuConfig: cannot be decoded: TypeError"):
        kinds_by_name([kind])


def test_an_argument_for_demos_is_asked_for_where_none_is_given(tmp_path: Path) -> None:
    assert demo_spec("acme", tmp_path) == f"acme={tmp_path}"
    assert demo_spec("acme=/x", tmp_path) == "acme=/x"
    assert demo_spec("nvml", tmp_path) == "nvml"
    with pytest.raises(ConfigurationError, match="'nope' is unknown; allowed are"):
        open_backend("nope", sysfs_root=tmp_path, dev_root=tmp_path, node_name="n")


def test_the_example_uses_the_stable_part_alone() -> None:
    imports = set(re.findall(r"^(?:from|import) (dra_driver[\w.]*|msgspec|kubelet_plugin[\w.]*)", CODE, re.M))
    assert imports == {"dra_driver"}
    assert "from dra_driver import sdk\n" in CODE
    assert set(re.findall(r"sdk\.(\w+)", CODE)) <= set(sdk.__all__)


def test_the_page_shows_what_the_example_does() -> None:
    """Piece by piece, at whatever indentation and however the lines are broken."""

    def flat(code: str) -> str:
        return re.sub(r",(?=[)\]}])", "", re.sub(r"\s+", "", code))

    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        for part in re.split(r"^ *# …\n", block, flags=re.MULTILINE):
            assert flat(part) in flat(CODE), part


def test_the_stable_part_is_all_there() -> None:
    for name in nonempty(sdk.__all__):
        assert hasattr(sdk, name)


def test_own_facts_may_not_bend_the_schema() -> None:
    notes: list[sdk.Problem] = []
    device = sdk.describe_device(
        "x", {"vendor": "acme"}, own={"tops": 4, "long": "x" * 80, "none": None}, note=notes
    )
    assert set(device.attributes) == {"vendor", "tops"}
    assert [n.subject for n in notes] == ["long"]
    with pytest.raises(KeyError, match="in the schema"):
        sdk.describe_device("x", {}, own={"model": 7})
    with pytest.raises(KeyError, match="not in the schema"):
        sdk.partition_profile("x", 1, (0,), 1, {"tops": 4})


class Checked(sdk.Parameters, frozen=True):
    API_VERSION: ClassVar[str] = "acme.example/v1"

    low: int = 0
    high: int = 9

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ('{"low": 3, "high": 2}', "Checked: low is above high"),
        ('{"low": "3"}', "Checked: low: expected int, got str"),
        ("[]", "expected an object"),
        ("{", "not JSON"),
        ("[" * 100_000, "at most 10240 are read"),
    ],
)
def test_parameters_are_read_strictly(text: str, finding: str) -> None:
    with pytest.raises(sdk.InvalidParameters) as caught:
        decode_kind(Checked, text.encode())
    assert finding in str(caught.value)
