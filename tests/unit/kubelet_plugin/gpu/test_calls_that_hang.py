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
