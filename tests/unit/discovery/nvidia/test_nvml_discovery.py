"""The backend ``nvml`` through the real pynvml and ctypes, against a library without hardware."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nvml_stub_support as stub
import pytest

from dra_driver.api import codec
from dra_driver.discovery import open_backend
from dra_driver.discovery.nvidia.products import products
from dra_driver.discovery.simulated.profile import load

PCI_ID = "resource.kubernetes.io/pciBusID"
IDENTITY = ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub.shared(tmp_path_factory)


@pytest.fixture(scope="module")
def probe(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[stub.Probe]:
    process = stub.Probe(library, tmp_path_factory.mktemp("probe"))
    yield process
    process.stop()


def dgx_a100(fail: dict[int, dict[str, int]] | None = None) -> list[stub.Gpu]:
    buses = ("07", "0F", "47", "4E", "87", "90", "B7", "BD")
    links = [f"nvlink {n} 1 2 0000000{n // 3}:C4:00.0" for n in range(12)]
    return [
        stub.Gpu("A100-40", f"00000000:{bus}:00.0", 7 - i, f"GPU-{i}", links, (fail or {}).get(i, {}))
        for i, bus in enumerate(buses)
    ]


def t4(**fail: int) -> stub.Gpu:
    return stub.Gpu("T4", "00000000:00:1E.0", 0, "GPU-t4", fail=fail)


def attribute(device: dict[str, Any], name: str) -> object:
    value = device["attributes"].get(name)
    return None if value is None else next(iter(value.values()))


def test_a_dgx_a100_is_what_the_simulated_one_is(probe: stub.Probe, tmp_path: Path) -> None:
    """Both backends agree on every name, type and value but identity, and NVML's own order."""
    functions = [device.function for device in load("dgx-a100-40").devices]
    places = {str(f.address): (str(f.root), f.numa_node or 0) for f in functions}
    probe.open(stub.config(dgx_a100()), sysfs=stub.fake_sysfs(tmp_path, places))
    answer = probe.discover()
    backend = open_backend("simulated=dgx-a100-40", sysfs_root=tmp_path, dev_root=tmp_path, node_name="n")
    simulated = [json.loads(codec.encode(d.device)) for d in backend.discover()]
    assert len(answer["devices"]) == 8
    for real, expected in zip(answer["devices"], simulated, strict=True):
        uuid = real["identity"]
        for key in ("identity", "nodes", "env"):
            del real[key]
        text = json.dumps(expected).replace(expected["attributes"]["uuid"]["string"], uuid)
        assert real == json.loads(text)


def test_device_nodes_follow_the_minor_number_not_the_index(probe: stub.Probe, tmp_path: Path) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia7"):
        (tmp_path / name).touch()
    probe.open(stub.config(dgx_a100()[:2]), dev=tmp_path)
    answer = probe.discover()
    assert [d["nodes"] for d in answer["devices"]] == [
        ["/dev/nvidia7", "/dev/nvidiactl", "/dev/nvidia-uvm"],
        ["/dev/nvidia6", "/dev/nvidiactl", "/dev/nvidia-uvm"],
    ]
    assert answer["devices"][0]["env"] == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert [p for p in answer["problems"] if "device node" in p] == [
        f"gpu-0000-0f-00-0: device node: {tmp_path}/nvidia6 is not there"
    ]


def test_a_t4_has_no_mig_and_no_links(probe: stub.Probe) -> None:
    probe.open(stub.config([t4()], driver="595.91.07", cuda=13020))
    (device,) = probe.discover()["devices"]
    assert device["name"] == "gpu-0000-00-1e-0"
    assert device["capacity"] == {"memory": {"value": "15Gi"}, "multiprocessors": {"value": "40"}}
    assert device["attributes"] == {
        "type": {"string": "gpu"},
        "vendor": {"string": "nvidia"},
        "uuid": {"string": "GPU-t4"},
        "model": {"string": "T4"},
        "productName": {"string": "Tesla T4"},
        "architecture": {"string": "Turing"},
        PCI_ID: {"string": "0000:00:1e.0"},
        "cudaComputeCapability": {"version": "7.5.0"},
        "driverVersion": {"version": "595.91.7"},
        "cudaDriverVersion": {"version": "13.2.0"},
        "migCapable": {"bool": False},
        "index": {"int": 0},
        "brand": {"string": "Nvidia"},
        "addressingMode": {"string": "HMM"},
        "eccEnabled": {"bool": True},
    }
    assert "partitions" not in device
    assert "links" not in device


