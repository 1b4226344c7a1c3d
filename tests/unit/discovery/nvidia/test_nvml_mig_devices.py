"""MIG devices on the NVML stub: those that an administrator made (``nvml=mig``), and the load of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nvml_stub_support as stub
import pytest
from nvidia_tools import Tools
from nvml_lives import Lives

H100, L4 = "GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000"
CUT, WHOLE = "gpu-0000-07-00-0", "gpu-0000-08-00-0"
BIG, SMALL = f"{CUT}-mig-3g-40gb-4", f"{CUT}-mig-1g-10gb-0"
GIB = 2**30


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    return Lives(stub.shared(tmp_path_factory))


class Machine:
    """An H100 in MIG mode with two instances, which nobody of ours has made, and an L4."""

    def __init__(self, lives: Lives, root: Path) -> None:
        self._lives = lives
        self.root = root
        Tools(root / "bin")
        load = ["used 8589934592", "utilization 40 10", "temperature 51", "power 300000"]
        gpus = [
            stub.Gpu("H100-80", "00000000:07:00.0", 0, H100, extra=load),
            stub.Gpu("L4", "00000000:08:00.0", 1, L4, extra=load),
        ]
        (root / "nvml.conf").write_text(stub.config(gpus))
        folder = root / "proc/driver/nvidia-caps"
        folder.mkdir(parents=True)
        numbers = ((gi, 3 + 9 * gi) for gi in range(15))
        lines = [f"gpu0/gi{gi}/access {n}\ngpu0/gi{gi}/ci0/access {n + 1}\n" for gi, n in numbers]
        (folder / "mig-minors").write_text("".join(lines))
        # MODE: MIG, PENDING, COMPUTE, CONFIGURED; INSTANCE: ID PROFILE START SIZE SLICES CI SERIAL.
        (root / "state").write_text(
            f"mode {H100} 1 1 0 0\n"
            f"instance 0 {H100} 1 9 4 4 3 3 1\n"
            f"instance 1 {H100} 11 19 0 1 1 1 2\n"
        )  # fmt: skip

    def live(self, *steps: list[Any], backend: str = "nvml=mig") -> list[dict[str, Any]]:
        """Answers of the agent to the steps."""
        return self._lives.live(self.root, *steps, backend=backend)

    @property
    def instances(self) -> list[list[str]]:
        """Id, profile, start and size of what the hardware has."""
        lines = (self.root / "state").read_text().splitlines()
        return [line.split()[3:7] for line in lines if line.startswith("instance")]


@pytest.fixture
def machine(lives: Lives, tmp_path: Path) -> Machine:
    return Machine(lives, tmp_path)


def metric(text: str, name: str) -> dict[tuple[str, str], float]:
    """Value by device and claim."""
    found: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        if line.startswith(f"{name}{{"):
            labels, _, value = line.removeprefix(f"{name}{{").rpartition("} ")
            facts = dict(pair.split("=", 1) for pair in labels.replace('"', "").split(","))
            found[facts["device"], facts["claim"]] = float(value)
    return found


def test_what_is_there_is_found_and_what_an_administrator_changes_is_noticed(machine: Machine) -> None:
    first, _, second, _, third = machine.live(
        ["devices"],
        ["administrator", "create_instance", H100, 19, 3, 1],
        ["devices"],
        ["administrator", "destroy_instance", H100, 1],
        ["devices"],
    )
    assert sorted(first["devices"]) == [SMALL, BIG, WHOLE]
    assert first["devices"][BIG] == "MIG-11111111-0001-5000-8000-000000000001"
    assert first["devices"][WHOLE] == L4
    assert sorted(second["devices"]) == [SMALL, f"{CUT}-mig-1g-10gb-3", BIG, WHOLE]
    assert sorted(third["devices"]) == [SMALL, f"{CUT}-mig-1g-10gb-3", WHOLE]


def test_claims_get_instances_and_leave_them_as_they_were(machine: Machine) -> None:
    before = machine.instances
    big, again, small, gone, _ = machine.live(
        ["prepare", "one", BIG],
        ["restart"],
        ["prepare", "one", BIG],
        ["prepare", "two", SMALL],
        ["unprepare", "one"],
        ["unprepare", "two"],
    )
    assert [a["error"] for a in (big, small, gone)] == ["", "", ""]
    assert big == again
    edits = big["spec"]["devices"][0]["containerEdits"]
    assert [n["path"] for n in edits["deviceNodes"]] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ]
    assert "DRA_ONE__GPU__0_UUID=MIG-11111111-0001-5000-8000-000000000001" in edits["env"]
    assert gone["spec"] is None
    assert machine.instances == before


def test_an_instance_that_was_replaced_is_not_given_away(machine: Machine) -> None:
    """The inventory promised another one: the same name, and not the same device."""
    _, _, _, refused = machine.live(
        ["devices"],
        ["administrator", "destroy_instance", H100, 1],
        ["devices"],
        ["refused", "one", BIG],
    )
    assert refused["error"]
    assert refused["spec"] is None


def test_each_mig_device_tells_its_memory_and_who_holds_it(machine: Machine) -> None:
    _, _, told = machine.live(["prepare", "one", BIG], ["devices"], ["samples"])
    text = told["metrics"]
    assert metric(text, "dra_driver_device_memory_total_bytes") == {
        (BIG, "one"): 40448 * 2**20,
        (SMALL, ""): 9984 * 2**20,
        (WHOLE, ""): 23034 * 2**20,
    }
    assert metric(text, "dra_driver_device_memory_used_bytes") == {
        (BIG, "one"): 10112 * 2**20,
        (SMALL, ""): 2496 * 2**20,
        (WHOLE, ""): 8 * GIB,
    }
    # NVML tells no load and no power of a part; its temperature is the GPU's.
    assert metric(text, "dra_driver_device_utilization_ratio") == {(WHOLE, ""): 0.4}
    assert metric(text, "dra_driver_device_power_watts") == {(WHOLE, ""): 300.0}
    assert set(metric(text, "dra_driver_device_temperature_celsius").values()) == {51.0}


@pytest.mark.long
def test_partitions_that_claims_made_tell_the_same(machine: Machine) -> None:
    """Plain ``nvml``: made by prepare, sampled under the name that the claim has, gone with unprepare."""
    (machine.root / "state").unlink()
    made, during, gone, after = machine.live(
        ["prepare", "one", BIG], ["samples"], ["unprepare", "one"], ["samples"], backend="nvml"
    )
    assert (made["error"], gone["error"]) == ("", "")
    used = metric(during["metrics"], "dra_driver_device_memory_used_bytes")
    assert used == {(CUT, "one"): 8 * GIB, (BIG, "one"): 10112 * 2**20, (WHOLE, ""): 8 * GIB}
    assert set(metric(after["metrics"], "dra_driver_device_memory_used_bytes")) == {(CUT, ""), (WHOLE, "")}
    assert machine.instances == []
