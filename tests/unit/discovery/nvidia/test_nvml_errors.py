"""An error of NVML belongs to the GPU that was asked about: every call of the backend, every return code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nvml_stub_support as stub
import pynvml
import pytest
from paths import PROJECT

LOST = 15
CODES = sorted(value for name, value in vars(pynvml).items() if re.match(r"NVML_ERROR_[A-Z]", name))
HEALTHY, FAILING = "GPU-11111111-aaaa", "GPU-22222222-bbbb"
HERE, THERE = "gpu-0000-07-00-0", "gpu-0000-08-00-0"

# Asked about one GPU, as the library's symbols are called.
OF_DISCOVERY = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetName",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
)
OF_SAMPLES = (
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
)
OF_CHANGES = (
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceSetComputeMode",
    "nvmlDeviceSetMigMode",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
CALLS = (*OF_DISCOVERY, *OF_SAMPLES, *OF_CHANGES)
# About no GPU.
OF_ALL = {
    "nvmlDeviceGetCount",
    "nvmlEventSetCreate",
    "nvmlEventSetFree",
    "nvmlEventSetWait",
    "nvmlInitWithFlags",
    "nvmlLib",
    "nvmlMemory",
    "nvmlShutdown",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetDriverVersion",
}


def test_every_call_of_the_backend_is_tried() -> None:
    """Nor is a GPU looked for by its UUID: NVIDIA's library asks other GPUs for that."""
    source = PROJECT / "dra_driver/discovery/nvidia"
    used = {n for f in source.rglob("*.py") for n in re.findall(r"pynvml\.(nvml\w+)", f.read_text())}
    assert {re.sub(r"(_v[0-9]|V)$", "", n) for n in used} - OF_ALL == {
        re.sub(r"(_v[0-9]|V)$", "", n) for n in CALLS
    }


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub.shared(tmp_path_factory)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("probe")
    minors = made / "proc/driver/nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True)
    numbers = ((gpu, gi, 3 + 135 * gpu + 9 * gi) for gpu in range(2) for gi in range(15))
    lines = [f"gpu{gpu}/gi{gi}/access {n}\ngpu{gpu}/gi{gi}/ci0/access {n + 1}\n" for gpu, gi, n in numbers]
    minors.write_text("".join(lines))
    return made


@pytest.fixture(scope="module")
def probe(library: Path, folder: Path) -> Iterator[stub.Probe]:
    process = stub.Probe(library, folder)
    yield process
    process.stop()


def machine(*lines: str, system: tuple[str, ...] = ()) -> str:
    """Two GPUs with a bridge between them; the second one has more lines."""
    told = [
        *("supported_events 0xFFFF", "utilization 30 1", "temperature 40", "power 1000", "used 1024"),
        *("remapped 0 0 1 0", "uncorrected 2", "recovery 2", f"fabric 3 0 7 {'ab' * 16}"),
    ]
    gpus = [
        stub.Gpu("H100-80", "00000000:07:00.0", 0, HEALTHY, [*told, "nvlink 0 1 0 00000000:08:00.0"]),
        stub.Gpu("H100-80", "00000000:08:00.0", 1, FAILING, [*told, "nvlink 0 1 0 00000000:07:00.0", *lines]),
    ]
    return stub.config(gpus, system=system)


# Each call with each code; without the long tests the calls that say which GPU or instance it is, with codes
# that are taken for facts most easily.
DECISIVE = (
    *OF_DISCOVERY[:4],
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "nvmlDeviceGetHandleByUUID",
)
SHORT = [pytest.param(call, (3, 6, LOST, 999), id=call) for call in DECISIVE]
MATRIX = SHORT + [
    pytest.param(call, tuple(CODES), marks=pytest.mark.long, id=f"{call}-all")
    for call in (*CALLS, "nvmlDeviceGetHandleByUUID")
]


def others(answer: dict[str, Any]) -> list[Any]:
    return [d for d in answer["devices"] if d["identity"] == HEALTHY]


# Conditions that only an error makes.
OF_ERRORS = {"DeviceNodeUnknown", "GpuLost", "IdentityUnconfirmed", "NotAnswering"}


def lasting(devices: list[Any]) -> list[Any]:
    """Devices without when their conditions began."""
    return [
        d | {"health": [{n: v for n, v in h.items() if n != "since"} for h in d.get("health", ())]}
        for d in devices
    ]


