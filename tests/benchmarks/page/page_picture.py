"""Makes docs/page.webp: ``.venv/bin/python tests/benchmarks/page/page_picture.py``."""

from __future__ import annotations

import asyncio
import base64
import math
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests" / "support" / room) for room in ("", "controller", "documents")]

from browser import browsing  # noqa: E402  # found by the line above
from page_fleet import fleet_of, shown  # noqa: E402


async def main() -> None:
    """Show forty nodes, let the trend have two hours, and write what a browser shows."""
    with tempfile.TemporaryDirectory() as folder:
        async with shown(fleet_of(40)) as page_of:
            waves = [round(8 * math.sin(i / 9)) for i in range(120)]
            page_of.trend(
                (1, 11, 136 + wave + i // 9, 0, 140 - wave - i // 9, 112 + wave, 3 + i % 40 // 20)
                for i, wave in enumerate(waves)
            )
            async with browsing(Path(folder), page_of.url) as page:
                size = {"width": 1200, "height": 800, "deviceScaleFactor": 1, "mobile": False}
                await page.call("Emulation.setDeviceMetricsOverride", **size)
                await page.until("document.querySelectorAll('.map-head').length > 1")
                await page.until("document.querySelectorAll('.spark').length === 5")
                await asyncio.sleep(1.0)
                shot = await page.call("Page.captureScreenshot", format="webp", quality=80)
    (ROOT / "docs" / "page.webp").write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    asyncio.run(main())
