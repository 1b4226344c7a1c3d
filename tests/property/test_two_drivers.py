"""Several installations of this driver on one node: one of them publishes a device, however late each sees.

Each has a publisher that lives on while its plugin is dead, as a controller does. Kubelets delete the slices
of plugins that are dead, claims go on holding what they have, publishers restart and remember what is noted.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import OtherDriverNote
from dra_driver.ownership import PoolID
from dra_driver.publishing import LEAVING_SECONDS, Elsewhere
from dra_driver.publishing.other_drivers import look_at_other_drivers

LATEST = 5
"""Seconds within which what is written is seen."""
SHORT = int(LEAVING_SECONDS) - 2 * LATEST


class Installation:
    """A driver with one device, ``gpu``."""

    def __init__(self, name: str) -> None:
        self.name = DriverName(name)
        self.pool = PoolID(self.name, PoolName("n1"))
        self.alive_at = 0
        self.offers = False
        self.since = 0
        self.notes: tuple[OtherDriverNote, ...] = ()
        self.gone: Mapping[tuple[DriverName, str], float] = {}
        # When the claim that holds the device was allocated; None: none does.
        self.claim: int | None = None


class Node:
    """Time goes on in steps of a second. Each driver sees a state of the last seconds."""

    def __init__(self, chance: random.Random, number: int) -> None:
        self.chance = chance
        self.now = 0
        self.drivers = [Installation(f"{letter}.example") for letter in "abcd"[:number]]
        chance.shuffle(self.drivers)
        self.history: deque[tuple[frozenset[PoolID], frozenset[PoolID]]] = deque(maxlen=LATEST)
        self.overlap = 0
        self.longest_overlap = 0

    def step(self) -> None:
        offering = frozenset(d.pool for d in self.drivers if d.offers)
        claimed = frozenset(d.pool for d in self.drivers if d.claim is not None)
        self.history.append((offering, claimed))
        for driver in self.chance.sample(self.drivers, len(self.drivers)):
            self.look(driver)
        number = sum(d.offers for d in self.drivers)
        self.overlap = self.overlap + 1 if number > 1 else 0
        self.longest_overlap = max(self.longest_overlap, self.overlap)
        self.now += 1

    def look(self, driver: Installation) -> None:
        offering, _ = self.chance.choice(self.history)
        # Claims are seen late as well, but those that were made while the device was on offer are older.
        _, claimed = self.history[-1]
        others = offering - {driver.pool}
        noted = {PoolID(n.driver, pool) for n in driver.notes for pool in n.pools}
        found = look_at_other_drivers(
            driver.notes,
            Elsewhere({"gpu": sorted(others)} if others else {}, frozenset((noted & claimed) - offering)),
            driver=driver.name,
            gone=driver.gone,
            now=self.now,
        )
        driver.gone = found.gone
        driver.notes = tuple(
            OtherDriverNote(driver=name, pools=(PoolName("n1"),), devices=("gpu",))
            for name in sorted({o.driver for o in found.found if "gpu" in o.devices})
        )
        wants = not found.found and self.now >= driver.alive_at
        if wants and not driver.offers:
            for other in self.drivers:
                seen_late = other.offers and self.now - other.since <= LATEST
                assert not other.offers or seen_late, f"{driver.name} takes what {other.name} has"
            driver.since = self.now
        driver.offers = wants if self.now >= driver.alive_at else driver.offers and not found.found

    def allocate(self) -> None:
        """kube-scheduler, or a controller, gives the device of a driver to a claim."""
        driver = self.chance.choice(self.drivers)
        if not driver.offers or driver.claim is not None:
            return
        driver.claim = self.now
        for other in self.drivers:
            if other is not driver and other.claim is not None:
                # Both were on offer at one moment, for as long as it takes to see that.
                assert self.now - driver.since <= 2 * LATEST, "given away twice"

    def end(self) -> None:
        self.chance.choice(self.drivers).claim = None

    def restart(self) -> None:
        """A publisher starts anew."""
        self.chance.choice(self.drivers).gone = {}

    def wipe(self, *, everyone: bool, seconds: int) -> None:
        """A kubelet deletes slices; the plugins register again after so many seconds."""
        for driver in self.drivers if everyone else [self.chance.choice(self.drivers)]:
            driver.offers = False
            driver.alive_at = self.now + seconds + self.chance.randrange(3)


@settings(max_examples=examples(300), deadline=None)
@given(number=st.integers(2, 4), seed=st.integers(0, 10**9))
def test_one_device_is_published_by_one_driver(number: int, seed: int) -> None:
    chance = random.Random(seed)
    node = Node(chance, number)
    for _ in range(4 * LATEST):
        node.step()
    for _ in range(12):
        for _ in range(chance.choice((1, 3, LATEST, 60, int(LEAVING_SECONDS)))):
            node.step()
            if chance.random() < 0.1:
                node.allocate()
        chance.choice(
            (
                node.end,
                node.restart,
                lambda: node.wipe(everyone=True, seconds=chance.randrange(SHORT)),
                lambda: node.wipe(everyone=False, seconds=chance.randrange(SHORT)),
                lambda: node.wipe(everyone=False, seconds=3 * int(LEAVING_SECONDS)),
            )
        )()
    # In the end all are there, and nothing holds the device of one that does not publish it.
    for driver in node.drivers:
        driver.claim = None
    for _ in range((number + 3) * int(LEAVING_SECONDS)):
        node.step()
    assert [d.offers for d in node.drivers].count(True) == 1
    assert node.longest_overlap <= 2 * LATEST
    for _ in range(2 * int(LEAVING_SECONDS)):
        before = [d.offers for d in node.drivers]
        node.step()
        assert [d.offers for d in node.drivers] == before
