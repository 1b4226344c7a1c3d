"""The page in use: what is shown stays while things change, and each name leads to its object."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import builders
import pytest
from browser import BROWSER, Page, browsing
from fake_client import FakeClient
from page_fleet import DRIVER, Shown, fleet_of, holding, shown, waiting
from page_steps import go, press, run, screen

from controller.web.feed import MOST_WAITING
from dra_driver.api.core import NODES, PODS
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine"),
    pytest.mark.long,
]

TEXT = "document.querySelector('main').innerText"
STATE = "document.getElementById('connection').dataset.state"


def test_a_lost_connection_takes_nothing_from_the_screen(tmp_path: Path) -> None:
    """Rows, the place in the table and the focus stay while the controller is away, and when it is back."""
    at = "[scrollY, document.activeElement.textContent, document.activeElement.closest('tr').ariaRowIndex]"
    # What was on the screen at each change of the page: it must never have been empty.
    watch = (
        "window.least = Infinity; new MutationObserver(() => { window.least ="
        " Math.min(window.least, document.querySelectorAll('tr.row').length); })"
        ".observe(document.querySelector('main'), {childList: true, subtree: true, attributes: true})"
    )

    async def main() -> None:
        cluster = fleet_of(40)
        async with asyncio.timeout(120), contextlib.AsyncExitStack() as server:
            page_of = await server.enter_async_context(shown(cluster))
            port = int(page_of.url.rstrip("/").rpartition(":")[2])
            async with browsing(tmp_path, f"{page_of.url}#/devices") as page:
                await page.until("document.querySelectorAll('tr.row').length > 20")
                await page.evaluate("scrollTo(0, 4000)")
                await page.until("+document.querySelector('tr.row').ariaRowIndex > 50")
                await page.evaluate(
                    "document.querySelectorAll('tr.row')[14].querySelector('a').focus({preventScroll: true})"
                )
                before = await page.evaluate(at)
                await page.evaluate(watch)
                await server.aclose()
                await page.until(f"{STATE} === 'lost'")
                behind = builders.resource_slice("gpu-040")["metadata"]["name"]
                cluster.remove(RESOURCE_SLICES, behind)
                async with shown(cluster, port=port):
                    await page.until(f"{STATE} === 'live'")
                    await page.until(f"{TEXT}.includes('280 devices')")
                    assert await page.evaluate(at) == before
                    assert await page.evaluate("window.least") > 20

    asyncio.run(main())


def test_what_is_told_anew_is_shown_once_it_is_complete(tmp_path: Path) -> None:
    """A large fleet comes in many messages."""
    pools: list[dict[str, Any]] = [
        {"driver": DRIVER, "pool": name, "node": name, "notes": [], "devices": []} for name in ("a", "b", "c")
    ]
    rest: dict[str, Any] = {
        "gone": [],
        "waiting": None,
        "troubles": None,
        "waitingTotal": 0,
        "nodes": 3,
        "standby": "",
    }

    def message(*names: str, first: bool = False, complete: bool = False) -> dict[str, Any]:
        told = [p for p in pools if p["pool"] in names]
        return {**rest, "pools": told, "first": first, "complete": complete}

    messages = [
        message(first=True),
        message("a", "b"),
        message(complete=True),
        message(first=True),  # the connection was lost
        message("b"),
        message(first=True),  # and again, before it was complete
        message("c"),
        message("b", complete=True),
        message("a"),
    ]
    script = (
        f"import('/store.js').then(({{ Store }}) => {{ const store = new Store(); let told = 0;"
        " store.addEventListener('change', () => { told += 1; });"
        f" return {json.dumps(messages)}.map((m) => {{ store.apply(m);"
        " return [store.ordered().map((n) => n.name).join(''), store.complete, told]; }); })"
    )

    async def scenario(page: Page, _: Shown) -> None:
        assert await page.evaluate(script) == [
            ["", False, 1],
            ["ab", False, 1],
            ["ab", True, 2],
            ["ab", True, 2],
            ["ab", True, 2],
            ["ab", True, 2],
            ["ab", True, 2],
            ["bc", True, 3],
            ["abc", True, 4],
        ]

    run(tmp_path, fleet_of(4), scenario)


def test_the_page_of_an_object_stays_while_the_controller_is_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), contextlib.AsyncExitStack() as server:
            page_of = await server.enter_async_context(shown(fleet_of(4)))
            async with browsing(tmp_path, f"{page_of.url}#/node/gpu-001") as page:
                await page.until("document.querySelectorAll('.plain tbody tr').length >= 8")
                await server.aclose()
                await page.until(f"{STATE} === 'lost'")
                # It is asked for again every five seconds.
                asked = "performance.getEntriesByName(location.origin + '/fleet/object?node=gpu-001').length"
                seen = await page.evaluate(asked)
                await page.until(f"{asked} > {seen}")
                await asyncio.sleep(0.3)
                assert await page.evaluate("document.querySelectorAll('.plain tbody tr').length") >= 8

    asyncio.run(main())


def test_a_filter_finds_what_waits_beyond_the_list(tmp_path: Path) -> None:
    cluster = fleet_of(4)
    for i in range(MOST_WAITING + 20):
        waiting(cluster, "batch", f"job-{i:03}", f"no room for {i}", priority=10_000 - i)
    last = MOST_WAITING + 19
    total = f"{MOST_WAITING + 23} claims wait"

    async def scenario(page: Page, _: Shown) -> None:
        await go(page, "#/waiting")
        await page.until(f"{TEXT}.includes('{total}')")
        assert f"job-{last}" not in await page.evaluate(TEXT)
        await go(page, f"#/waiting?q=job-{last}")
        await page.until("document.querySelectorAll('tr.row').length === 1")
        assert f"batch/job-{last}" in await page.evaluate(TEXT)
        await page.until(f"{TEXT}.includes('1 of {MOST_WAITING + 23} claims that wait match')")
        await go(page, "#/waiting?q=ns:batch")
        await page.until(f"{TEXT}.includes('and 20 more that match')")
        await go(page, "#/waiting?q=job-zzz")
        await page.until(f"{TEXT}.includes('Nothing matches the filter.')")
        await go(page, "#/claims?q=ns:batch")
        await page.until(f"{TEXT}.includes('and 23 more claims that wait')")
        await page.evaluate("document.querySelector('.more a').click()")
        await page.until("location.hash.startsWith('#/waiting?q=ns%3Abatch')")

        # Its name and Enter lead to its page, although the page has not been told of it.
        await page.evaluate(f"document.getElementById('q').value = 'batch/job-{last}'")
        await page.evaluate("document.getElementById('search').requestSubmit()")
        await page.until(f"location.hash === '#/pod/batch/job-{last}'")

    run(tmp_path, cluster, scenario)


def test_the_map_shows_the_nodes_that_match(tmp_path: Path) -> None:
    cluster = fleet_of(12)
    heads = "[...document.querySelectorAll('.map-head')].map((h) => h.textContent)"
    size = "document.getElementById('map-option').ariaSetSize"

    async def scenario(page: Page, _: Shown) -> None:
        await page.until(f"{heads}.length === 4")
        assert await page.evaluate(heads) == [f"r0{i}3 nodes" for i in range(1, 5)]
        await go(page, "#/fleet?q=node:gpu-005&group=example.com%2Frack")
        await page.until(f"{heads}.join() === 'r021 of 3 nodes'")
        assert await page.evaluate(size) == "1"
        assert "8 of 88 devices match, on 1 node" in await page.evaluate(TEXT)
        await go(page, "#/fleet?only=unhealthy&layer=state")
        await page.until(f"{TEXT}.includes('devices match')")
        sick = await page.evaluate("document.querySelector('[data-bucket=unhealthy] .n').textContent")
        assert await page.evaluate(size) == sick == "0"
        assert "Nothing matches the filter." in await page.evaluate(TEXT)

        # A node comes to match while one looks.
        cluster.put(NODES, builders.node("new", labels={"example.com/rack": "r09"}))
        taint = {"key": "dra-driver.dev/unhealthy", "value": "failed", "effect": "NoExecute"}
        device = builders.device("gpu-0", attributes={"model": "B200"}, taints=[taint])
        cluster.put(RESOURCE_SLICES, builders.resource_slice("new", device))
        await page.until(f"{size} === '1' && {TEXT}.includes('1 of 89 devices match')")

    run(tmp_path, cluster, scenario)


def test_nodes_that_come_while_one_looks_are_grouped(tmp_path: Path) -> None:
    """A page that was opened before the nodes were there, or before all of them had been told."""
    cluster = FakeClient()
    heads = "[...document.querySelectorAll('.map-head')].map((h) => h.textContent).join()"

    async def scenario(page: Page, _: Shown) -> None:
        await page.evaluate(
            "window.heads = new Set(); new MutationObserver(() =>"
            " document.querySelectorAll('.map-head').forEach((h) => window.heads.add(h.textContent)))"
            ".observe(document, {childList: true, subtree: true})"
        )
        await page.until(f"{TEXT}.includes('No devices are published')")
        for i in range(6):
            cluster.put(NODES, builders.node(f"n{i}", labels={"example.com/rack": f"r{i // 2}"}))
            device = builders.device("gpu-0", attributes={"model": "B200"})
            cluster.put(RESOURCE_SLICES, builders.resource_slice(f"n{i}", device))
        await page.until(f"{heads} === 'r02 nodes,r12 nodes,r22 nodes'", 40)
        # Meanwhile they were not said to be without a label that they have.
        assert not await page.evaluate("[...window.heads].some((h) => h.includes('without'))")

    run(tmp_path, cluster, scenario)


def with_node_of_its_own() -> FakeClient:
    """A fleet, and a node of which nothing is held but what a test lets be held."""
    cluster = fleet_of(4)
    devices = [builders.device(f"gpu-{i}", "80Gi", attributes={"model": "B200"}) for i in range(2)]
    cluster.put(NODES, builders.node("mine"))
    cluster.put(RESOURCE_SLICES, builders.resource_slice("mine", *devices))
    holding(cluster, "team", "work", "mine", "gpu-0")
    return cluster


async def follow(page: Page, text: str, to: str) -> None:
    """Click on the link of this text in the page of an object."""
    link = f"[...document.querySelectorAll('.detail a')].find((a) => a.textContent === {json.dumps(text)})"
    await page.until(f"{link} !== undefined")
    await page.evaluate(f"{link}.click()")
    await page.until(f"location.hash === {json.dumps(to)}")


def test_each_name_leads_to_its_object(tmp_path: Path) -> None:
    cluster = with_node_of_its_own()

    async def scenario(page: Page, _: Shown) -> None:
        device = f"#/device/{DRIVER}/mine/gpu-0"
        await go(page, "#/node/mine")
        await follow(page, "team/work", "#/claim/team/work")
        await follow(page, "team/work", "#/pod/team/work")
        await follow(page, "gpu-0", device)
        await page.until(f"{TEXT}.includes('Who holds it')")
        await page.evaluate("document.querySelector('[data-title=Pods] a').click()")
        await page.until("location.hash === '#/pod/team/work'")
        # What happened links, too.
        holding(cluster, "team", "work", "mine", "gpu-1")
        await go(page, f"#/device/{DRIVER}/mine/gpu-1")
        await page.until("document.querySelector('.history a') !== null", 15)
        await page.evaluate("document.querySelector('.history a').click()")
        await page.until("location.hash === '#/claim/team/work'")
        await go(page, "#/claims?q=ns:team")
        await page.until("document.querySelector('td.c-node a, td.c-pods a') !== null")
        links = "['.c-node a', '.c-pods a'].map((s) => document.querySelector(s).getAttribute('href'))"
        assert await page.evaluate(links) == ["#/node/mine", "#/pod/team/work"]

    run(tmp_path, cluster, scenario)


PLAN: dict[str, Any] = {
    "workload": "Pod serving/chat-large-0",
    "pods": 1,
    "fits": False,
    "certain": True,
    "error": False,
    "reason": "no room",
    "placement": None,
    "largestClaim": {"now": 0, "after": None},
    "free": {
        "helps": False,
        "number": None,
        "proven": True,
        "atLeast": None,
        "placement": None,
        "holders": [],
    },
    "move": {"helps": None, "number": None, "proven": False, "placement": None, "holders": []},
    "addNodes": [
        {"like": "gpu-001", "helps": False, "number": None, "proven": True, "placement": None},
        {"like": "gpu-002", "helps": True, "number": 2, "proven": True, "placement": None},
    ],
    "relax": [
        {"part": "taints", "change": "tolerated", "fits": False, "proven": True, "excludedDevices": None},
        {"part": "memory", "change": "80Gi instead", "fits": True, "proven": True, "excludedDevices": 9},
    ],
    "never": "",
    "unfinished": [],
    "notes": [],
}


@pytest.mark.parametrize("width", [1440, 360])
def test_a_plan_says_first_what_helps(width: int, tmp_path: Path) -> None:
    titles = "[...document.querySelectorAll('.plan dt')].map((e) => e.textContent)"
    lines = "[...document.querySelectorAll('.plan tbody tr')].map((e) => e.cells[0].textContent)"
    # Each title of a table stands above its column.
    astray = """[...document.querySelectorAll('.plan table')].flatMap((table) => {
      const [head, body] = [table.tHead.rows[0].cells, table.tBodies[0].rows[0].cells];
      const left = (c) => c.getBoundingClientRect().left + parseFloat(getComputedStyle(c).paddingLeft);
      return [...head].filter((h, i) => Math.abs(left(h) - left(body[i])) > 1).map((h) => h.textContent);
    })"""
    helps = [
        "More nodes like gpu-002",
        "Relax one part of the request",
        "Largest such claim that fits now",
        "Does not help",
        "Not found to help (not proven that it does not)",
    ]

    async def scenario(page: Page, _: Shown) -> None:
        await screen(page, width)
        for path, button in (("#/waiting", ".ask"), ("#/pod/serving/chat-large-0", ".plan button")):
            await go(page, path)
            await page.until(f"document.querySelector('{button}') !== null")
            if not await page.evaluate("document.querySelector('.plan dt') !== null"):
                await page.evaluate(f"document.querySelector('{button}').click()")
            await page.until("document.querySelector('.plan dt') !== null")
            assert await page.evaluate(titles) == helps
            # What does not help has no line of its own.
            assert await page.evaluate(lines) == ["memory"]
            assert await page.evaluate(astray) == []
            text = await page.evaluate(TEXT)
            assert "freeing holders; more nodes like gpu-001" in text
            assert "without taints" in text

    run(tmp_path, fleet_of(4), scenario, plan=json.dumps(PLAN).encode())


def test_who_asks_for_a_plan_by_keyboard_goes_on_from_there(tmp_path: Path) -> None:
    focused = "document.activeElement.textContent"

    async def scenario(page: Page, _: Shown) -> None:
        await go(page, "#/pod/serving/chat-large-0")
        await page.until("document.querySelector('.plan button') !== null")
        await page.evaluate("document.querySelector('.plan button').focus()")
        for _again in range(2):
            await press(page, "Enter", 13, "\r")
            await page.until(f"document.querySelector('.plan dt') !== null && {focused} === 'Ask again'")
            await page.evaluate("document.querySelector('.plan dl').remove()")

    run(tmp_path, fleet_of(4), scenario, plan=json.dumps(PLAN).encode())


def test_the_focus_stays_while_the_page_follows_the_cluster(tmp_path: Path) -> None:
    cluster = with_node_of_its_own()
    focused = "document.activeElement.textContent"

    async def scenario(page: Page, _: Shown) -> None:
        # On the page of an object, of which another part changes.
        await go(page, "#/node/mine")
        link = "[...document.querySelectorAll('.detail a')].find((a) => a.textContent === 'gpu-0')"
        await page.until(f"{link} !== undefined")
        await page.evaluate(f"window.link = {link}; window.link.focus()")
        cluster.put(NODES, builders.node("mine", unschedulable=True))
        await page.until(f"{TEXT}.includes('cordoned')", 15)
        assert await page.evaluate("document.activeElement === window.link")
        # And of which the same part does.
        cluster.remove(RESOURCE_CLAIMS, "work", "team")
        cluster.remove(PODS, "work", "team")
        await page.until(f"!{TEXT}.split('History')[0].includes('team/work')", 15)
        assert await page.evaluate(focused) == "gpu-0"

        # In the table of models, whose sums change.
        await go(page, "#/fleet")
        await page.until("document.querySelector('.models a') !== null")
        model = await page.evaluate("document.querySelector('.models a').focus() || " + focused)
        before = await page.evaluate("document.querySelector('.models tbody').textContent")
        holding(cluster, "team", "other", "mine", "gpu-0")
        await page.until(f"document.querySelector('.models tbody').textContent !== {json.dumps(before)}")
        assert await page.evaluate(focused) == model

    run(tmp_path, cluster, scenario)


def test_keys_go_through_a_table_of_which_few_rows_exist(tmp_path: Path) -> None:
    row = "document.activeElement.closest('tr')?.ariaRowIndex"

    async def scenario(page: Page, _: Shown) -> None:
        await go(page, "#/devices")
        await page.evaluate("document.querySelector('tr.row a').focus()")
        for step in range(60):
            await press(page, "ArrowDown", 40)
            await page.evaluate(
                "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            assert await page.evaluate(row) == str(step + 3)
        assert await page.evaluate("document.querySelectorAll('tr.row').length") < 100

    run(tmp_path, fleet_of(40), scenario)


def test_sums_lead_to_what_they_count(tmp_path: Path) -> None:
    """The number in each sum and in each row of models is that of the table behind its link."""
    cluster = fleet_of(12)
    part = builders.device("part", "10Gi", attributes={"model": "NVIDIA H100 80GB HBM3", "type": "mig"})
    other = builders.device("b", "10Gi", attributes={"model": "H100", "type": "gpu"})
    cluster.put(NODES, builders.node("parts"))
    cluster.put(RESOURCE_SLICES, builders.resource_slice("parts", part, other))
    counted = r"parseInt(document.querySelector('.title p').textContent)"

    async def scenario(page: Page, _: Shown) -> None:
        await page.until("document.querySelectorAll('.models tbody tr').length === 6")
        links = await page.evaluate(
            "[...document.querySelectorAll('.models tbody tr')]"
            ".map((r) => [r.cells[0].firstChild.getAttribute('href'), Number(r.cells[2].textContent)])"
        )
        used = await page.evaluate(
            "(() => { const card = document.querySelectorAll('.kpi')[1];"
            " return [card.getAttribute('href'), parseInt(card.querySelector('.kpi-text').textContent)]; })()"
        )
        for link, number in [*links, used]:
            if number == 1 and "H100" in link and "mig" not in link:
                continue  # "H100" is a part of other models' names
            await go(page, link)
            assert [link, await page.evaluate(counted)] == [link, number]

    run(tmp_path, cluster, scenario)


def test_memory_is_told_for_people_and_sorted_by_size(tmp_path: Path) -> None:
    cluster = FakeClient()
    sizes = {"a": "81559Mi", "b": "40Gi", "c": "9728Mi", "d": "1536Gi", "e": "512", "f": "1e3x"}
    devices = [
        builders.device(name, size, attributes={"model": "M"}) for name, size in sizes.items() if name != "f"
    ]
    cluster.put(NODES, builders.node("n1"))
    cluster.put(RESOURCE_SLICES, builders.resource_slice("n1", *devices))

    async def scenario(page: Page, _: Shown) -> None:
        await go(page, "#/devices?sort=-memory")
        told = "[...document.querySelectorAll('td.c-memory')].map((e) => `${e.textContent} ${e.title}`)"
        assert await page.evaluate(told) == [
            "1.5 TiB 1536Gi",
            "79.6 GiB 81559Mi",
            "40 GiB 40Gi",
            "9.5 GiB 9728Mi",
            "512 B 512",
        ]
        await go(page, f"#/device/{DRIVER}/n1/a")
        await page.until(f"{TEXT}.includes('79.6 GiB')")

    run(tmp_path, cluster, scenario)


@pytest.mark.parametrize("width", [1440, 1024])
def test_tables_fill_their_width(width: int, tmp_path: Path) -> None:
    """Where columns are hidden, the others take their place."""
    room = (
        "(() => { const row = document.querySelector('tr.row');"
        " const right = (e) => e.getBoundingClientRect().right;"
        " const last = [...row.cells].filter((c) => c.checkVisibility()).at(-1);"
        " return right(row.closest('.list')) - right(last); })()"
    )

    async def scenario(page: Page, _: Shown) -> None:
        await screen(page, width)
        for path in ("#/devices", "#/claims", "#/nodes", "#/waiting"):
            await go(page, path)
            assert {path: await page.evaluate(room) < 4} == {path: True}

    run(tmp_path, fleet_of(12), scenario)


def spans_of(*entries: tuple[float, str, str], holders: tuple[str, ...] = (), since: float = 0.0) -> str:
    """A script that works out when a device was held."""
    rows = [[{"kind": "claim", "name": h}, "gpu", [], "whole"] for h in holders]
    page = {
        "now": 100.0,
        "since": since,
        "history": [{"at": at, "kind": kind, "text": f"… claim {claim}"} for at, kind, claim in entries],
        "sections": [{"title": "Who holds it", "rows": rows}] if rows else [],
    }
    return f"import('/detail.js').then((m) => m.heldSpans({json.dumps(page)}))"


def test_a_device_is_held_from_its_first_share_to_its_last(tmp_path: Path) -> None:
    took, gave = "allocated", "freed"

    async def scenario(page: Page, _: Shown) -> None:
        for script, spans, claims in (
            (spans_of(), [], 0),
            (spans_of(holders=("a",)), [[0, 100]], 1),
            (spans_of((40, took, "a"), holders=("a",)), [[40, 100]], 1),
            (spans_of((40, gave, "a")), [[0, 40]], 1),
            (
                spans_of((20, took, "a"), (40, gave, "a"), (60, took, "a"), (80, gave, "a")),
                [[20, 40], [60, 80]],
                1,
            ),
            # Two shares, one of which goes: it is still held.
            (spans_of((20, took, "a"), (30, took, "b"), (50, gave, "a"), holders=("b",)), [[20, 100]], 2),
            (spans_of((20, took, "a"), (30, took, "b"), (50, gave, "b"), (60, gave, "a")), [[20, 60]], 2),
            # One that was there before, one that comes.
            (spans_of((50, took, "b"), holders=("a", "b")), [[0, 100]], 2),
        ):
            found = await page.evaluate(script)
            assert (found["spans"], found["claims"]) == (spans, claims), script
        # Entries that were forgotten: nothing is said about the time before.
        many = [(float(10 + i), (took, gave)[i % 2], "a") for i in range(64)]
        found = await page.evaluate(spans_of(*many))
        assert found["from"] == 10

    run(tmp_path, fleet_of(4), scenario)
