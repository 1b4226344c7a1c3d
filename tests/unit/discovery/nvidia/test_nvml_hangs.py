"""A call about one GPU that does not come back: of that GPU it is said, and the others go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nvml_stub_support as stub
import pytest

from dra_driver.discovery.nvidia.driver.lanes import LaneBusy, Lanes

HEALTHY, STUCK = "GPU-11111111-aaaa", "GPU-22222222-bbbb"
HERE, THERE = "gpu-0000-07-00-0", "gpu-0000-08-00-0"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub.shared(tmp_path_factory)


@pytest.fixture
def probe(library: Path, tmp_path: Path) -> Iterator[stub.Probe]:
    made = stub.Probe(library, tmp_path)
    gpus = [
        stub.Gpu("H100-80", "00000000:07:00.0", 0, HEALTHY, ["temperature 40", "supported_events 0xFFFF"]),
        stub.Gpu("H100-80", "00000000:08:00.0", 1, STUCK, ["temperature 50", "supported_events 0xFFFF"]),
    ]
    made.open(stub.config(gpus))
    made.patience(1.0)
    yield made
    made.hang()
    made.stop()


def reasons(answer: dict[str, Any]) -> dict[str, list[str]]:
    return {d["name"]: [h["reason"] for h in d.get("health", ())] for d in answer["devices"]}


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetUUID"]
)
def test_a_gpu_that_hangs_costs_no_other(probe: stub.Probe, call: str) -> None:
    before = probe.discover()["devices"]
    probe.hang(f"{call} {STUCK}")
    answer = probe.discover()
    assert reasons(answer) == {HERE: [], THERE: ["DriverHanging"]}
    assert [d for d in answer["devices"] if d["name"] == HERE] == before[:1]
    assert any(p.startswith(f"{THERE}: GPU: a look at it that began at ") for p in answer["problems"])
    # Nothing else goes the way of the first call.
    began = time.monotonic()
    assert reasons(probe.discover()) == {HERE: [], THERE: ["DriverHanging"]}
    assert time.monotonic() - began < 1.0
    assert [s["temperature"] for s in probe.sample()] == [40.0]
    assert probe.control("has", HEALTHY) == {"answer": "True"}
    assert probe.control("set_partitioning", HEALTHY, True) == {"answer": "None"}
    probe.hang()
    while reasons(probe.discover())[THERE]:
        time.sleep(0.02)
    assert probe.control("has", STUCK) == {"answer": "True"}


def test_a_sample_that_hangs_costs_no_other(probe: stub.Probe) -> None:
    probe.discover()
    probe.hang(f"nvmlDeviceGetTemperature {STUCK}")
    assert [(s["device"], s["temperature"]) for s in probe.sample()] == [(HERE, 40.0)]
    assert reasons(probe.discover()) == {HERE: [], THERE: ["DriverHanging"]}


def test_events_of_others_are_watched_beside_one_that_hangs(probe: stub.Probe) -> None:
    probe.discover()
    probe.hang(f"nvmlDeviceRegisterEvents {STUCK}")
    text = probe.config.read_text().replace(
        "supported_events 0xFFFF", "supported_events 0xFFFF\nevent 1 8 31", 1
    )
    events = probe.wait(text)
    assert [(e[0], e[4]) for e in events] == [(HEALTHY, 31)]
    # Its turn comes again, and then nothing else shows that the library answers.
    assert probe.wait(seconds=2.0) == []
    events = probe.wait(text.replace("event 1 8 31", "event 2 8 48"))
    assert [(e[0], e[4]) for e in events] == [(HEALTHY, 48)]
    probe.hang()


@pytest.mark.long
def test_a_call_about_a_gpu_that_hangs_says_which_one_and_for_what_it_waits(probe: stub.Probe) -> None:
    probe.discover()
    probe.hang(f"nvmlDeviceGetTotalEccErrors {STUCK}")
    probe.discover()
    refused = probe.control("instances", STUCK)
    assert refused["retryable"]
    assert refused["error"].startswith(f"GPU {STUCK}: a look at it that began at ")


# --- lanes --------------------------------------------------------------------------------------------------


@pytest.fixture
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()  # no thread is left behind


def test_a_library_that_answers_about_no_gpu_is_waited_for(held: threading.Event) -> None:
    """Then the whole backend hangs, and its look does not end."""
    lanes = Lanes(0.05)
    done: list[Any] = []
    thread = threading.Thread(
        target=lambda: done.append(lanes.each(("a", "b"), "a look", lambda _: held.wait()))
    )
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    held.set()
    thread.join(30)
    # Both come back now; whether the first one still counts as late is decided by which comes first.
    (answers,) = done
    assert answers.found
    assert answers.found.keys() | answers.late.keys() == {"a", "b"}


def test_an_answer_from_before_a_hang_proves_nothing(held: threading.Event) -> None:
    """Two answer; then the call about the third one holds what every other one needs."""
    lanes = Lanes(0.05)
    asked: list[str] = []

    def look(gpu: str) -> bool:
        asked.append(gpu)
        return (gpu != "c" and "c" not in asked) or held.wait()

    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(lanes.each(("a", "b", "c"), "a look", look)))
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    assert asked == ["a", "b", "c", "b"]
    held.set()
    thread.join(30)
    assert not thread.is_alive()


def test_what_is_done_at_once_is_left_after_the_patience_for_one(held: threading.Event) -> None:
    lanes = Lanes(0.3)
    began = time.monotonic()
    answers = lanes.at_once(("a", "b", "c", "d"), "a registration", lambda gpu: gpu == "d" or held.wait())
    assert time.monotonic() - began < 0.9
    assert answers.found == {"d": True}
    assert sorted(answers.late) == ["a", "b", "c"]
    # What has not come back is not asked again.
    again = lanes.at_once(("a", "d"), "a registration", lambda gpu: gpu == "d")
    assert again.found == {"d": True}
    assert again.late == {"a": answers.late["a"]}
    held.set()


def test_nothing_is_closed_under_a_call(held: threading.Event) -> None:
    lanes = Lanes(0.05)
    answers = lanes.each(("a", "b"), "a look", lambda gpu: gpu == "b" or held.wait())
    assert (list(answers.found), list(answers.late)) == (["b"], ["a"])
    with (
        pytest.raises(LaneBusy, match="the library cannot be closed: GPU a: a look that began at"),
        lanes.closed(0.05),
    ):
        pass
    with lanes.enter("b", "a change"):
        pass
    held.set()
    with (
        lanes.closed(30),
        pytest.raises(LaneBusy, match="is being closed"),
        lanes.enter("b", "a change", 0.05),
    ):
        pass


def test_what_a_look_raises_is_raised() -> None:
    def look(gpu: str) -> bool:
        raise ZeroDivisionError(gpu)

    with pytest.raises(ZeroDivisionError):
        Lanes(30).each(("a",), "a look", look)
