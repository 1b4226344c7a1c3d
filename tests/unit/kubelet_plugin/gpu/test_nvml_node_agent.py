"""The node agent on the NVML stub: partitions, modes and time slices through the real binding."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nvml_stub_support as stub
import pytest
from driver_tree import driver
from nvidia_tools import Tools
from nvml_lives import Lives

H100 = "GPU-11111111-0000-0000-0000-000000000000"
GPU = "gpu-0000-07-00-0"


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    return Lives(stub.shared(tmp_path_factory))


def live(lives: Lives, root: Path, *steps: list[Any]) -> list[dict[str, Any]]:
    """Answers of the agent to the steps."""
    (root / "nvml.conf").write_text(
        stub.config([stub.Gpu("H100-80", "00000000:07:00.0", 3, H100, extra=["compute 2"])])
    )
    folder = root / "proc/driver/nvidia-caps"
    folder.mkdir(parents=True, exist_ok=True)
    minors = [
        f"gpu3/gi{gi}/access {408 + 9 * gi}\ngpu3/gi{gi}/ci0/access {409 + 9 * gi}\n" for gi in range(15)
    ]
    (folder / "mig-minors").write_text("".join(minors))
    return lives.live(root, *steps)


NOT_LOADED = ["machine", "fail nvmlInitWithFlags 9"]


def test_nothing_is_forgotten_while_the_library_is_gone_and_the_kernel_driver_is_not(
    lives: Lives, tmp_path: Path
) -> None:
    """The instance is still on the GPU: the kubelet has to come back, and then it is destroyed."""
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    answers = live(
        lives,
        tmp_path,
        ["prepare", "one", f"{GPU}-mig-3g-40gb-4"],
        NOT_LOADED,
        ["restart"],
        ["kept", "one"],
        ["machine"],
        ["unprepare", "one"],
    )
    kept, done = answers[2], answers[4]
    assert "cannot be queried while its kernel driver is loaded" in kept["error"]
    assert done["error"] == ""
    assert not any(line.startswith("instance") for line in state(tmp_path))


def test_what_went_with_the_kernel_driver_is_forgotten(lives: Lives, tmp_path: Path) -> None:
    (tmp_path / "sys/module").mkdir(parents=True)
    steps = (["prepare", "one", f"{GPU}-mig-3g-40gb-4"], NOT_LOADED, ["restart"], ["kept", "one"])
    assert live(lives, tmp_path, *steps)[-1]["error"] == ""


def state(root: Path) -> list[str]:
    """What the stub's hardware remembers."""
    return (root / "state").read_text().splitlines() if (root / "state").exists() else []


def test_partitions_over_a_restart(lives: Lives, tmp_path: Path) -> None:
    Tools(tmp_path / "bin")
    first, second = f"{GPU}-mig-3g-40gb-4", f"{GPU}-mig-1g-10gb-0"
    answers = live(
        lives,
        tmp_path,
        ["prepare", "one", first],
        ["prepare", "two", second],
        ["restart"],
        ["prepare", "one", first],
        ["refused", "whole", GPU],
        ["unprepare", "two"],
    )
    assert [a["error"] for a in answers[:3]] == ["", "", ""]
    assert answers[0] == answers[2]
    edits = answers[0]["spec"]["devices"][0]["containerEdits"]
    assert [n["path"] for n in edits["deviceNodes"]] == [
        "/dev/nvidia3",
        "/dev/nvidia-caps/nvidia-cap417",
        "/dev/nvidia-caps/nvidia-cap418",
    ]
    assert "NVIDIA_VISIBLE_DEVICES=void" in edits["env"]
    assert any(v.startswith("DRA_ONE__GPU__0_UUID=MIG-") for v in edits["env"])
    assert "is held by another claim" in answers[3]["error"]
    assert [line.split()[3:7] for line in state(tmp_path) if line.startswith("instance")] == [
        ["1", "9", "4", "4"]
    ]


def test_a_partition_and_a_whole_gpu_have_the_drivers_files(lives: Lives, tmp_path: Path) -> None:
    Tools(tmp_path / "bin")
    files = ("libcuda.so.1", "libnvidia-ml.so.1")
    driver(tmp_path, "usr/lib64", "570.148.08")
    part = f"{GPU}-mig-3g-40gb-4"
    made = live(
        lives, tmp_path, ["prepare", "a", part], ["unprepare", "a"], ["prepare", "b", GPU], ["restart"],
        ["prepare", "b", GPU],
    )  # fmt: skip
    for answer in (made[0], made[2], made[3]):
        assert answer["error"] == ""
        edits = answer["spec"]["devices"][0]["containerEdits"]
        places = {m["containerPath"]: m["hostPath"] for m in edits["mounts"]}
        for file in files:
            found = f"/usr/lib64/{file.removesuffix('.1')}.570.148.08"
            assert (
                places[f"/usr/lib64/{file}"]
                == places[f"/usr/lib/{os.uname().machine}-linux-gnu/{file}"]
                == found
            )


def test_the_last_partition_takes_the_mode_with_it(lives: Lives, tmp_path: Path) -> None:
    Tools(tmp_path / "bin")
    device = f"{GPU}-mig-7g-80gb-0"
    made, gone = live(lives, tmp_path, ["prepare", "one", device], ["unprepare", "one"])
    assert (made["error"], gone) == ("", {"error": "", "spec": None})
    assert state(tmp_path) == [f"mode {H100} 0 0 2 0"]


@pytest.mark.long
def test_a_time_slice_sets_the_compute_mode_and_back(lives: Lives, tmp_path: Path) -> None:
    tools = Tools(tmp_path / "bin")
    (made,) = live(lives, tmp_path, ["prepare", "one", GPU, "slicing"])
    assert made["error"] == ""
    assert state(tmp_path) == [f"mode {H100} 0 0 0 0"]
    assert tools.asked("nvidia-smi") == [["compute-policy", "-i", H100, "--set-timeslice", "3"]]
