"""Claims of a node agent while NVML fails for one of its GPUs: whole GPU, MIG partition, share by MPS."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nvml_stub_support as stub
import pytest
from nvidia_tools import Tools
from nvml_lives import Lives

HEALTHY, FAILING = "GPU-11111111-aaaa", "GPU-22222222-bbbb"
HERE, THERE, SHARED = "gpu-0000-07-00-0", "gpu-0000-08-00-0", "gpu-0000-09-00-0"
PART, OTHER_PART, PART_THERE = f"{HERE}-mig-3g-40gb-4", f"{HERE}-mig-1g-10gb-0", f"{THERE}-mig-3g-40gb-4"
EVERYTHING = (("*",), (15, 999))
CALLS = [
    EVERYTHING,
    (("nvmlDeviceGetUUID",), (3, 6, 15, 999)),
    (("nvmlDeviceGetPciInfo_v3",), (3, 6, 15, 999)),
    (("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID"), (6, 15, 999)),
    (("nvmlDeviceGetHandleByPciBusId_v2",), (6, 15, 999)),
    (("nvmlDeviceGetMigMode",), (3, 15, 999)),
    (("nvmlDeviceGetGpuInstances", "nvmlDeviceGetGpuInstanceById"), (3, 6, 15, 999)),
]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    return Lives(stub.shared(tmp_path_factory))


@pytest.fixture
def root() -> Iterator[Path]:
    """Never in memory: an MPS daemon gets a /dev/shm of its own, in which its program would not be."""
    with tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as folder:
        yield Path(folder)


def machine(root: Path) -> None:
    Tools(root / "bin")
    gpus = [
        stub.Gpu("H100-80", "00000000:07:00.0", 3, HEALTHY),
        stub.Gpu("H100-80", "00000000:08:00.0", 4, FAILING),
        stub.Gpu("L4", "00000000:09:00.0", 5, "GPU-33333333-cccc"),
    ]
    (root / "nvml.conf").write_text(stub.config(gpus))
    folder = root / "proc/driver/nvidia-caps"
    folder.mkdir(parents=True)
    lines = [
        f"gpu{gpu}/gi{gi}/access {n}\ngpu{gpu}/gi{gi}/ci0/access {n + 1}\n"
        for gpu in (3, 4)
        for gi in range(15)
        for n in (3 + 135 * gpu + 9 * gi,)
    ]
    (folder / "mig-minors").write_text("".join(lines))


def instances(root: Path, gpu: str) -> list[list[str]]:
    """Profile, start and size of what the hardware has."""
    lines = (root / "state").read_text().splitlines()
    return [line.split()[4:7] for line in lines if line.startswith("instance") and gpu in line]


def test_a_lost_gpu_loses_no_record_of_another(lives: Lives, root: Path) -> None:
    """The instance would stay, and with it MIG mode: the place and the whole GPU would refuse every claim."""
    machine(root)
    lost = [f"fail nvmlDeviceGetHandleBy{how} 15" for how in ("UUID", "Index_v2", "PciBusId_v2")]
    answers = lives.live(
        root,
        ["prepare", "one", PART],
        ["gpu", FAILING, *lost],
        ["devices"],
        ["unprepare", "one"],
        ["prepare", "again", PART],
        ["unprepare", "again"],
        ["prepare", "whole", HERE],
    )
    assert [a["error"] for a in (answers[0], *answers[3:])] == ["", "", "", "", ""]
    assert answers[2]["health"] == {HERE: ["MigEnabled"], THERE: ["GpuLost"], SHARED: []}
    assert instances(root, HEALTHY) == []


@pytest.mark.parametrize(
    ("calls", "codes"),
    [
        pytest.param(*case, id=case[0][0], marks=() if case is EVERYTHING else pytest.mark.long)
        for case in CALLS
    ],
)
def test_errors_of_one_gpu_leave_claims_of_the_others_alone(
    lives: Lives, root: Path, calls: tuple[str, ...], codes: tuple[int, ...]
) -> None:
    machine(root)
    steps: list[list[Any]] = [
        ["prepare", "mine", PART],
        ["prepare", "theirs", PART_THERE],
        ["prepare", "share", SHARED, "mps"],
        ["devices"],
    ]
    for code in codes:
        steps += [
            ["gpu", FAILING, *(f"fail {call} {code}" for call in calls)],
            ["devices"],
            ["prepare", "mine", PART],  # once more, as after a restart of the kubelet
            ["prepare", f"new-{code}", OTHER_PART],
            ["unprepare", f"new-{code}"],
            ["unprepare", "share"],
            ["prepare", "share", SHARED, "mps"],
            ["devices"],
        ]
    steps += [["gpu", FAILING], ["devices"], ["prepare", "theirs", PART_THERE], ["unprepare", "theirs"]]
    steps += [["unprepare", "mine"], ["prepare", "whole", HERE], ["prepare", "other", THERE]]
    steps += [["unprepare", "share"]]  # whose daemon would outlive the test
    answers = lives.live(root, *steps)
    assert [a["error"] for a in answers if a.get("error")] == []
    _, _, _, before, *rest = answers
    assert before["claims"] == ["mine", "share", "theirs"]
    looks = [a for a in rest if "devices" in a]
    assert len(looks) == 2 * len(codes) + 1
    for look in looks:
        assert look["devices"] == before["devices"]
        assert look["claims"] == before["claims"]
        assert look["health"][HERE] == before["health"][HERE]
        assert look["health"][SHARED] == before["health"][SHARED]
    assert [instances(root, gpu) for gpu in (HEALTHY, FAILING)] == [[], []]


def test_an_error_refuses_the_claim_of_its_gpu_by_name(lives: Lives, root: Path) -> None:
    machine(root)
    answers = lives.live(
        root,
        ["prepare", "theirs", PART_THERE],
        ["gpu", FAILING, "fail nvmlDeviceGetGpuInstances 999"],
        ["devices"],
        ["kept", "theirs"],
        ["devices"],
        ["gpu", FAILING],
        ["devices"],
        ["unprepare", "theirs"],
    )
    assert FAILING in answers[3]["error"]
    assert "(NVML error 999)" in answers[3]["error"]
    assert answers[4]["claims"] == ["theirs"]
    assert answers[7]["error"] == ""
    assert instances(root, FAILING) == []


def test_a_gpu_keeps_its_claim_though_it_does_not_say_which_it_is(lives: Lives, root: Path) -> None:
    """It was called replaced, or published once more under another name for a second claim."""
    machine(root)
    steps: list[list[Any]] = [["prepare", "one", THERE]]
    for call in ("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMinorNumber"):
        steps += [["gpu", FAILING, f"fail {call} 999"], ["devices"], ["prepare", "one", THERE]]
    answers = lives.live(root, *steps)
    assert [a["error"] for a in answers if a.get("error")] == []
    first, *again = (a["spec"] for a in answers if "spec" in a)
    assert again == [first] * 3
    assert {n["path"] for n in first["devices"][0]["containerEdits"]["deviceNodes"]} >= {"/dev/nvidia4"}
    assert all(sorted(a["devices"]) == [HERE, THERE, SHARED] for a in answers if "devices" in a)