# Each call, and what its failure may cost where it has never told anything.
CALLS = {
    "nvmlDeviceGetName": {"productName", "model"},
    "nvmlDeviceGetMemoryInfo": {"memory"},
    "nvmlDeviceGetCudaComputeCapability": {"cudaComputeCapability", "multiprocessors"},
    "nvmlDeviceGetNumGpuCores": {"multiprocessors"},
    "nvmlDeviceGetArchitecture": {"architecture"},
    "nvmlDeviceGetBrand": {"brand"},
    "nvmlDeviceGetAddressingMode": {"addressingMode"},
    "nvmlDeviceGetEccMode": {"eccEnabled"},
    "nvmlDeviceGetVirtualizationMode": set(),
    "nvmlDeviceGetMinorNumber": set(),
    "nvmlDeviceGetNvLinkState": {"nvlinkGroup"},
    "nvmlDeviceGetNvLinkRemoteDeviceType": {"nvlinkGroup"},
    "nvmlDeviceGetGpuFabricInfoV": set(),
    "nvmlDeviceGetMigMode": {"migCapable"},
}


@pytest.mark.parametrize("code", [stub.NOT_SUPPORTED, stub.UNKNOWN])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_costs_only_what_it_would_have_told(
    probe: stub.Probe, call: str, code: int
) -> None:
    probe.open(stub.config(dgx_a100()))
    whole = {attr for d in probe.discover()["devices"][:1] for attr in (*d["attributes"], *d["capacity"])}
    probe.open(stub.config(dgx_a100({0: {call: code}})))
    answer = probe.discover()
    assert len(answer["devices"]) == 8
    first = next(d for d in answer["devices"] if attribute(d, "index") == 0)
    lost = whole - {*first["attributes"], *first["capacity"]}
    if call == "nvmlDeviceGetMigMode" and code == stub.NOT_SUPPORTED:
        # No MIG at all: then there are no partitions whose engines would tell those of the GPU.
        assert attribute(first, "migCapable") is False
        assert "partitions" not in first
    else:
        assert lost == CALLS[call]
    # What is not supported is nothing to report; what fails is.
    named = [p for p in answer["problems"] if "999" in p]
    assert bool(named) == (code == stub.UNKNOWN)


@pytest.mark.parametrize("calls", [("nvmlDeviceGetPciInfo_v3",), ("nvmlDeviceGetUUID",), IDENTITY])
def test_a_gpu_that_never_said_which_it_is_costs_only_itself(
    probe: stub.Probe, calls: tuple[str, ...]
) -> None:
    """Any other name or identity would end with the error, and claims have it by then."""
    probe.open(stub.config(dgx_a100({3: dict.fromkeys(calls, stub.UNKNOWN)})))
    answer = probe.discover()
    assert len(answer["devices"]) == 7
    assert any("GPU: NVML has never reported its PCI address and UUID" in p for p in answer["problems"])
    assert answer["unnamed"]
    assert not probe.discover(stub.config(dgx_a100()))["unnamed"]
    assert len(probe.discover(stub.config(dgx_a100()))["devices"]) == 8


def test_a_gpu_without_device_node_gets_nothing_new(probe: stub.Probe) -> None:
    probe.open(stub.config([t4(nvmlDeviceGetMinorNumber=stub.UNKNOWN)]))
    (device,) = probe.discover()["devices"]
    assert [(h["reason"], h["severity"]) for h in device["health"]] == [("DeviceNodeUnknown", "degraded")]


def test_a_gpu_in_mig_mode_cannot_be_used_as_a_whole(probe: stub.Probe) -> None:
    gpu = dgx_a100()[0]
    gpu.extra = [*gpu.extra, "mig 1"]
    probe.open(stub.config([gpu]))
    (device,) = probe.discover()["devices"]
    assert [h["reason"] for h in device["health"]] == ["MigEnabled"]
    assert len(device["partitions"]) == 7


def test_a_virtual_gpu_is_whole_whatever_is_behind_it(probe: stub.Probe) -> None:
    """A guest sees the MIG mode of its host, and can change nothing about it."""
    guest = stub.Gpu("A100-40", "00000000:00:05.0", 0, "GPU-guest", ["virt 2", "mig 1", "ecc -1"])
    guest.fail = dict.fromkeys(
        ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetTotalEccErrors"), stub.NOT_SUPPORTED
    )
    probe.open(stub.config([guest, t4()]))
    answer = probe.discover()
    device = answer["devices"][0]
    assert attribute(device, "virtualization") == "vgpu"
    assert attribute(device, "migCapable") is False
    assert "eccEnabled" not in device["attributes"]
    assert "partitions" not in device
    assert "health" not in device
    assert [p for p in answer["problems"] if "device node" not in p] == []