@pytest.mark.parametrize(("call", "codes"), [*MATRIX, pytest.param("*", (3, LOST, 999), id="*")])
def test_an_error_about_one_gpu_changes_no_other_and_no_identity(
    probe: stub.Probe, call: str, codes: tuple[int, ...]
) -> None:
    probe.open(machine())
    before = probe.discover()
    assert len(before["devices"]) == 2
    probe.wait(seconds=0)
    for code in codes:
        answer = probe.discover(machine(f"fail {call} {code}"))
        assert others(answer) == others(before), code
        assert [(d["name"], d["identity"]) for d in answer["devices"]] == [
            (HERE, HEALTHY),
            (THERE, FAILING),
        ], code
        for problem in answer["problems"]:
            assert HERE not in problem or "device node" in problem, problem
        first, second = ({s["device"]: s for s in probe.sample()}[name] for name in (HERE, THERE))
        assert (first["temperature"], first["power"]) == (40.0, 1.0)
        assert second["device"] == THERE
        # What was told before stays: of facts, and of health.
        (failing,) = (d for d in answer["devices"] if d["identity"] == FAILING)
        (known,) = (d for d in before["devices"] if d["identity"] == FAILING)
        for part in ("attributes", "capacity", "partitions", "links", "nodes", "env"):
            assert failing[part] == known[part], (code, part)
        if code not in (3, 13, 25, 26):  # of health, what is not supported is an answer
            now = {h["reason"] for h in failing["health"]}
            assert now - OF_ERRORS == {h["reason"] for h in known["health"]}, code
        probe.discover(machine())
    after = probe.discover(machine())
    assert lasting(after["devices"]) == lasting(before["devices"])


@pytest.mark.parametrize("call", ["nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"])
def test_an_error_about_the_driver_changes_no_gpu(probe: stub.Probe, call: str) -> None:
    probe.open(machine())
    before = probe.discover()["devices"]
    for code in CODES:
        assert probe.discover(machine(system=(f"fail {call} {code}",)))["devices"] == before


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3"])
def test_a_gpu_that_does_not_say_which_it_is_gets_nothing_new(probe: stub.Probe, call: str) -> None:
    probe.open(machine())
    probe.discover()
    for _ in range(2):
        answer = probe.discover(machine(f"fail {call} 999"))
        (conditions,) = (d["health"] for d in answer["devices"] if d["identity"] == FAILING)
        assert [h["severity"] for h in conditions if h["reason"] == "IdentityUnconfirmed"] == ["degraded"]


def test_a_device_node_is_kept_only_while_the_gpu_is_in_the_same_mode(probe: stub.Probe) -> None:
    """A switch of MIG mode may number the nodes anew: the number from before could be another GPU's."""

    def nodes(answer: dict[str, Any]) -> list[str]:
        (device,) = (d for d in answer["devices"] if d["identity"] == FAILING)
        return [n for n in device["nodes"] if n.startswith("/dev/nvidia") and n[-1].isdigit()]

    probe.open(machine())
    probe.discover()
    assert nodes(probe.discover(machine("fail nvmlDeviceGetMinorNumber 999"))) == ["/dev/nvidia1"]
    assert nodes(probe.discover(machine("fail nvmlDeviceGetMinorNumber 999", "mig 1"))) == []
    assert nodes(probe.discover(machine("mig 1"))) == ["/dev/nvidia1"]


def test_an_address_that_is_no_text_is_told_by_its_numbers(probe: stub.Probe) -> None:
    odd = stub.Gpu("T4", "00000000:0B:00.Z", 0, FAILING, ["supported_events 0xFFFF"])
    probe.open(stub.config([odd]))
    (device,) = probe.discover()["devices"]
    assert device["name"] == "gpu-0000-0b-00-0"
    assert "health" not in device


def test_another_gpu_at_the_same_place_is_another_gpu(probe: stub.Probe) -> None:
    """An answer, and no error."""
    probe.open(machine())
    probe.discover()
    answer = probe.discover(machine().replace(FAILING, "GPU-33333333-cccc"))
    assert [d["identity"] for d in answer["devices"]] == [HEALTHY, "GPU-33333333-cccc"]


def test_a_gpu_is_gone_only_where_each_one_says_which_it_is(probe: stub.Probe) -> None:
    first, second = machine().split("gpu\n")[1:]
    head = machine().split("gpu\n")[0]
    probe.open(machine())
    probe.discover()
    answer = probe.discover(f"{head}gpu\n{second}fail * 999\n")  # one is counted, and it does not say which
    assert [d["identity"] for d in answer["devices"]] == [HEALTHY, FAILING]
    assert all("NotAnswering" in {h["reason"] for h in d["health"]} for d in answer["devices"])
    answer = probe.discover(f"{head}gpu\n{first}")
    assert [d["identity"] for d in answer["devices"]] == [HEALTHY]


