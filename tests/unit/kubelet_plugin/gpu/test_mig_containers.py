"""Containers of two tenants with a part of one GPU each, beside a document of NVIDIA's toolkit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nvml_stub_support as stub
import pytest
from nvidia_tools import Tools
from nvml_lives import Lives

from dra_driver.sim import cdi_reader

H100 = "GPU-11111111-0000-0000-0000-000000000000"
GPU = "gpu-0000-07-00-0"
BIG, SMALL = f"{GPU}-mig-3g-40gb-4", f"{GPU}-mig-1g-10gb-0"
# GPU instances 1 and 11, by NVIDIA's formula.
OF_BIG, OF_SMALL = ([f"/dev/nvidia-caps/nvidia-cap{n}" for n in pair] for pair in ((12, 13), (102, 103)))
SHARED = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
INSTANCES = f"mode {H100} 1 1 0 0\ninstance 0 {H100} 1 9 4 4 3 3 1\ninstance 1 {H100} 11 19 0 1 1 1 2\n"


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    return Lives(stub.shared(tmp_path_factory))


class Machine:
    """An H100; its capability nodes are in nobody's /dev."""

    def __init__(self, lives: Lives, root: Path) -> None:
        self._lives = lives
        self.root = root
        Tools(root / "bin")
        (root / "nvml.conf").write_text(stub.config([stub.Gpu("H100-80", "00000000:07:00.0", 0, H100)]))
        (root / "proc/driver/nvidia-caps").mkdir(parents=True)
        numbers = ((gi, 3 + 9 * gi) for gi in range(15))
        lines = [f"gpu0/gi{gi}/access {n}\ngpu0/gi{gi}/ci0/access {n + 1}\n" for gi, n in numbers]
        (root / "proc/driver/nvidia-caps/mig-minors").write_text("".join(lines))
        (root / "proc/devices").write_text("Character devices:\n195 nvidia\n237 nvidia-caps\n")
        # Read-only in the agent's container.
        (root / "dev").mkdir()
        # No capability node can be made there.
        (root / "dev/nvidia-caps").touch()
        for path in (*SHARED, "/dev/dri/card1", "/dev/dri/renderD128"):
            (root / path[1:]).parent.mkdir(exist_ok=True)
            (root / path[1:]).touch()

    def document(self, form: str, **more: list[str]) -> None:
        """The toolkit's, of an H100 with two MIG devices; more devices by name."""
        common, own = list(SHARED), ["/dev/nvidia0"]
        if form == "hoisted":
            common, own = [*common, *own, *OF_BIG, *OF_SMALL], []
        names = {"uuid": ("MIG-a", "MIG-b")}.get(form, ("0:0", "0:1"))
        devices = {
            names[0]: [*own, *OF_BIG],
            names[1]: [*own, *OF_SMALL],
            "all": [*own, *OF_BIG, *OF_SMALL],
            **more,
        }
        document = {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": n, "containerEdits": _nodes(paths)} for n, paths in devices.items()],
            "containerEdits": _nodes(common),
        }
        (self.root / "etc/cdi").mkdir(parents=True)
        (self.root / "etc/cdi/nvidia.json").write_text(json.dumps(document))

    def live(self, *steps: list[Any], backend: str = "nvml") -> list[dict[str, Any]]:
        """Answers of the agent to the steps."""
        return self._lives.live(self.root, *steps, backend=backend)

    def container(self, spec: dict[str, Any]) -> list[cdi_reader.DeviceView]:
        """Device nodes of a container with what the document gives; the host has no capability nodes."""

        def look(path: str) -> tuple[str, int, int]:
            if path.startswith("/dev/nvidia-caps"):
                raise cdi_reader.CdiError(f"failed to stat {path}")
            return "c", 195, 0

        folder = self.root / "run"
        folder.mkdir(exist_ok=True)
        (folder / "claim.json").write_text(json.dumps(spec))
        names = [f"{spec['kind']}={d['name']}" for d in spec["devices"]]
        return cdi_reader.CdiRegistry([folder], stat_device=look).inject(names).devices


def _nodes(paths: list[str]) -> dict[str, Any]:
    return {"deviceNodes": [{"path": p} for p in paths]} if paths else {"env": ["A=1"]}


def named(spec: dict[str, Any]) -> set[str]:
    """Every device node that a document names anywhere."""
    edits = [spec.get("containerEdits", {}), *(d["containerEdits"] for d in spec["devices"])]
    return {n["path"] for e in edits for n in e.get("deviceNodes", [])}


@pytest.fixture
def machine(lives: Lives, tmp_path: Path) -> Machine:
    return Machine(lives, tmp_path)


