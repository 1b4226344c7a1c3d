"""Events, polled health and samples of NVIDIA GPUs, against the stub library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import nvml_stub_support as stub
import pytest
from forked import ForkedScript

from dra_driver.discovery.nvidia.health import read_health


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub.shared(tmp_path_factory)


@pytest.fixture
def probe(library: Path, tmp_path: Path) -> Iterator[stub.Probe]:
    made = stub.Probe(library, tmp_path)
    yield made
    made.stop()


def gpus(*extra: str) -> str:
    """Two GPUs; the second one has more lines."""
    return stub.config(
        [
            stub.Gpu("H100-80", "00000000:01:00.0", 0, "GPU-a", ["supported_events 0xFFFF"]),
            stub.Gpu("H100-80", "00000000:02:00.0", 1, "GPU-b", ["supported_events 0xFFFF", *extra]),
        ]
    )


def health(answer: dict[str, object]) -> list[list[str]]:
    return [[h["reason"] for h in d.get("health", ())] for d in answer["devices"]]  # type: ignore[attr-defined]


def test_an_event_wakes_and_makes_a_condition_of_its_gpu(probe: stub.Probe) -> None:
    probe.open(gpus())
    assert probe.wait(seconds=0.1) == []  # the library is not open yet
    assert health(probe.discover()) == [[], []]
    assert probe.wait(seconds=0.1) == []
    ((uuid, reason, severity, message, code),) = probe.wait(gpus("event 1 8 79"))
    assert (uuid, reason, severity, code) == ("GPU-b", "Xid79", "failed", 79)
    assert "fallen off the bus" in message
    assert health(probe.discover()) == [[], ["Xid79"]]


def test_a_burst_comes_in_one_answer(probe: stub.Probe) -> None:
    probe.open(gpus())
    probe.discover()
    events = probe.wait(gpus("event 1 8 48", "event 2 0x2 0", "event 3 8 94", "event 4 8 45", "event 5 8 63"))
    assert [e[4] for e in events] == [48, None, 94, 45, 63]
    assert health(probe.discover())[1] == ["DoubleBitEcc", "Xid48", "Xid45", "Xid94"]


def test_closing_the_library_ends_what_a_reset_ends(probe: stub.Probe) -> None:
    probe.open(gpus())
    probe.discover()
    probe.wait(gpus("event 1 8 79", "event 2 8 31"))
    probe.close_library()
    assert probe.wait(seconds=0.1) == []
    assert health(probe.discover()) == [[], ["Xid31"]]
    # And it watches again.
    assert [e[4] for e in probe.wait(gpus("event 1 8 79", "event 2 8 31", "event 3 8 62"))] == [62]


def test_letting_go_for_a_moment_is_no_reset(probe: stub.Probe) -> None:
    """As for taking another GPU from its driver."""
    probe.open(gpus())
    probe.discover()
    probe.wait(gpus("event 1 8 79"))
    probe.pause()
    assert health(probe.discover()) == [[], ["Xid79"]]
    # And it watches again.
    assert [e[4] for e in probe.wait(gpus("event 1 8 79", "event 2 8 62"))] == [62]


def test_a_gpu_that_the_driver_had_not_for_a_while_was_reset(probe: stub.Probe) -> None:
    """It was bound to another driver, or taken out and put back."""
    probe.open(gpus())
    probe.discover()
    probe.wait(gpus("event 1 8 79"))
    first, _, _ = gpus().rpartition("gpu\n")
    assert health(probe.discover(first)) == [[]]
    assert health(probe.discover(gpus())) == [[], []]


def test_polling_sees_memory_that_waits_for_a_reset(probe: stub.Probe) -> None:
    probe.open(gpus("remapped 0 1 1 0", "uncorrected 2", "recovery 1"))
    assert health(probe.discover())[1] == ["RecoveryAction", "RowRemapPending", "UncorrectedMemoryErrors"]
    assert health(probe.discover(gpus("remapped 0 1 0 0", "uncorrected 0", "recovery 0")))[1] == []
    assert health(probe.discover(gpus("retired_pending 1")))[1] == ["PageRetirementPending"]


def test_a_gpu_that_cannot_be_watched_is_polled(probe: stub.Probe) -> None:
    text = gpus("remapped 0 0 0 1").replace("supported_events 0xFFFF", "supported_events 0")
    probe.open(text)
    assert health(probe.discover())[1] == ["RowRemapFailed"]
    assert probe.wait(seconds=0.1) == []


def test_a_gpu_lost_while_waiting_is_told_and_the_others_are_watched_on(probe: stub.Probe) -> None:
    probe.open(gpus())
    probe.discover()
    probe.config.write_text(gpus().replace("cuda 12080", "cuda 12080\nfail nvmlEventSetWait_v2 15"))
    probe.discover()  # the stub reads its file
    assert [e[1] for e in probe.wait(seconds=0.1)] == ["GpuLost"]
    probe.discover(gpus("fail * 15"))
    assert probe.wait(gpus("fail * 15").replace("0xFFFF", "0xFFFF\nevent 1 8 31", 1))[0][0] == "GPU-a"


_LOST = """
import json, sys, time
from pathlib import Path
import pynvml, structlog
from dra_driver.discovery import open_backend
nowhere = Path("/nonexistent")
backend = open_backend("nvml", sysfs_root=nowhere, dev_root=nowhere, node_name="n")
backend.discover()
events, failing, registered, create = [], sys.argv[1], [], pynvml.nvmlEventSetCreate
pynvml.nvmlEventSetCreate = lambda: registered.append(1) or create()
with structlog.testing.capture_logs() as logs:
    Path(sys.argv[2]).write_text(failing)
    backend.discover()
    logs.clear()
    end, cpu, waits = time.monotonic() + 3.2, time.process_time(), 0
    while time.monotonic() < end:
        events += backend.wait_for_events(1.0)
        waits += 1
    cpu = time.process_time() - cpu
