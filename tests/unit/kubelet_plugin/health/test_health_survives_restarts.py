"""What events said of GPUs outlives the agent: a file of its own, real processes on the NVML stub."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nvml_stub_support as stub
import pytest

from dra_driver.discovery.nvidia.conditions import Conditions, HealthReading
from dra_driver.errors import DecodeError
from kubelet_plugin.health.memory import HealthFile

XID, GPU = 0x8, "GPU-a"
PATIENCE = 90.0

# --- the rules ----------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        return self.time


def reasons(conditions: Conditions) -> list[str]:
    return [h.reason for h in conditions.health(GPU)]


def sick(clock: Clock, *numbers: int) -> Conditions:
    conditions = Conditions(clock)
    for number in numbers:
        conditions.event(GPU, XID, number)
    return conditions


def successor(data: bytes, clock: Clock, driver: str | None = "") -> Conditions:
    conditions = Conditions(clock)
    conditions.recall(data, driver)
    return conditions


def test_a_new_process_knows_what_the_old_one_did() -> None:
    clock = Clock()
    before = sick(clock, 79, 31)
    clock.time += 60
    after = successor(before.memory("7"), clock, "7")
    assert after.health(GPU) == before.health(GPU)
    # A repetition is no news, also in the new process.
    clock.time += 60
    after.event(GPU, XID, 79)
    assert after.health(GPU) == before.health(GPU)


@pytest.mark.parametrize(
    ("driver", "left"),
    [("7", ["Xid79", "Xid31"]), ("", ["Xid79", "Xid31"]), ("8", ["Xid31"]), (None, ["Xid31"])],
)
def test_a_driver_that_was_loaded_anew_has_reset_its_gpus(driver: str | None, left: list[str]) -> None:
    clock = Clock()
    assert reasons(successor(sick(clock, 79, 31).memory("7"), clock, driver)) == left


def test_what_expires_expires_at_the_same_time() -> None:
    clock = Clock()
    data = sick(clock, 31, 48).memory("7")
    clock.time += 599
    after = successor(data, clock)
    assert reasons(after) == ["Xid48", "Xid31"]
    clock.time += 2
    assert reasons(after) == ["Xid48"]
    assert reasons(successor(data, clock)) == ["Xid48"]


def test_a_gpu_that_was_lost_is_reset_when_it_is_back() -> None:
    clock = Clock()
    before = sick(clock, 79)
    before.lost(GPU)
    after = successor(before.memory(""), clock)
    assert reasons(after) == ["Xid79"]
    after.poll(GPU, HealthReading())
    assert reasons(after) == []


def test_errors_that_are_counted_anew_are_no_reset_after_a_restart() -> None:
    """Without persistence mode the driver counts anew as soon as its last user, the agent, is gone."""
    clock = Clock()
    before = sick(clock, 48)
    before.poll(GPU, HealthReading(uncorrected=3))
    after = successor(before.memory(""), clock)
    after.poll(GPU, HealthReading(uncorrected=0))
    assert reasons(after) == ["Xid48"]
    after.poll(GPU, HealthReading(uncorrected=2))
    after.poll(GPU, HealthReading(uncorrected=0))
    assert reasons(after) == []


def test_an_action_that_the_driver_asked_for_before_ends_it_after() -> None:
    clock = Clock()
    before = sick(clock, 119)
    before.poll(GPU, HealthReading(recovery_action=1))
    after = successor(before.memory(""), clock)
    after.poll(GPU, HealthReading(recovery_action=0))
    assert reasons(after) == []


def test_what_has_ended_here_does_not_come_back_from_there() -> None:
    clock = Clock()
    one = sick(clock, 79)
    data = one.memory("")
    one.reopened()
    one.recall(data, "")
    assert reasons(one) == []
    clock.time += 1
    one.recall(sick(clock, 79).memory(""), "")
    assert reasons(one) == ["Xid79"]


@pytest.mark.parametrize("data", [b"", b"[]", b'{"gpus":{"GPU-a":{"entries":{"X":{}}}}}', b'{"gpus":3}'])
def test_other_documents_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        Conditions(Clock()).recall(data, "")


# --- the file -----------------------------------------------------------------------------------------------


class Backend:
    """Remembers words."""

    name = "words"

    def __init__(self, *words: str) -> None:
        self.words = set(words)

    def discover(self) -> Sequence[Any]:
        return ()

    def close(self) -> None:
        """Nothing is open."""

    def health_memory(self) -> bytes:
        return json.dumps(sorted(self.words)).encode()

    def recall_health(self, data: bytes) -> None:
        self.words |= set(json.loads(data))


class File:
    """A health file on a folder of its own; what it told is in ``told``."""

    def __init__(
        self, folder: Path, backend: Backend, boot: str = "boot-1", beside: Sequence[Backend] = ()
    ) -> None:
        self.path = folder / "state/health.json"
        self.told: list[str] = []
        self._executor = ThreadPoolExecutor(1)
        self._file = HealthFile(
            self.path,
            [*beside, backend],
            self._executor,
            boot_id=boot,
            report=lambda kind, _: self.told.append(kind),
        )

    def load(self) -> File:
        asyncio.run(self._file.load())
        return self

    def keep(self) -> File:
        asyncio.run(self._file.keep())
        return self


def test_it_is_kept_and_read_back(tmp_path: Path) -> None:
    file = File(tmp_path, Backend("a", "b")).load().keep()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    before = file.path.stat().st_mtime_ns
    file.keep()
    assert file.path.stat().st_mtime_ns == before, "written without need"
    back = Backend()
    assert File(tmp_path, back).load().told == []
    assert back.words == {"a", "b"}


def test_it_is_of_one_boot(tmp_path: Path) -> None:
    File(tmp_path, Backend("a")).keep()
    rebooted, unknown = Backend(), Backend()
    File(tmp_path, rebooted, "boot-2").load()
    File(tmp_path, unknown, "").load()
    assert (rebooted.words, unknown.words) == (set(), {"a"})


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version":1,"checksum":"sha256:0","payload":{}}\n'])
def test_a_damaged_file_is_told_of_and_the_one_before_is_used(tmp_path: Path, damage: bytes) -> None:
    backend = Backend("a")
    file = File(tmp_path, backend).keep()
    backend.words.add("b")
    file.keep()
    file.path.unlink()
    file.path.write_bytes(damage)
    back = Backend()
    again = File(tmp_path, back).load()
    assert again.told == ["HealthMemoryDamaged"]
    assert back.words == {"a"}
    again.keep()
    assert File(tmp_path, Backend()).load().told == []


def test_two_instances_add_what_the_other_wrote(tmp_path: Path) -> None:
    one, two = Backend(), Backend()
    old, new = File(tmp_path, one).load().keep(), File(tmp_path, two).load().keep()
    one.words.add("a")
    old.keep()
    two.words.add("b")
    new.keep()
    assert two.words == {"a", "b"}
    old.keep()
    assert one.words == {"a", "b"}


def test_what_another_backend_wrote_stays(tmp_path: Path) -> None:
    class Other(Backend):
        name = "others"

    File(tmp_path, Other("x")).keep()
    File(tmp_path, Backend("a")).load().keep()
    back = Other()
    File(tmp_path, back).load()
    assert back.words == {"x"}


def test_a_disk_that_refuses_costs_nothing_but_the_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    file = File(tmp_path, Backend("a")).load().keep()
    assert file.told == ["HealthMemoryDamaged"] * 2


class Buggy(Backend):
    """A third party's, which keeps to no contract."""

    name = "buggy"
    says: object = KeyError("of a third party")

    def health_memory(self) -> bytes:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says  # type: ignore[return-value]

    def recall_health(self, data: bytes) -> None:
        raise ZeroDivisionError("of a third party")