@pytest.mark.parametrize("backend", ["nvml", "nvml=mig"])
@pytest.mark.parametrize("form", ["index", "uuid", "hoisted"])
def test_neither_of_two_tenants_gets_the_others_capabilities(
    machine: Machine, form: str, backend: str
) -> None:
    machine.document(form)
    if backend == "nvml=mig":
        (machine.root / "state").write_text(INSTANCES)
    big, small = machine.live(["prepare", "one", BIG], ["prepare", "two", SMALL], backend=backend)
    assert (big["error"], small["error"]) == ("", "")
    assert not set(OF_SMALL) & named(big["spec"])
    assert not set(OF_BIG) & named(small["spec"])
    for answer, own in ((big, OF_BIG), (small, OF_SMALL)):
        found = machine.container(answer["spec"])
        assert sorted(d.path for d in found) == sorted(["/dev/nvidia0", *own, *SHARED])
        capabilities = {d.path: (d.type, d.major, d.minor) for d in found if d.path in own}
        assert capabilities == {p: ("c", 237, int(p.rpartition("cap")[2])) for p in own}


@pytest.mark.parametrize("form", ["index", "uuid", "hoisted"])
def test_a_whole_gpu_gets_no_capability_of_what_was_there_before(machine: Machine, form: str) -> None:
    machine.document(form)
    (whole,) = machine.live(["prepare", "one", GPU])
    assert not {*OF_BIG, *OF_SMALL} & named(whole["spec"])
    assert sorted(d.path for d in machine.container(whole["spec"])) == sorted(["/dev/nvidia0", *SHARED])


def test_a_claim_of_two_parts_has_the_capabilities_of_both_alone(machine: Machine) -> None:
    machine.document("index")
    other = f"{GPU}-mig-1g-10gb-1"
    third, both = machine.live(["prepare", "one", other], ["prepare", "two", f"{BIG},{SMALL}"])
    assert (third["error"], both["error"]) == ("", "")
    devices = [d["containerEdits"]["deviceNodes"] for d in both["spec"]["devices"]]
    assert [[n["path"] for n in d] for d in devices] == [
        ["/dev/nvidia0", *OF_BIG],
        ["/dev/nvidia0", *OF_SMALL],
    ]
    assert named(both["spec"]) == {"/dev/nvidia0", *OF_BIG, *OF_SMALL, *SHARED}
    assert not {*OF_BIG, *OF_SMALL} & named(third["spec"])


def test_drm_nodes_are_the_whole_gpus(machine: Machine) -> None:
    drm = ["/dev/dri/card1", "/dev/dri/renderD128"]
    for path in drm:
        name = path.rpartition("/")[2]
        (machine.root / "sys/bus/pci/devices/0000:07:00.0/drm" / name).mkdir(parents=True)
    machine.document("index", **{H100: ["/dev/nvidia0", *drm]})
    part, _, whole = machine.live(["prepare", "one", BIG], ["unprepare", "one"], ["prepare", "two", GPU])
    assert named(part["spec"]) == {"/dev/nvidia0", *OF_BIG, *SHARED}
    assert named(whole["spec"]) == {"/dev/nvidia0", *drm, *SHARED}


def test_capability_nodes_are_written_with_type_and_numbers(machine: Machine) -> None:
    big, again, _ = machine.live(["prepare", "one", BIG], ["prepare", "one", BIG], ["unprepare", "one"])
    assert big == again
    listed = big["spec"]["devices"][0]["containerEdits"]["deviceNodes"]
    nodes = [n for n in listed if n["path"] not in SHARED]
    numbers = {"type": "c", "major": 237, "fileMode": 0o444, "permissions": "rw"}
    assert nodes == [
        {"path": "/dev/nvidia0"},
        {"path": OF_BIG[0], "minor": 12, **numbers},
        {"path": OF_BIG[1], "minor": 13, **numbers},
    ]


@pytest.mark.long
@pytest.mark.parametrize("backend", ["nvml", "nvml=mig"])
def test_numbers_are_not_kept_over_a_reboot(machine: Machine, backend: str) -> None:
    """The kernel may assign another major number, and the old one is then another driver's."""
    boot = machine.root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("0a0a\n")
    if backend == "nvml=mig":
        (machine.root / "state").write_text(INSTANCES)
    (before,) = machine.live(["prepare", "one", BIG], backend=backend)
    boot.write_text("0b0b\n")
    (machine.root / "proc/devices").write_text("236 nvidia-caps\n237 somebody-elses\n")
    machine.live(["devices"], backend=backend)
    assert before["error"] == ""
    for file in (machine.root / "cdi").iterdir():
        assert '"major": 237' not in file.read_text()