print(json.dumps({"events": [e.reason for e in events], "cpu": cpu, "waits": waits, "logs": logs,
    "registered": len(registered)}))
"""


def test_a_loss_that_lasts_is_told_once_and_costs_no_time(library: Path, tmp_path: Path) -> None:
    """It was told every 1.5 s, with a scan each time: 27 MB of log a day."""
    file = tmp_path / "nvml.conf"
    file.write_text(gpus())
    failing = gpus().replace("cuda 12080", "cuda 12080\nfail nvmlEventSetWait_v2 15")
    environment = {"LD_LIBRARY_PATH": str(library), "NVML_STUB_CONFIG": str(file)}
    process = ForkedScript(_LOST, failing, str(file), environment=environment)
    (answer,) = (json.loads(line) for line in process.finish() if line.startswith("{"))
    # Of all GPUs together, then of each of them.
    assert 1 <= len(answer["events"]) <= 3
    assert set(answer["events"]) == {"GpuLost"}
    said = [(e["event"], e["gpu"]) for e in answer["logs"]]
    assert said == [("waiting for GPU events failed", g) for g in ("GPU-a, GPU-b", "GPU-a", "GPU-b")]
    assert answer["cpu"] < 0.5
    assert answer["waits"] < 20
    # All at once, then each of them: at once, after 1 s, after 2 s more.
    assert answer["registered"] <= 7


def test_events_of_others_come_while_one_gpu_is_lost(probe: stub.Probe) -> None:
    probe.open(gpus())
    probe.discover()
    lost = gpus("fail * 15")
    probe.discover(lost)
    probe.config.write_text(lost.replace("cuda 12080", "cuda 12080\nfail nvmlEventSetWait_v2 15"))
    probe.discover()
    assert {e[1] for e in probe.wait(seconds=1.0)} == {"GpuLost"}
    probe.config.write_text(lost)
    probe.discover()
    assert [e[0] for e in probe.wait(lost.replace("0xFFFF", "0xFFFF\nevent 1 8 31", 1))] == ["GPU-a"]


def test_samples_hold_what_the_gpu_tells(probe: stub.Probe) -> None:
    probe.open(
        gpus("used 1048576", "reserved 644874240", "utilization 37 4", "temperature 61", "power 312500")
    )
    assert probe.sample() == []  # sampling opens nothing
    probe.discover()
    bare, full = probe.sample()
    assert full == {
        "device": "gpu-0000-02-00-0",
        "utilization": 0.37,
        "memory_used": 1048576,
        "memory_total": 85520809984,
        "temperature": 61.0,
        "power": 312.5,
        "errors": {},
    }
    assert (bare["utilization"], bare["temperature"], bare["power"]) == (None, None, None)


def test_what_the_driver_reserves_is_used_where_the_driver_is_too_old_to_tell(probe: stub.Probe) -> None:
    probe.open(gpus("used 1048576", "reserved 2097152", "fail nvmlDeviceGetMemoryInfo_v2 13"))
    probe.discover()
    assert probe.sample()[1]["memory_used"] == 3145728


def test_a_failing_call_costs_one_value(probe: stub.Probe) -> None:
    probe.open(gpus("temperature 61", "power 312500", "fail nvmlDeviceGetPowerUsage 999"))
    probe.discover()
    assert (probe.sample()[1]["temperature"], probe.sample()[1]["power"]) == (61.0, None)


@pytest.mark.parametrize(
    ("version", "branch"),
    [("570.148.08", 570), ("", None), ("unknown", None), ("9" * 30, None)],
)
def test_the_branch_of_the_driver_is_known_with_the_health(version: str, branch: int | None) -> None:
    assert read_health(None, lambda *_: None, version).branch == branch
