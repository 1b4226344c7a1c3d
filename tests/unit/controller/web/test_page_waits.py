"""What waits, of which there may be thousands: looked at for all readers together, and filtered."""

from __future__ import annotations

import pytest

from controller.web.waits import LOOK_SECONDS, Looked, Waits, waiting_filter
from dra_driver.fleet import WaitingClaim


class Slow:
    """A look that takes a while of a clock that is turned by hand."""

    def __init__(self, cost: float) -> None:
        self.time = 100.0
        self.looks = 0
        self.looked = Looked(self._look, lambda: self.time)
        self._cost = cost

    def _look(self) -> Waits:
        self.looks += 1
        self.time += self._cost
        return Waits(total=self.looks)


def test_many_readers_cost_one_look() -> None:
    slow = Slow(0.001)
    assert {slow.looked.get().total for _ in range(30)} == {1}
    slow.looked.stale = True
    slow.time += 1.0
    assert {slow.looked.get().total for _ in range(30)} == {2}
    assert slow.looks == 2


def test_reasons_are_looked_at_again_although_nothing_has_changed() -> None:
    slow = Slow(0.001)
    slow.looked.get()
    slow.time += LOOK_SECONDS / 2
    assert slow.looked.get().total == 1
    slow.time += LOOK_SECONDS
    assert slow.looked.get().total == 2


def test_looking_takes_a_tenth_of_the_time_however_much_changes() -> None:
    slow = Slow(0.5)
    begin = slow.time
    while slow.time < begin + 100.0:
        slow.looked.stale = True
        slow.looked.get()
        slow.time += 0.01
    assert slow.looks * 0.5 <= 0.1 * 100.0 + 0.5
    assert slow.looks > 15
    # The last change is not lost: who asks later sees it.
    slow.looked.stale = True
    slow.time += 10.0
    before = slow.looks
    slow.looked.get()
    assert (slow.looks, slow.looked.stale) == (before + 1, False)


CLAIM = WaitingClaim("team-a/train", ("worker-0", "worker-1"), "0 of 9 nodes have NVIDIA H100 80GB")


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ("", True),
        ("  ", True),
        ("TRAIN h100", True),
        ("train b200", False),
        ("team-a/worker-1", True),
        ("ns:team-a pod:worker", True),
        ("ns:team-b", False),
        ("ns:worker", False),
        ("claim:team-a/train state:waits", True),
        ("state:free", False),
        ('"H100 80GB"', True),
        ('"80GB H100"', False),
        ('pod:"worker-1"', True),
        ("model:h100", False),  # a claim that waits has no model: it is looked for as it stands
        ('"', True),
        (":", False),
        ("ns:", True),
        (":team-a", False),
    ],
)
def test_filters_take_the_words_of_the_page(query: str, *, matches: bool) -> None:
    assert waiting_filter(query)(CLAIM) is matches
