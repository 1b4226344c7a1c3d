"""``dra-driver cel``."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from dra_driver.cli import main

CASES = {
    "cases": [
        {
            "name": "one",
            "expression": 'device.attributes["d"].model == "A100"',
            "device": {"driver": "d", "attributes": {"model": {"string": "A100"}}, "capacity": None},
        },
        {"name": "two", "expression": "device.attributes.d.model == 1"},
        {"name": "three", "expression": "1 +"},
        {"name": "four", "expression": "type(device.driver) == int"},
    ]
}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main.main(["cel", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("packed", [False, True])
def test_outcomes_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], packed: bool) -> None:
    file = tmp_path / "cases"
    data = json.dumps(CASES).encode()
    file.write_bytes(gzip.compress(data) if packed else data)
    code, out, _ = run(capsys, "--cases", str(file), "--output", "json")
    assert code == 0
    found = {c.pop("name"): c for c in json.loads(out)["cases"]}
    assert {k: (c["compile_error"], c["runtime_error"], c["match"]) for k, c in found.items()} == {
        "one": (False, False, True),
        "two": (False, True, None),
        "three": (True, False, None),
        "four": (False, False, False),
    }
    assert [k for k, c in found.items() if c["too_expensive"]] == ["four"]
    assert not any(c["too_long"] for c in found.values())


def test_a_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(CASES))
    code, out, _ = run(capsys, "--cases", str(file))
    assert code == 0
    assert "two     runtime error   no such key: model" in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"{", "not a file of CEL cases"),
        (b'{"cases": [{"name": 1}]}', r"cases\[0\]\.name"),
        (b'{"cases": [{"name": "a", "expression": "true", "env": "old"}]}', "stored and new are allowed"),
        (gzip.compress(b"{}" * 100, mtime=0)[:-9], "damaged gzip data"),
    ],
)
def test_a_bad_file_is_named_and_the_status_is_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, message: str
) -> None:
    file = tmp_path / "cases.json"
    if content is not None:
        file.write_bytes(content)
    code, out, err = run(capsys, "--cases", str(file), "--output", "json")
    assert code == 2
    assert out == ""
    assert str(file) in err

    assert re.search(message, err)


SLICES = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n1}
spec:
  driver: gpu.example.com
  pool: {name: n1, generation: 2, resourceSliceCount: 1}
  nodeName: n1
  devices:
  - {name: a, attributes: {model: {string: H100}}, capacity: {memory: {value: 80Gi}}}
  - {name: b, attributes: {model: {string: H100}}, capacity: {memory: {value: 80Gi}}}
  - {name: c, capacity: {memory: {value: 24Gi}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: old}
spec:
  driver: gpu.example.com
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  nodeName: n1
  devices: [{name: gone}]
"""
BIG = 'device.capacity["gpu.example.com"].memory.compareTo(quantity("%s")) >= 0'


@pytest.fixture
def slices(tmp_path: Path) -> str:
    path = tmp_path / "slices.yaml"
    path.write_text(SLICES)
    return str(path)


def test_equal_devices_are_one_row_with_what_was_seen_and_the_cost(
    slices: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["cel", BIG % "32Gi", "-f", slices]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("selects 2 of 3 devices; estimated cost ")
    assert [line.split()[:4] for line in lines[2:]] == [
        ["RESULT", "DEVICES", "SAW", "COST"],
        ["selected", "2", "memory", "80Gi"],
        ["not", "selected", "1", "memory"],
    ]
    assert main.main(["cel", BIG % "32Gi", "-f", slices, "-o", "wide"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3 + 3


def test_no_device_and_errors_show_in_the_exit_status(
    slices: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["cel", BIG % "1Ti", "-f", slices]) == 1
    capsys.readouterr()
    assert (
        main.main(["cel", 'device.attributes["gpu.example.com"].model == "H100"', "-f", slices, "-o", "json"])
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert [(d["device"][-1], d["selected"], d["error"]) for d in data["devices"]] == [
        ("a", True, ""),
        ("b", True, ""),
        ("c", False, "no such key: model"),
    ]
    assert all(0 < d["cost"] <= data["costLimit"] for d in data["devices"])
    assert main.main(["cel", "device.", "-f", slices]) == 2
    assert "dra-driver cel: not a selector: " in capsys.readouterr().err
    assert main.main(["cel"]) == 2
    assert "give an EXPRESSION, or --cases FILE" in capsys.readouterr().err


def test_a_selector_that_an_api_server_refuses_is_said_to_be(
    slices: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nested = "device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, c.contains(b + a))))"
    assert main.main(["cel", nested, "-f", slices]) in (0, 1)
    assert "an API server refuses it in a new object: too complex" in capsys.readouterr().out
