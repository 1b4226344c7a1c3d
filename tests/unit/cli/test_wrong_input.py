"""What commands say to wrong input: what was given, what is wanted, before any cluster is asked."""

from __future__ import annotations

import json
from pathlib import Path

import builders
import pytest

from dra_driver.cli.main import main


@pytest.fixture(autouse=True)
def without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what is printed to stderr; the exit status is 2."""
    status: object
    try:
        status = main(arguments)
    except SystemExit as e:  # argparse
        status = e.code
    assert status == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["cel", "device.driver =="], "dra-driver cel: not a selector: 1:17: syntax error"),
        (["cel", "1 + 1"], "not a selector: "),
        (["cel", "true", "--cases", "x"], "give an EXPRESSION, or --cases FILE, not both"),
        (["cel"], "give an EXPRESSION, or --cases FILE\n"),
        (["explain", "-A", "claim/x"], "KIND/NAME is of one namespace (-n), -A is for the claims of all"),
        (
            ["explain", "-f", "a.yaml", "claim/x"],
            "-f takes every word after it as a file: put claim/x",
        ),
        (["explain", "train"], "'train': KIND/NAME is wanted, such as pod/NAME; KIND is pod, claim, deploy"),
        (["plan", "--gpus", "x"], "--gpus x: expected a number from 1 to 32"),
        (["demo", "--nodes", "x"], "argument --nodes: 'x': expected a whole number"),
        (["simulate", "--days", "1.5"], "argument --days: '1.5': expected a whole number"),
        (["simulate", "--seed", "x"], "argument --seed: 'x': expected a whole number"),
        (["bench", "allocator", "--claims", "x"], "argument --claims: 'x': expected a whole number"),
    ],
)
def test_wrong_input_is_named_with_what_is_wanted(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert expected in said(capsys, *arguments)


def test_files_are_named_by_what_they_lack(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "class.json"
    file.write_text(json.dumps(builders.device_class("gpu")))
    assert f"-f {file}: there is no ResourceSlice" in said(capsys, "cel", "true", "-f", str(file))
    file.write_text('{"cases"')
    text = said(capsys, "cel", "--cases", str(file))
    assert f"--cases {file}: not a file of CEL cases: Input data was truncated" in text


def test_a_new_user_is_told_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Without a cluster, dra-driver demo shows all of it." in text
    assert "dra-driver explain pod/NAME why a pod waits" in text
