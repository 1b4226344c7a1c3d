"""The page in a browser: screens from 1440 to 360 px, keys, links that show the same again, hostile texts.

Screens are compared by their boxes (where things are, how many stand beside each other, that nothing is wider
than the screen), not by pixels: fonts differ from machine to machine, and a comparison that lets other fonts
pass sees no fault of ours either.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any, cast

import builders
import pytest
from browser import BROWSER, Page, browsing
from fake_client import FakeClient
from page_fleet import DRIVER, EVIL, Shown, fleet_of, holding, shown, waiting
from page_steps import go, press, run, screen
from paths import PROJECT

from controller.web import CurrentFeed, Feed, Past, serve
from dra_driver.api.core import NODES
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.kube import SystemClock
from dra_driver.serving import Authorizer
from dra_driver.serving.authorization import Verdict

AXE = PROJECT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine"),
    pytest.mark.long,
]

PATHS = {
    "fleet": "#/fleet",
    "map": "#/fleet?layer=memory&size=s&group=none",
    "waiting": "#/waiting",
    "devices": "#/devices",
    "claims": "#/claims",
    "nodes": "#/nodes",
    "device": f"#/device/{DRIVER}/gpu-001/gpu-0",
    "claim": "#/claim/long/" + "c" * 200,
    "pod": "#/pod/serving/chat-large-0",
    "node": "#/node/gpu-001",
}
NARROW = "W" * 120


def cluster_with_long_names() -> FakeClient:
    """Names and reasons as long as the API allows, without a place to break."""
    cluster = fleet_of(12)
    holding(cluster, "long", "c" * 200, "gpu-001", "gpu-0")
    waiting(cluster, "n" * 63, "p" * 250, f"{NARROW} {EVIL}", priority=2_000_000_000, age=1e7)
    device = builders.device("d" * 63, "1234567Gi", attributes={"model": NARROW[:64], "type": "t" * 64})
    node = "x" * 200
    cluster.put(NODES, builders.node(node, labels={"example.com/rack": "r" * 63}))
    cluster.put(RESOURCE_SLICES, builders.resource_slice(node, device))
    return cluster


BOXES = """(() => {
  const box = (selector) => {
    const element = document.querySelector(selector);
    return element && element.checkVisibility() ? element.getBoundingClientRect() : null;
  };
  const beside = (selector) => {
    const all = [...document.querySelectorAll(selector)].map((e) => e.getBoundingClientRect());
    return all.filter((b) => Math.abs(b.top - all.at(-1).top) < 2).length;
  };
  const outside = [...document.querySelectorAll('main *, header *')].filter((element) => {
    const b = element.getBoundingClientRect();
    const cut = '.hidden, .skip, .scroll, .grid thead, .plain thead, .spark, .grid td > *';
    const clipped = element.closest(cut);
    return !clipped && b.width && element.checkVisibility() && (b.right > innerWidth + 1 || b.left < -1);
  });
  const small = [...document.querySelectorAll('button, select, input')].filter((e) => {
    const b = e.getBoundingClientRect();
    return e.checkVisibility() && (b.width < 24 || b.height < 24);
  });
  const title = document.querySelector('main h1').getBoundingClientRect();
  const nav = box('#views'), cards = box('.cards > .column'), past = box('.past');
  return {
    wide: document.documentElement.scrollWidth > innerWidth,
    outside: outside.slice(0, 5).map((e) => `${e.tagName}.${e.className}`),
    small: small.map((e) => e.id || e.textContent),
    nav: nav.top < 60 ? 'top' : Math.round(innerHeight - nav.bottom) === 0 ? 'bottom' : 'astray',
    kpis: beside('.kpi'),
    rows: document.querySelector('tr.row') ? getComputedStyle(document.querySelector('tr.row')).display : '',
    past: cards && past ? (past.left >= cards.right ? 'beside' : 'below') : '',
    covered: title.height > 2 && title.top < box('.top').bottom - 1,
  };
})()"""


def expected(width: int, view: str) -> dict[str, Any]:
    phone = width <= 720
    lists = view in ("waiting", "devices", "claims", "nodes")
    one = view in ("device", "claim", "pod", "node")
    return {
        "wide": False,
        "outside": [],
        "small": [],
        "nav": "bottom" if phone else "top",
        "kpis": (2 if phone else 5) if view in ("fleet", "map") else 0,
        "rows": ("grid" if phone else "table-row") if lists else "",
        "past": ("below" if width <= 860 else "beside") if one else "",
        "covered": False,
    }


@pytest.mark.parametrize("width", [1440, 1024, 390, 360])
def test_screens_are_laid_out_as_they_should_be(width: int, tmp_path: Path) -> None:
    async def scenario(page: Page, _: Shown) -> None:
        await screen(page, width)
        for view, path in PATHS.items():
            await go(page, path)
            assert {view: await page.evaluate(BOXES)} == {view: expected(width, view)}

    run(tmp_path, cluster_with_long_names(), scenario)


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_states_are_never_cut_or_broken(width: int, tmp_path: Path) -> None:
    cut = (
        "[...document.querySelectorAll('.c-state, .plain td[data-title=State] .value')]"
        ".filter((e) => e.scrollWidth > e.clientWidth && e.clientWidth || e.getClientRects().length > 1)"
        ".map((e) => e.textContent)"
    )

    async def scenario(page: Page, _: Shown) -> None:
        await screen(page, width)
        for view in ("devices", "claims", "node"):
            await go(page, PATHS[view])
            assert {view: await page.evaluate(cut)} == {view: []}

    run(tmp_path, cluster_with_long_names(), scenario)


@pytest.mark.parametrize("width", [1440, 390])
def test_claims_say_what_they_have_or_why_they_wait(width: int, tmp_path: Path) -> None:
    cluster = fleet_of(4)
    holding(cluster, "aaa", "part", "gpu-001", "gpu-0", share="20Gi")
    waiting(cluster, "aaa", "waits", "no node has memory of 141Gi")
    texts = (
        "[...document.querySelectorAll('.list-claims tr.row')].filter((e) => e.textContent.includes('aaa/'))"
        ".map((row) => [...row.cells].filter((e) => e.checkVisibility()).map((e) => e.textContent))"
    )

    async def scenario(page: Page, _: Shown) -> None:
        await screen(page, width)
        await go(page, "#/claims?q=ns:aaa")
        part, waits = await page.evaluate(texts)
        assert part == ["aaa/part", "◩ shared", "1", "NVIDIA H100 80GB HBM3", "gpu-001", "part"]
        nothing = ["–"] * (width > 720)
        assert waits == ["aaa/waits", "… waits", *nothing, "no node has memory of 141Gi", *nothing, "waits"]
        await go(page, "#/claims?q=state:shared")
        assert "aaa/part" in await page.evaluate("document.querySelector('main').innerText")

    run(tmp_path, cluster, scenario)


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: make page-test does it")
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (1440, True), (390, False), (390, True)])
def test_axe_finds_nothing(width: int, dark: bool, tmp_path: Path) -> None:
    async def scenario(page: Page, _: Shown) -> None:
        await screen(page, width, dark=dark)
        await page.evaluate(AXE.read_text() + "; undefined")
        found = {}
        for view, path in PATHS.items():
            await go(page, path)
            found[view] = await page.evaluate(
                "axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.map((v) =>"
                " `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200)).join(' | ')}`))"
            )
        assert found == {view: [] for view in PATHS}

    run(tmp_path, cluster_with_long_names(), scenario)


def test_hostile_texts_are_text_everywhere(tmp_path: Path) -> None:
    """Wherever a name, a label, a reason or a problem is drawn."""
    cluster = FakeClient()
    node = EVIL.replace(" ", "-")
    cluster.put(NODES, builders.node(node, labels={"rack": EVIL}, unschedulable=True))
    device = builders.device("gpu-0", EVIL, attributes={"model": EVIL, "type": EVIL})
    device["capacity"] = {"memory": {"value": "1Gi"}}
    cluster.put(RESOURCE_SLICES, builders.resource_slice(node, device))
    holding(cluster, "ns", EVIL, node, "gpu-0")
    waiting(cluster, "ns", f"w{EVIL}", EVIL)

    async def scenario(page: Page, page_of: Shown) -> None:
        for path in ("#/fleet?layer=model&group=rack", "#/waiting", "#/devices", "#/claims", "#/nodes"):
            await go(page, path)
            await page.until("document.querySelector('main').textContent.includes('<img')")
        await page.evaluate(f"location.hash = {json.dumps(f'#/device/{DRIVER}/{EVIL}/x?q={EVIL}')}")
        await page.until("document.querySelector('main').innerText.includes('ask for one of device')")
        assert await page.evaluate("document.images.length") == 1  # the page's own
        assert await page.evaluate("document.querySelectorAll('main script, main style').length") == 0
        # Markup that got in all the same would run nothing.
        await page.evaluate(
            "window.ran = 0; document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"ran=1\">')"
        )
        await asyncio.sleep(0.3)
        assert await page.evaluate("window.ran") == 0
        page.complaints.clear()

    run(tmp_path, cluster, scenario)


def test_everything_is_reached_by_keys(tmp_path: Path) -> None:
    async def scenario(page: Page, _: Shown) -> None:
        await page.until("document.querySelectorAll('.map-head').length === 4")
        await press(page, "Tab", 9)
        assert await page.evaluate("document.activeElement.id") == "skip"
        assert await page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
        await press(page, "Enter", 13, "\r")
        assert await page.evaluate("document.activeElement.id") == "main"

        # On the map: to the next node, down, to the next group; each is said in words.
        await page.evaluate("document.getElementById('map').focus()")
        said = "document.getElementById('map-option').textContent"
        assert (await page.evaluate(said)).startswith("r01, gpu-001: 8 devices")
        await press(page, "ArrowRight", 39)
        assert (await page.evaluate(said)).startswith("r01, gpu-002: ")
        await press(page, "n", 78, "n")
        assert (await page.evaluate(said)).startswith("r02, ")
        assert await page.evaluate("document.querySelector('.map-ring').checkVisibility()")
        await press(page, "End", 35)
        await press(page, "Enter", 13, "\r")
        await page.until("location.hash === '#/node/gpu-012' && document.activeElement.tagName === 'H1'")
        await page.until("document.querySelector('.plain a') !== null")
        await press(page, "Escape", 27)
        await page.until("location.hash === '#/fleet'")

        # To the filter, and away; in a table from row to row.
        await press(page, "/", 191, "/")
        assert await page.evaluate("document.activeElement.id") == "q"
        await page.call("Input.insertText", text="gpu-00")
        await page.until("location.hash.includes('q=gpu-00')")
        await page.until("document.getElementById('said').textContent.includes('of')")
        await press(page, "Escape", 27)
        await page.until("!location.hash.includes('q=')")

        # A filter typed on the page of an object shows the devices, and who types goes on typing.
        await page.evaluate("document.activeElement.blur()")
        await go(page, "#/node/gpu-012")
        await press(page, "/", 191, "/")
        await page.call("Input.insertText", text="gpu-00")
        await page.until("document.querySelector('tr.row a') && location.hash === '#/devices?q=gpu-00'")
        assert await page.evaluate("document.activeElement.id") == "q"
        await page.call("Input.insertText", text="3")
        await page.until("location.hash === '#/devices?q=gpu-003'")

        # The name of an object, and Enter: its page, with the focus on its heading.
        await page.evaluate("document.activeElement.blur()")
        await go(page, "#/fleet")
        await press(page, "/", 191, "/")
        await page.call("Input.insertText", text="gpu-003")
        await press(page, "Enter", 13, "\r")
        await page.until("location.hash === '#/node/gpu-003' && document.activeElement.tagName === 'H1'")

        await go(page, "#/devices")
        await page.evaluate("document.querySelector('tr.row a').focus()")
        await press(page, "ArrowDown", 40)
        assert await page.evaluate("document.activeElement.closest('tr').ariaRowIndex") == "3"

    run(tmp_path, fleet_of(12), scenario)


def test_a_link_shows_the_same_again(tmp_path: Path) -> None:
    async def scenario(page: Page, page_of: Shown) -> None:
        await page.until("document.querySelectorAll('.map-head').length === 4")

        async def set_to(id_: str, value: str) -> None:
            await page.evaluate(
                f"{{ const s = document.getElementById('{id_}'); s.value = {json.dumps(value)};"
                " s.dispatchEvent(new Event('change')) }"
            )

        await set_to("layer", "holder")
        await set_to("group", "model")
        await set_to("size", "m")
        await page.until("document.querySelector('[data-bucket=\"\"]') !== null")
        await page.evaluate("document.querySelector('[data-bucket=\"\"]').click()")
        await page.until("location.hash.includes('only=')")
        state = (
            "[...document.querySelectorAll('select')].map((s) => s.value).join() + '|' +"
            "[...document.querySelectorAll('.legend button')].map((b) => b.ariaPressed).join()"
        )
        before, link = await page.evaluate(state), await page.evaluate("location.href")
        assert before.startswith("holder,model,m|")
        assert "true" in before.split("|")[1]
        assert "false" in before.split("|")[1]
        await page.call("Page.navigate", url="about:blank")
        await page.until("location.href === 'about:blank'")
        await page.call("Page.navigate", url=link)
        await page.until(f"document.querySelector('.legend button') && ({state}) === {json.dumps(before)}")

        # Order and filter of a table.
        await go(page, "#/devices?q=state%3Afree&sort=-name")
        assert await page.evaluate("document.querySelector('th[aria-sort]').textContent") == "Device↓"
        assert await page.evaluate("document.querySelector('tr.row .c-state').textContent.trim()") == "□ free"
        await page.evaluate("document.querySelector('th.c-node button').click()")
        await page.until("location.hash === '#/devices?q=state%3Afree&sort=node'")

    run(tmp_path, fleet_of(12), scenario)


def test_colours_are_kept(tmp_path: Path) -> None:
    async def scenario(page: Page, page_of: Shown) -> None:
        await screen(page, 1024)
        ground = "getComputedStyle(document.body).backgroundColor"
        light = await page.evaluate(ground)
        for _ in range(2):  # as the system, light, dark
            await page.evaluate("document.getElementById('theme').click()")
        dark = await page.evaluate(ground)
        assert dark != light
        await page.call("Page.reload")
        await page.until(f"document.readyState === 'complete' && {ground} === {json.dumps(dark)}")

    run(tmp_path, fleet_of(4), scenario)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """Nothing published, nothing that waits, nothing of that name, no controller any more."""
    text = "document.querySelector('main')?.innerText"
    banner = "document.getElementById('banner').innerText"

    async def main() -> None:
        async with asyncio.timeout(120), contextlib.AsyncExitStack() as server:
            page_of = await server.enter_async_context(shown(FakeClient()))
            async with browsing(tmp_path, page_of.url) as page:
                await page.until(f"{text}?.includes('No devices are published')")
                for path, said in (
                    ("#/waiting", "Nothing waits for devices."),
                    ("#/claims", "There are no claims with devices"),
                    ("#/pod/ns/none", "There is no pod of this name"),
                ):
                    await page.evaluate(f"location.hash = {json.dumps(path)}")
                    await page.until(f"{text}.includes({json.dumps(said)})")
                page_of.current.feed = None
                await page.evaluate("location.hash = '#/node/n1'")
                await page.until(f"{text}.includes('another one leads')")
                await server.aclose()
                await page.until(f"{banner}.includes('Not connected: what you see is')")

    asyncio.run(main())


class Refusing:
    """In place of an authorizer: one token is good."""

    async def verdict(self, header: str, path: str) -> Verdict:
        return Verdict(200) if header == "Bearer good" else Verdict(401, f"no account has this token {EVIL}")


def test_without_permission_a_token_is_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        current = CurrentFeed(Feed((DRIVER,), lambda *_: "", Past((DRIVER,), SystemClock())))
        authorizer = cast("Authorizer", Refusing())
        async with (
            asyncio.timeout(120),
            serve("0.0.0.0", 0, current, authorizer) as (_, port),
            browsing(tmp_path, f"http://127.0.0.1:{port}/") as page,
        ):
            text = "document.querySelector('main')?.innerText"
            for token in ("bad", "good"):
                await page.until(f"{text}?.includes('No permission')")
                assert EVIL in await page.evaluate(text)
                await page.evaluate(
                    f"document.getElementById('token').value = '{token}';"
                    "document.querySelector('.refused').requestSubmit()"
                )
            await page.until(f"{text}.includes('No devices are published')")
            # It is nowhere but in memory.
            assert (
                await page.evaluate("JSON.stringify({...localStorage, ...sessionStorage}) + document.cookie")
                == "{}"
            )

    asyncio.run(main())
