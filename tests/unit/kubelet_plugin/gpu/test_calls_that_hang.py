"""A control that hangs keeps its own devices, and no other control's."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dra_driver.errors import PrepareError
from kubelet_plugin.gpu.calls import GpuCalls


class Control:
    def __init__(self, gpu: str, hold: threading.Event | None = None) -> None:
        self._gpu = gpu
        self._hold = hold
        self.asked = 0

    def has(self, gpu: str) -> bool:
        self.asked += 1
        if self._hold is not None:
            self._hold.wait(30)
        return gpu == self._gpu


class Apart:
    """A control whose devices do not wait for each other, and daemons, which never do."""

    lanes_of_devices = True

    def __init__(self, hold: threading.Event) -> None:
        self._hold = hold
        self.asked: list[str] = []

    def has(self, gpu: str) -> bool:
        self.asked.append(gpu)
        if gpu.startswith("stuck"):
            self._hold.wait(30)
        return True


@pytest.mark.parametrize("of", ["a control", "the daemons"])
def test_a_device_that_hangs_costs_no_other_of_its_control(of: str) -> None:
    hold = threading.Event()
    target = Apart(hold)
    none: Any = Control("none")
    as_control: Any = target

    async def main() -> None:
        if of == "a control":
            calls = GpuCalls([as_control], executor, seconds=0.1)
        else:
            calls = GpuCalls([none], executor, seconds=0.1, daemons=as_control)
        for number in range(5):
            for _ in range(2):
                with pytest.raises(PrepareError, match=f"device stuck-{number}: .* does not answer"):
                    await calls.call(target.has, f"stuck-{number}")
            assert await calls.call(target.has, "free")
        assert target.asked == [w for n in range(5) for w in (f"stuck-{n}", "free")]

    executor = ThreadPoolExecutor(4)
    try:
        asyncio.run(main())
    finally:
        hold.set()
        executor.shutdown()


def test_a_control_that_hangs_costs_its_own_devices() -> None:
    hold = threading.Event()
    broken, good = Control("A", hold), Control("B")
    controls: Any = [broken, good]

    async def main() -> None:
        calls = GpuCalls(controls, executor, seconds=0.1)
        for _ in range(2):
            other: Any = await calls.control("B")
            assert other is good
        assert broken.asked == 1, "it is not asked again before it has answered"
        with pytest.raises(PrepareError, match="does not answer"):
            await calls.control("A")
        hold.set()
        async with asyncio.timeout(30):
            while True:
                try:
                    found: Any = await calls.control("A")
                    break
                except PrepareError:
                    await asyncio.sleep(0.01)
        assert found is broken

    executor = ThreadPoolExecutor(4)
    try:
        asyncio.run(main())
    finally:
        hold.set()
        executor.shutdown()
