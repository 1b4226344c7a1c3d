"""``dra-driver cdi``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver import cdi
from dra_driver.api import codec
from dra_driver.cli.main import main
from dra_driver.preparation import RECORD_ANNOTATION, ClaimState, PreparedClaim

KIND = "k8s.gpu.dra-driver.dev/claim"


def document(folder: Path, name: str = "a", device: str = "claim-x_gpu_gpu-0", **more: Any) -> Path:
    claim = PreparedClaim(uid="uid-1", namespace="team", name="train", state=ClaimState.COMPLETED)  # type: ignore[arg-type]
    spec = cdi.Spec(
        cdi_version="0.6.0",
        kind=KIND,
        annotations={RECORD_ANNOTATION: codec.encode(claim).decode()},
        container_edits=cdi.ContainerEdits(env=("COMMON=1",)),
        devices=(cdi.Device(name=device, container_edits=cdi.ContainerEdits(env=("OWN=1",))),),
    )
    path = folder / f"{name}.json"
    path.write_bytes(cdi.encode(spec))
    return path


def foreign(folder: Path, name: str = "nvidia.yaml", **more: Any) -> Path:
    body = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
        **more,
    }
    path = folder / name
    path.write_text(yaml.safe_dump(body))
    return path


def run(folder: Path, action: str, *arguments: str) -> int:
    return main(["cdi", action, "--cdi-dir", str(folder), *arguments])


def test_list_shows_devices_and_their_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document(tmp_path)
    foreign(tmp_path)
    (tmp_path / ".half.tmp").write_text("{")
    assert run(tmp_path, "list") == 0
    header, ours, theirs = capsys.readouterr().out.splitlines()
    assert header.split() == ["DEVICE", "CLAIM", "CDI", "VERSION", "FILE"]
    assert ours.split()[:2] == [f"{KIND}=claim-x_gpu_gpu-0", "team/train"]
    assert theirs.split()[:2] == ["nvidia.com/gpu=0", "-"]
    assert run(tmp_path, "list", "--output", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["devices"]) == 2


def test_an_empty_node_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "absent", "list") == 0
    assert run(tmp_path, "validate") == 0
    assert capsys.readouterr().out == "No CDI devices.\nNo CDI documents.\n"


def test_validate_names_what_a_runtime_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document(tmp_path)
    assert run(tmp_path, "validate") == 0
    assert capsys.readouterr().out == f"{tmp_path}/a.json: valid\n"
    foreign(tmp_path, "x.yaml", kind="example.com/x")
    foreign(tmp_path, "y.yaml", unknownField=1)
    (tmp_path / "z.yaml").write_text("a: [")
    assert run(tmp_path, "validate") == 1
    out = capsys.readouterr().out.splitlines()
    assert "two or more letters" in out[1]
    assert "unknownField" in out[2]
    assert "not YAML" in out[3]


def test_validate_finds_names_that_two_documents_define(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document(tmp_path, "a")
    document(tmp_path, "b")
    assert run(tmp_path, "validate") == 1
    assert "is in a.json too" in capsys.readouterr().out


def test_validate_takes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cdi", "validate", str(document(tmp_path))]) == 0
    assert main(["cdi", "validate", str(tmp_path / "absent.json"), "-o", "json"]) == 1
    assert "cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("wanted", [f"{KIND}=claim-x_gpu_gpu-0", "team/train", "uid-1"])
def test_show_merges_what_a_container_gets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wanted: str
) -> None:
    document(tmp_path)
    assert run(tmp_path, "show", wanted) == 0
    (shown,) = yaml.safe_load(capsys.readouterr().out)["devices"]
    assert shown["containerEdits"] == {"env": ["COMMON=1", "OWN=1"]}
    assert shown["claim"] == "team/train"


def test_show_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "show", "nvidia.com/gpu=9") == 2
    assert "no such CDI device" in capsys.readouterr().err


def _bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    return "\n".join(lines)


def test_hostile_and_broken_files_are_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None of them may hang the command, fill the memory or reach the terminal."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "gone.yaml").symlink_to("/nonexistent")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "empty.yaml").write_bytes(b"")
    (tmp_path / "bomb.yaml").write_text(_bomb())
    (tmp_path / "self.yaml").write_text("a: &x [*x]\n")
    (tmp_path / "deep.yaml").write_text("[" * 100_000)
    (tmp_path / "deep.json").write_text('{"devices":' * 50_000)
    (tmp_path / "types.json").write_text('{"cdiVersion": 9, "kind": []}')
    # To the base of 60, in time that grows with the square of the digits.
    (tmp_path / "sixty.yaml").write_text("a: 1" + ":1" * 1_000_000 + "\n")
    for number, tagged in enumerate(("!!int ''", "!!bool x", "!!timestamp x", "!!omap [x: 1]")):
        (tmp_path / f"tag{number}.yaml").write_text(f"a: {tagged}\n")
    (tmp_path / "float.yaml").write_text("a: 1" + ":1" * 10_000 + ".5\n")
    (tmp_path / "date.yaml").write_text("cdiVersion: 2020-01-01\n? [a]\n: b\n")
    evil = {
        "cdiVersion": "0.5.0",
        "kind": "vendor.com/class",
        "annotations": {"dra-driver.dev/prepared-claim": '{"uid": 1}'},
        "devices": [{"name": "\x1b]0;evil\x07", "containerEdits": {"env": ["A=1"]}}],
    }
    (tmp_path / "evil\x1b[31m.json").write_text(json.dumps(evil))
    for action in ("list", "validate"):
        code = main(["cdi", action, "--cdi-dir", str(tmp_path)])
        printed = capsys.readouterr().out
        assert code == (1 if action == "validate" else 0)
        assert "\x1b" not in printed
        assert "\x07" not in printed
        for path in tmp_path.iterdir():
            assert path.name.replace("\x1b", "\ufffd") in printed, f"{path.name} is not told of"
