"""Short runs of the crash test: ``make crash-test`` is the whole one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import crash_test


@pytest.mark.slow
@pytest.mark.parametrize("kills", [8, pytest.param(30, marks=pytest.mark.long)])
def test_kills_leave_nothing_behind(kills: int) -> None:
    figures = asyncio.run(crash_test.run(kills, seed=7, jobs=3, quiet=True))
    assert figures.texts == []
    assert figures.kills >= kills
