"""Times that double: until the longest one, and without an overflow."""

from __future__ import annotations

import pytest

from dra_driver.doubling import doubled


@pytest.mark.parametrize(
    ("times", "seconds"), [(-2, 5.0), (0, 5.0), (1, 10.0), (2, 20.0), (3, 30.0), (5_000, 30.0)]
)
def test_a_time_doubles_until_it_is_the_longest(times: int, seconds: float) -> None:
    assert doubled(5.0, times, 30.0) == seconds


def test_the_longest_time_may_be_shorter_than_the_first_one() -> None:
    assert doubled(5.0, 0, 2.0) == 2.0