@pytest.mark.parametrize("says", [KeyError("x"), b"no JSON", None])
def test_a_bug_in_one_backend_costs_the_others_nothing(tmp_path: Path, says: object) -> None:
    class Other(Backend):
        name = "others"

    buggy = Buggy()
    buggy.says = b"[1]"
    File(tmp_path, Other("x"), beside=[buggy]).load().keep()
    buggy.says = says
    back = Other()
    file = File(tmp_path, back, beside=[buggy]).load()
    assert back.words == {"x"}
    back.words.add("y")
    file.keep()
    last = Other()
    File(tmp_path, last).load()
    assert last.words == {"x", "y"}
    # Nor does it lose what it kept before.
    assert b'"buggy":[1]' in (tmp_path / "state/health.json").read_bytes()


def test_a_damaged_file_never_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "state/health.json"
    previous = path.with_name(f"{path.name}.previous")
    File(tmp_path, Backend("a")).keep()
    File(tmp_path, Backend("a", "b")).load().keep()
    good = previous.read_bytes()
    path.write_bytes(b"{")
    back = Backend("c")
    file = File(tmp_path, back).load()
    file.keep()
    assert previous.read_bytes() == good
    assert back.words == {"a", "c"}


# --- real processes -----------------------------------------------------------------------------------------