def test_a_gpu_that_falls_off_the_bus_stays_with_the_reason(probe: stub.Probe) -> None:
    probe.open(stub.config(dgx_a100()))
    before = probe.discover()["devices"]
    answer = probe.discover(stub.config(dgx_a100({2: {"*": stub.GPU_IS_LOST}})))
    after = answer["devices"]
    assert [d["name"] for d in after] == [d["name"] for d in before]
    assert [[h["reason"] for h in d.get("health", ())] for d in after] == [
        [],
        [],
        ["GpuLost"],
        [],
        [],
        [],
        [],
        [],
    ]
    assert after[2]["identity"] == before[2]["identity"]
    assert any("GPU is lost" in p for p in answer["problems"])
    # It recovers.
    assert all("health" not in d for d in probe.discover(stub.config(dgx_a100()))["devices"])


def test_a_gpu_lost_between_two_calls_stays_with_the_reason(probe: stub.Probe) -> None:
    probe.open(stub.config([t4()]))
    probe.discover()
    (device,) = probe.discover(stub.config([t4(nvmlDeviceGetMemoryInfo=stub.GPU_IS_LOST)]))["devices"]
    assert [h["reason"] for h in device["health"]] == ["GpuLost"]
    assert device["capacity"]["memory"] == {"value": "15Gi"}


def test_a_gpu_lost_from_the_start_is_reported_and_left_out(probe: stub.Probe) -> None:
    probe.open(stub.config(dgx_a100({0: {"nvmlDeviceGetHandleByIndex_v2": stub.GPU_IS_LOST}})))
    answer = probe.discover()
    assert len(answer["devices"]) == 7
    assert answer["problems"][0] == "GPU 0: GPU: GPU is lost (NVML error 15)"


def test_a_gpu_that_is_taken_out_is_gone(probe: stub.Probe) -> None:
    probe.open(stub.config(dgx_a100()))
    assert len(probe.discover()["devices"]) == 8
    assert len(probe.discover(stub.config(dgx_a100()[:6]))["devices"]) == 6


def test_no_gpu_is_an_empty_list(probe: stub.Probe) -> None:
    probe.open(stub.config([]))
    assert probe.discover()["devices"] == []


def test_more_gpus_than_plausible_are_refused(probe: stub.Probe) -> None:
    probe.open(stub.config([t4()], system=["count_override 100000"]))
    answer = probe.discover()
    assert (answer["error"], "100000 GPUs are not plausible" in answer["text"]) == ("DiscoveryError", True)


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        (9, "HardwareAbsent", "kernel driver is not loaded"),
        (18, "DiscoveryError", "of different versions"),
        (999, "DiscoveryError", "cannot be initialized"),
    ],
)
def test_a_library_that_cannot_be_opened_says_why(
    probe: stub.Probe, code: int, error: str, text: str
) -> None:
    probe.open(stub.config([t4()], system=[f"fail nvmlInitWithFlags {code}"]))
    answer = probe.discover()
    assert answer["error"] == error
    assert text in answer["text"]


def test_handles_are_released_and_taken_again(probe: stub.Probe) -> None:
    probe.open(stub.config([t4()]))
    first = probe.discover()["devices"]
    probe.close_library()
    assert probe.discover()["devices"] == first
    # While closed, another driver was loaded.
    probe.close_library()
    assert probe.discover(stub.config([t4()], driver="600.1"))["devices"][0]["attributes"][
        "driverVersion"
    ] == {"version": "600.1.0"}


def test_a_driver_reloaded_under_an_open_library_is_opened_again(probe: stub.Probe) -> None:
    """The count fails while the stale library is open; opening it anew helps, or says why it does not."""
    probe.open(stub.config([t4()]))
    probe.discover()
    answer = probe.discover(
        stub.config([t4()], system=["fail nvmlDeviceGetCount_v2 999", "fail nvmlInitWithFlags 9"])
    )
    assert answer["error"] == "HardwareAbsent"
    assert len(probe.discover(stub.config([t4()]))["devices"]) == 1


