"""An answer that is dear is made once for many."""

from __future__ import annotations

import asyncio

import pytest
import virtual_time

from dra_driver.serving import Recent


class Kitchen:
    """Makes answers, each in a second, and counts them."""

    def __init__(self) -> None:
        self.made = 0
        self.broken = False

    async def make(self) -> bytes:
        await asyncio.sleep(1)
        if self.broken:
            raise OSError("broken")
        self.made += 1
        return str(self.made).encode()


def test_it_is_given_again_for_a_while() -> None:
    async def scenario() -> None:
        kitchen = Kitchen()
        recent = Recent(kitchen.make, seconds=5)
        assert [await recent.get() for _ in range(3)] == [b"1"] * 3
        await asyncio.sleep(6)
        assert await recent.get() == b"2"

    virtual_time.run(scenario())


def test_those_who_wait_get_the_one_that_was_begun_after_they_came() -> None:
    async def scenario() -> None:
        kitchen = Kitchen()
        recent = Recent(kitchen.make, seconds=0)
        first = asyncio.create_task(recent.get())
        await asyncio.sleep(0.5)
        late = [asyncio.create_task(recent.get()) for _ in range(10)]
        assert await first == b"1"
        assert {await task for task in late} == {b"2"}

    virtual_time.run(scenario())


def test_an_error_is_not_an_answer() -> None:
    async def scenario() -> None:
        kitchen = Kitchen()
        recent = Recent(kitchen.make, seconds=5)
        kitchen.broken = True
        with pytest.raises(OSError, match="broken"):
            await recent.get()
        kitchen.broken = False
        assert await recent.get() == b"1"

    virtual_time.run(scenario())
