"""What a run of the tests shares among its processes, and what it leaves to the long tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from examples import one_of, parts, seeds, share
from once import once_in_a_run


class Factory:
    """The temporary folders of one process of a parallel run."""

    def __init__(self, run: Path, process: str) -> None:
        self._base = run / process
        self._base.mkdir()

    def getbasetemp(self) -> Path:
        return self._base


def test_what_one_process_has_made_the_others_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text(str(len(made)))
        if len(made) == 1:
            raise OSError("no room")

    first: Any
    second: Any
    first, second = (Factory(tmp_path, process) for process in ("gw0", "gw1"))
    with pytest.raises(OSError, match="no room"):
        once_in_a_run(first, "dear", make)
    # What was left unfinished is not taken for it.
    folders = {once_in_a_run(factory, "dear", make) for factory in (first, second, first)}
    assert [(f / "file").read_text() for f in folders] == ["2"]
    assert len(made) == 2
    assert once_in_a_run(second, "other", make) not in folders


def test_the_default_run_tries_some_and_the_long_tests_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def default(parameters: list[Any]) -> list[Any]:
        return [p.values[0] for p in parameters if pytest.mark.long not in p.marks]

    assert default(share("abcdef", 2)) == ["a", "b"]
    assert [len(p.marks) for p in share("abcd", 1, by_day=3)] == [0, 1, 1, 2]
    assert [len(p.marks) for p in share("abc", 0)] == [1, 1, 1]
    assert [len(p.marks) for p in parts(3, by_day=2)] == [0, 1, 2]
    assert default(one_of(3, "abcdefg")) == ["a", "d", "g"]
    assert [p.values[0] for p in one_of(3, "abcd")] == list("abcd")
    assert default(seeds("DRA_SOME_SEEDS", 5, first=2)) == [0, 1]
    monkeypatch.setenv("DRA_SOME_SEEDS", "4")
    assert seeds("DRA_SOME_SEEDS", 5, first=2) == [0, 1, 2, 3]