def test_nvlink_between_pairs_makes_groups(probe: stub.Probe) -> None:
    def gpu(bus: str, i: int, *links: str) -> stub.Gpu:
        return stub.Gpu("A100-40", f"00000000:{bus}:00.0", i, f"GPU-{i}", links)

    gpus = [
        gpu(
            "01",
            0,
            "nvlink 0 1 0 00000000:02:00.0",
            "nvlink 1 1 0 00000000:02:00.0",
            "nvlink 2 0 0 00000000:03:00.0",
        ),
        gpu("02", 1, "nvlink 0 1 0 00000000:01:00.0", "nvlink 1 1 0 00000000:01:00.0"),
        gpu("03", 2, "nvlink 0 1 0 00000000:99:00.0"),
    ]
    probe.open(stub.config(gpus))
    devices = probe.discover()["devices"]
    assert [attribute(d, "nvlinkGroup") for d in devices] == ["gpu-0000-01-00-0", "gpu-0000-01-00-0", None]
    assert devices[0]["links"] == [{"peer": "gpu-0000-02-00-0", "type": "nvlink", "count": 2}]
    assert "links" not in devices[2]


@pytest.mark.parametrize(
    ("fabric", "clique"),
    [
        ("3 0 2 00000001000000000000000000000001", "00000001-0000-0000-0000-000000000001.2"),
        ("3 0 0 00000000000000000000000000000000", None),  # an HGX board: completed, no cluster
        ("2 0 2 00000001000000000000000000000001", None),
        ("3 9 2 00000001000000000000000000000001", None),
    ],
)
def test_the_fabric_clique_needs_a_completed_cluster(
    probe: stub.Probe, fabric: str, clique: str | None
) -> None:
    probe.open(stub.config([stub.Gpu("GB200", "00000009:01:00.0", 0, "GPU-0", [f"fabric {fabric}"])]))
    (device,) = probe.discover()["devices"]
    assert attribute(device, "fabricClique") == clique
    assert device["name"] == "gpu-0009-01-00-0"


@pytest.mark.parametrize("product", ["A30", "A100-80", "H100-80", "H100-94", "H200"])
@pytest.mark.parametrize("mig_names", [True, False])
def test_mig_profiles_have_nvidias_names_even_where_nvml_tells_none(
    probe: stub.Probe, product: str, mig_names: bool
) -> None:
    probe.open(stub.config([stub.Gpu(product, "00000000:01:00.0", 0, "GPU-0", mig_names=mig_names)]))
    (device,) = probe.discover()["devices"]
    expected = products()[product].mig_profiles
    assert [(p["name"], p.get("profileId", 0)) for p in device["partitions"]] == [
        (m.name, m.id) for m in expected
    ]


def test_a_mig_profile_that_fails_costs_only_itself(probe: stub.Probe) -> None:
    gpu = dgx_a100()[0]
    gpu.extra = [
        *gpu.extra,
        "profile 10 50 1 4 9856 14 1 1 0 1 1 2 0,2 MIG 1g.10gb+gfx",
        "profile 11 51 2 1 1 1 1 1 0 0 0 0 0",
    ]
    probe.open(stub.config([gpu]))
    answer = probe.discover()
    assert "1g.10gb+gfx" in [p["name"] for p in answer["devices"][0]["partitions"]]
    assert len(answer["devices"][0]["partitions"]) == 8
    probe.open(stub.config(dgx_a100({0: {"nvmlDeviceGetGpuInstancePossiblePlacements_v2": 999}})))
    answer = probe.discover()
    assert "partitions" not in answer["devices"][0]
    assert len(answer["devices"][1]["partitions"]) == 7
    assert sum("placements of" in p for p in answer["problems"]) == 7


def test_an_older_driver_tells_less_and_is_no_problem(probe: stub.Probe) -> None:
    unknown = dict.fromkeys(
        ("nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetAddressingMode", "nvmlDeviceGetNumGpuCores"),
        13,
    )
    other_form = {"nvmlDeviceGetGpuFabricInfoV": 25}
    probe.open(stub.config(dgx_a100({0: {**unknown, **other_form}})[:1]))
    answer = probe.discover()
    (device,) = answer["devices"]
    assert [p["name"] for p in device["partitions"]] == [m.name for m in products()["A100-40"].mig_profiles]
    assert "addressingMode" not in device["attributes"]
    assert [p for p in answer["problems"] if "device node" not in p] == []


def test_hostile_texts_are_left_out_not_published(probe: stub.Probe) -> None:
    gpu = t4()
    gpu.extra = ["name " + "x" * 90, "uuid GPU-" + "y" * 80]
    probe.open(stub.config([gpu]))
    answer = probe.discover()
    (device,) = answer["devices"]
    assert {"productName", "uuid"}.isdisjoint(device["attributes"])
    assert len(device["name"]) <= 63
    assert any("longer than 64 bytes" in p for p in answer["problems"])
    gpu.extra = ["bus garbage"]
    probe.open(stub.config([gpu]))
    assert probe.discover()["devices"] == []


