"""A real browser, headless, spoken to through its DevTools protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-port=0",
    "--window-size=1100,800",
)


class Page:
    """One tab.

    Attributes:
        complaints: what the page wrote to its console as an error, and exceptions of its script.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []

    async def listen(self) -> None:
        """Hands answers to those who wait for them, until the browser ends."""
        async for message in self._socket:
            data = json.loads(message.data)
            if "id" in data:
                self._answers.pop(data["id"]).set_result(data)
            elif data["method"] == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(data["params"]["exceptionDetails"])[:2000])
            elif data["method"] == "Log.entryAdded" and data["params"]["entry"]["level"] == "error":
                self.complaints.append(json.dumps(data["params"]["entry"])[:2000])

    async def call(self, method: str, **params: Any) -> Any:
        """One command of the protocol."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        data = await answer
        assert "error" not in data, data
        return data["result"]

    async def evaluate(self, script: str) -> Any:
        """Value of a JavaScript expression."""
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, script: str, seconds: float = 60.0) -> Any:
        """Waits until the expression is true; its value."""
        value = None
        try:
            async with asyncio.timeout(seconds):
                while not (value := await self.evaluate(script)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            text = await self.evaluate("document.body.innerText")
            raise AssertionError(f"never true: {script}; the page says:\n{text}") from None
        return value

    async def screenshot(self) -> str:
        """The page as PNG, base64."""
        return str((await self.call("Page.captureScreenshot", format="png"))["data"])


@contextlib.asynccontextmanager
async def browsing(folder: Path, url: str) -> AsyncIterator[Page]:
    """Opens ``url`` in a browser of its own, whose profile lies in ``folder``."""
    assert BROWSER is not None
    flags = [*_FLAGS, f"--user-data-dir={folder}"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # it refuses to run as root with it
    process = await asyncio.create_subprocess_exec(
        BROWSER, *flags, "about:blank", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        port_file = folder / "DevToolsActivePort"
        async with asyncio.timeout(60):
            while not (port_file.exists() and port_file.read_text().count("\n")):
                await asyncio.sleep(0.05)
        port = port_file.read_text().splitlines()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                tabs = await response.json()
            address = next(t["webSocketDebuggerUrl"] for t in tabs if t["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                for domain in ("Runtime", "Log", "Page"):
                    await page.call(f"{domain}.enable")
                await page.call("Page.navigate", url=url)
                yield page
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(page.call("Browser.close"), 5)
                listening.cancel()
                await asyncio.wait([listening])
    finally:
        if process.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 5)
        if process.returncode is None:
            process.kill()
            await process.wait()