class Agents:
    """Node agents of one machine, one after the other."""

    def __init__(self, root: Path, library: Path) -> None:
        self.root = root
        self.library = library
        self.config = root / "nvml.conf"
        self.gpu = stub.Gpu("H100-80", "00000000:07:00.0", 3, GPU, extra=["supported_events 0xFFFF"])
        self.module = root / "sys/module/nvidia"
        self.module.mkdir(parents=True)
        self.boot("1")
        self.machine()
        (root / "kubeconfig").write_text(json.dumps(KUBECONFIG))

    def boot(self, boot_id: str) -> None:
        file = self.root / "proc/sys/kernel/random/boot_id"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{boot_id}\n")

    def machine(self, *lines: str) -> None:
        temporary = self.config.with_suffix(".new")
        temporary.write_text(stub.config([self.gpu]) + "".join(f"{line}\n" for line in lines))
        temporary.rename(self.config)

    @contextlib.contextmanager
    def running(self) -> Iterator[Callable[[], list[str] | None]]:
        """Gives what says the conditions of the GPU; kills the agent at the end."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        root = self.root
        arguments = [
            f"--kubeconfig={root}/kubeconfig",
            "--node-name=node-a",
            f"--plugins-dir={root}/plugins",
            f"--registry-dir={root}/registry",
            f"--cdi-dir={root}/cdi",
            f"--state-dir={root}/state",
            f"--procfs-root={root}/proc",
            f"--sysfs-root={root}/sys",
            f"--dev-root={root}/dev",
            f"--host-root={root}",
            "--backend=nvml",
            f"--metrics-address=127.0.0.1:{port}",
        ]
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library),
            "NVML_STUB_CONFIG": str(self.config),
            "NVML_STUB_STATE": str(root / "stub"),
        }
        command = [sys.executable, "-m", "dra_driver.cli.main", "kubelet-plugin", "--log-level=error"]
        with (root / "stderr").open("ab") as errors:
            agent = subprocess.Popen([*command, *arguments], env=env, stderr=errors)

        def conditions() -> list[str] | None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/debug/state", timeout=60) as answer:
                    devices = json.load(answer)["devices"]
            except OSError:
                assert agent.poll() is None, (root / "stderr").read_text()
                return None
            return [h["reason"] for d in devices for h in d.get("health", ())] if devices else None

        try:
            yield conditions
        finally:
            agent.kill()
            agent.wait()


KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    # Nobody listens there: the agent does its work without the API server.
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "u", "user": {}}],
}


def until(conditions: Callable[[], list[str] | None], wanted: list[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := conditions()) != wanted:
        assert time.monotonic() < deadline, f"{found} instead of {wanted}"
        time.sleep(0.05)


def first(conditions: Callable[[], list[str] | None]) -> list[str]:
    """What the agent says as soon as it says anything of its GPU."""
    deadline = time.monotonic() + PATIENCE
    while (found := conditions()) is None:
        assert time.monotonic() < deadline, "no answer"
        time.sleep(0.05)
    return found


@pytest.mark.long
def test_a_killed_agent_does_not_make_a_sick_gpu_look_healthy(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    agents = Agents(tmp_path, stub.shared(tmp_path_factory))
    with agents.running() as conditions:
        until(conditions, [])
        agents.machine("event 1 8 79")
        until(conditions, ["Xid79"])
    agents.machine()  # the event comes once
    for _ in range(2):
        with agents.running() as conditions:
            assert first(conditions) == ["Xid79"]
    # The driver was loaded anew while no agent ran: its folder in sysfs is another one.
    agents.module.rename(agents.module.with_name("elsewhere"))
    agents.module.mkdir()
    with agents.running() as conditions:
        assert first(conditions) == []
        agents.machine("event 1 8 79")
        until(conditions, ["Xid79"])
    agents.machine()
    agents.boot("2")
    with agents.running() as conditions:
        assert first(conditions) == []