def test_a_guest_is_no_host_because_a_call_fails(probe: stub.Probe) -> None:
    guest = stub.Gpu("A100-40", "00000000:00:05.0", 0, "GPU-guest", ["virt 2", "mig 1"])
    probe.open(stub.config([guest]))
    before = probe.discover()["devices"]
    guest.fail = {"nvmlDeviceGetVirtualizationMode": 999}
    assert probe.discover(stub.config([guest]))["devices"] == before


# --- changes ------------------------------------------------------------------------------------------------


def instances(probe: stub.Probe, gpu: str) -> list[int]:
    answer = probe.control("instances", gpu)
    assert "answer" in answer, answer
    found: list[int] = answer["answer"]
    return found


@pytest.mark.parametrize(("call", "codes"), MATRIX)
def test_an_error_about_one_gpu_is_no_fact_about_an_instance(
    probe: stub.Probe, call: str, codes: tuple[int, ...]
) -> None:
    """Whoever is told that there is no GPU or no instance forgets the claim that has it."""
    probe.open(machine("mig 1").replace("gpu\nbus 00000000:07", "gpu\nmig 1\nbus 00000000:07"))
    probe.discover()
    for gpu in (HEALTHY, FAILING):
        probe.control("set_partitioning", gpu, True)
        assert "answer" in probe.control("create_instance", gpu, 9, 4, 4)
    assert (mine := instances(probe, HEALTHY)) == [1]
    for code in codes:
        probe.config.write_text(_failing(call, code))
        probe.discover()
        assert probe.control("has", HEALTHY) == {"answer": "True"}
        assert instances(probe, HEALTHY) == mine
        there = probe.control("has", FAILING)
        assert there == {"answer": "True"} or (there["retryable"] and FAILING in there["error"]), code
        listed = probe.control("instances", FAILING)
        assert listed == {"answer": [1]} or FAILING in listed["error"], code
        made = probe.control("create_instance", FAILING, 9, 4, 4)
        assert "answer" in made or FAILING in made["error"], code
        probe.control("create_instance", HEALTHY, 19, 0, 1)
        assert len(instances(probe, HEALTHY)) == 2
        probe.control("destroy_instance", HEALTHY, 11)
        gone = probe.control("destroy_instance", FAILING, 1)
        probe.config.write_text(_failing(call, None))
        probe.discover()
        left = instances(probe, FAILING)
        assert ("answer" in gone) == (left == []), (code, gone)
        assert "answer" in gone or FAILING in gone["error"], code
        assert "answer" in probe.control("create_instance", FAILING, 9, 4, 4)
    for gpu in (HEALTHY, FAILING):
        probe.control("destroy_instance", gpu, 1)
        assert instances(probe, gpu) == []


def _failing(call: str, code: int | None) -> str:
    text = machine("mig 1", *([] if code is None else [f"fail {call} {code}"]))
    return text.replace("gpu\nbus 00000000:07", "gpu\nmig 1\nbus 00000000:07")


def test_a_gpu_is_lost_only_if_it_says_so_in_both_ways(probe: stub.Probe) -> None:
    probe.open(machine())
    probe.discover()
    one, both = "fail nvmlDeviceGetHandleByPciBusId_v2 15", "fail nvmlDeviceGetHandleByIndex_v2 15"
    for lines in ([one], [both]):
        probe.discover(machine(*lines))
        assert probe.control("has", FAILING) == {"answer": "True"}
    for lines in ([one, both.replace("15", "999")], [one.replace("15", "999"), both]):
        probe.discover(machine(*lines))
        assert probe.control("has", FAILING)["retryable"]
    probe.discover(machine(one, both))
    assert probe.control("has", FAILING) == {"answer": "False"}
    assert probe.control("has", HEALTHY) == {"answer": "True"}


def test_a_gpu_of_which_nothing_is_known_is_absent_only_if_all_answer(probe: stub.Probe) -> None:
    """After a restart, before the first look."""
    probe.open(machine())
    assert probe.control("has", FAILING) == {"answer": "True"}
    probe.open(machine())
    assert probe.control("has", "GPU-99999999-none") == {"answer": "False"}
    probe.open(machine("fail nvmlDeviceGetUUID 999"))
    unknown = probe.control("has", FAILING)
    assert unknown["retryable"]
    assert FAILING in unknown["error"]
    assert "GPU 1" in unknown["error"]
    assert probe.control("has", HEALTHY) == {"answer": "True"}