def test_bytes_that_are_no_text_cost_the_attribute(probe: stub.Probe) -> None:
    probe.open("")
    probe.config.write_bytes(stub.config([t4()]).encode() + b"name \xff\xfe\n")
    answer = probe.discover()
    assert "productName" not in answer["devices"][0]["attributes"]
    assert any("bytes that are no text" in p for p in answer["problems"])


def test_two_gpus_at_one_address_are_one_and_a_problem(probe: stub.Probe) -> None:
    other = t4()
    other.uuid = "GPU-other"
    probe.open(stub.config([t4(), other]))
    answer = probe.discover()
    assert len(answer["devices"]) == 1
    assert "GPU 1: GPU: left out: GPU 0 has the same address" in answer["problems"]
    probe.open(stub.config([t4(), t4()]))
    answer = probe.discover()
    assert len(answer["devices"]) == 1
    assert "gpu-0000-00-1e-0: uuid: left out: another GPU has the same" in answer["problems"]


def test_the_work_grows_with_the_gpus(probe: stub.Probe) -> None:
    links = [f"nvlink {n} 1 2 00000000:C4:00.0" for n in range(18)]
    gpus = [stub.Gpu("H200", f"00000000:{16 + i:02X}:00.0", i, f"GPU-{i}", links) for i in range(16)]

    def work(number: int) -> int:
        probe.open(stub.config(gpus[:number]))
        probe.discover()
        return probe.calls()

    assert work(16) < 5 * work(4)


def devices_command(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dra_driver.cli.main", "devices", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_prints_what_nvml_finds(library: Path, tmp_path: Path) -> None:
    (tmp_path / "nvml.conf").write_text(stub.config([t4()]))
    env = {"LD_LIBRARY_PATH": str(library), "NVML_STUB_CONFIG": str(tmp_path / "nvml.conf")}
    done = devices_command(
        env, "--output", "json", "--sysfs-root", str(tmp_path), "--dev-root", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    (device,) = json.loads(done.stdout)["devices"]
    assert device["name"] == "gpu-0000-00-1e-0"
    assert "device node" in done.stderr


@pytest.mark.long
@pytest.mark.long
def test_the_command_prints_what_answers_beside_a_gpu_that_hangs(library: Path, tmp_path: Path) -> None:
    (tmp_path / "nvml.conf").write_text(stub.config(dgx_a100()[:2]))
    (tmp_path / "hang").write_text("* GPU-1\n")
    environment = {
        "LD_LIBRARY_PATH": str(library),
        "NVML_STUB_CONFIG": str(tmp_path / "nvml.conf"),
        "NVML_STUB_HANG": str(tmp_path / "hang"),
    }
    done = devices_command(environment, "--backend=nvml", "--output=json")
    answer = json.loads(done.stdout)
    assert [d["name"] for d in answer["devices"]] == ["gpu-0000-07-00-0"]
    assert any(p["device"] == "GPU 1" and "has not ended" in p["message"] for p in answer["problems"])


def test_on_a_bare_machine_the_command_says_what_it_looked_for(tmp_path: Path) -> None:
    # An empty file takes the place of a library that the machine of the test may have.
    (tmp_path / "libnvidia-ml.so.1").touch()
    env = {"LD_LIBRARY_PATH": str(tmp_path)}
    done = devices_command(env, "--sysfs-root", str(tmp_path / "sys"), "--dev-root", str(tmp_path / "dev"))
    assert done.returncode == 0, done.stderr
    assert "No devices were found. Looked for:" in done.stdout
    assert "nvml: libnvidia-ml.so.1 cannot be loaded" in done.stdout
    assert f"{tmp_path}/sys/bus/pci/devices: No such file or directory" in done.stdout
    assert f"{tmp_path}/dev/nvidiactl: not there" in done.stdout
    done = devices_command(env, "--output", "json")
    assert json.loads(done.stdout) == {"devices": []}
    assert "nvml" in done.stderr
    # Asked for by name, its absence is a failure.
    done = devices_command(env, "--backend", "nvml")
    assert done.returncode == 1
    assert "cannot be loaded" in done.stderr


@pytest.mark.long
def test_the_stub_compiles_without_a_compiler_of_the_machine(tmp_path: Path) -> None:
    """The one that the dev extra brings is the fallback, and must not rot."""
    pytest.importorskip("ziglang", reason="not made for this architecture")
    stub.build(tmp_path, [sys.executable, "-m", "ziglang", "cc"])
    assert (tmp_path / "libnvidia-ml.so.1").stat().st_size > 0
