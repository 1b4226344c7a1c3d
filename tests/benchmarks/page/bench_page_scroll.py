"""The page of 5,000 nodes in Chromium: how long until it is drawn, and frames while it scrolls.

Beside the intervals of frames stands the time that drawing itself takes in a frame: the intervals are also
those of a machine without a graphics processor that has other work.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from browser import BROWSER, browsing
from page_fleet import fleet_of, shown

Row = dict[str, Any]
NODES = 5_000
_SCROLL = """(async () => {
  const frames = [], work = [];
  const real = window.requestAnimationFrame.bind(window);
  // What the page itself draws in a frame; scroll events ask for it.
  window.requestAnimationFrame = (draw) => real((at) => {
    const begin = performance.now();
    draw(at);
    work.push(performance.now() - begin);
  });
  window.scrollTo(0, 0);
  let last = await new Promise(real);
  for (let i = 0; i < 240; i += 1) {
    window.scrollBy(0, 60);
    const now = await new Promise(real);
    frames.push(now - last);
    last = now;
  }
  window.requestAnimationFrame = real;
  const at = (all, p) => Math.min(all.length - 1, Math.floor(all.length * p));
  const part = (all, p) => [...all].sort((a, b) => a - b)[at(all, p)] || 0;
  return { median: part(frames, .5), p95: part(frames, .95), work: part(work, .95), most: part(work, 1),
    elements: document.querySelectorAll('*').length, to: window.scrollY };
})()"""


async def _measure(nodes: int, folder: Path) -> list[Row]:
    rows: list[Row] = []
    async with shown(fleet_of(nodes, racks=40)) as page_of:
        begin = time.monotonic()
        async with browsing(folder, page_of.url) as page:
            size = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            await page.call("Emulation.setDeviceMetricsOverride", **size)
            await page.until(
                f"document.querySelector('.kpi-text')?.textContent === 'on {nodes:,} of {nodes:,} nodes'"
            )
            rows.append(
                {"name": f"page drawn, {nodes} nodes", "value": time.monotonic() - begin, "unit": "s"}
            )
            for what, path in (("map", "#/fleet"), ("table of devices", "#/devices")):
                await page.evaluate(f"location.hash = '{path}'")
                await asyncio.sleep(2.0)
                found = await page.evaluate(_SCROLL)
                for key, name, unit in (
                    ("median", "frame, median", "ms"),
                    ("p95", "frame, 95th of 100", "ms"),
                    ("work", "drawing in a frame, 95th of 100", "ms"),
                    ("most", "drawing in a frame, at most", "ms"),
                    ("elements", "elements in the page", ""),
                ):
                    row = {"name": f"{what} scrolls, {nodes} nodes: {name}", "value": round(found[key], 2)}
                    rows.append({**row, "unit": unit})
    return rows


def run(nodes: int = NODES) -> Iterator[Row]:
    """Yield the rows; none where there is no browser."""
    if BROWSER is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        yield from asyncio.run(_measure(nodes, Path(folder)))
