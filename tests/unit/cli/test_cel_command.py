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
