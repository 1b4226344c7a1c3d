"""Steps of tests that look at the page in a browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from browser import Page, browsing
from fake_client import FakeClient
from page_fleet import Shown, shown

__all__ = ["go", "press", "run", "screen"]


def run(
    folder: Path,
    cluster: FakeClient,
    scenario: Callable[[Page, Shown], Awaitable[None]],
    path: str = "#/fleet",
    plan: bytes = b"",
) -> None:
    """Show the page of a cluster, and play the scenario; the page must complain of nothing."""

    async def main() -> None:
        async with (
            asyncio.timeout(240),
            shown(cluster, plan) as page_of,
            browsing(folder, page_of.url + path) as page,
        ):
            await page.until("document.getElementById('connection')?.dataset.state === 'live'")
            await scenario(page, page_of)
            assert page.complaints == []

    asyncio.run(main())


async def screen(page: Page, width: int, height: int = 800, *, dark: bool = False) -> None:
    """Set the size of the screen, in CSS pixels, and the colours of the system."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    await page.call("Emulation.setDeviceMetricsOverride", **size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await page.call("Emulation.setEmulatedMedia", features=[scheme])


async def go(page: Page, path: str) -> None:
    """Show a view, and wait until it is drawn."""
    await page.evaluate(f"location.hash = {json.dumps(path)}")
    await page.until(
        "document.querySelector('main h1') && !document.querySelector('main').innerText.includes('Loading')"
        f" && location.hash === {json.dumps(path)}"
    )
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


async def press(page: Page, key: str, code: int, text: str = "") -> None:
    """Press a key and let go of it."""
    for kind in ("keyDown", "keyUp"):
        more = {"text": text} if text and kind == "keyDown" else {}
        await page.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)
