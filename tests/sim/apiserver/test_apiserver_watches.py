"""Lists and watches of the embedded API server."""

from __future__ import annotations

import asyncio

from apiserver_client import CONFIG_MAPS, SLICES, Client, causes, config_map, resource_slice, run


async def _fill(client: Client, *names: str) -> str:
    version = ""
    for name in names:
        body = config_map(name, a="1")
        body["metadata"]["labels"] = {"which": name}
        version = (await client.create(CONFIG_MAPS, body))["metadata"]["resourceVersion"]
    return version


def test_a_watch_sees_every_change_once_and_in_order() -> None:
    async def scenario(client: Client) -> None:
        version = await _fill(client, "a")
        async with client.watch(f"{CONFIG_MAPS}?watch=true&resourceVersion={version}") as following:
            await _fill(client, "b")
            await client.patch(f"{CONFIG_MAPS}/b", {"data": {"a": "2"}})
            await client.patch(f"{CONFIG_MAPS}/b", {"data": {"a": "2"}})  # changes nothing
            await client.delete(f"{CONFIG_MAPS}/b")
            seen = [await following() for _ in range(3)]
        assert [e["type"] for e in seen if e] == ["ADDED", "MODIFIED", "DELETED"]
        versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in seen if e]
        assert versions == sorted(set(versions))

    run(scenario)


def test_a_watch_without_a_version_starts_with_what_is_there() -> None:
    async def scenario(client: Client) -> None:
        await _fill(client, "b", "a")
        async with client.watch(f"{CONFIG_MAPS}?watch=true") as following:
            names = [(await following() or {})["object"]["metadata"]["name"] for _ in range(2)]
            assert names == ["a", "b"]

    run(scenario)


def test_leaving_a_selection_is_a_deletion_and_entering_it_an_addition() -> None:
    async def scenario(client: Client) -> None:
        version = await _fill(client, "a")
        path = f"{CONFIG_MAPS}?watch=true&labelSelector=which%3Da&resourceVersion={version}"
        async with client.watch(path) as following:
            await client.patch(f"{CONFIG_MAPS}/a", {"metadata": {"labels": {"which": "other"}}})
            await client.patch(f"{CONFIG_MAPS}/a", {"data": {"a": "2"}})
            await client.patch(f"{CONFIG_MAPS}/a", {"metadata": {"labels": {"which": "a"}}})
            gone, back = await following(), await following()
        assert gone is not None
        assert back is not None
        assert (gone["type"], gone["object"]["metadata"]["labels"]["which"]) == ("DELETED", "a")
        assert (back["type"], back["object"]["data"]) == ("ADDED", {"a": "2"})

    run(scenario)


def test_a_version_before_the_window_is_gone() -> None:
    async def scenario(client: Client) -> None:
        old = await _fill(client, "a")
        await _fill(client, "b", "c", "d")
        async with client.watch(f"{CONFIG_MAPS}?watch=true&resourceVersion={old}") as following:
            event = await following()
            assert event is not None
            assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
            assert await following() is None
        code, _ = await client.get(f"{CONFIG_MAPS}?resourceVersionMatch=Exact&resourceVersion={old}")
        assert code == 410

    run(scenario, history=2)


def test_a_reader_that_falls_out_of_the_window_is_told() -> None:
    async def scenario(client: Client) -> None:
        version = await _fill(client, "a")
        path = f"{CONFIG_MAPS}?watch=true&resourceVersion={version}"
        async with client.watch(path) as following:
            collection = client.server.store.collection("", "configmaps")
            await _fill(client, "b")
            assert (await following() or {})["type"] == "ADDED"
            await asyncio.sleep(0.05)
            # Several changes in one step of the loop: the watch has had no chance to read.
            kind = client.server.registry.kinds.get("", "v1", "configmaps")
            assert kind is not None
            from dra_driver.sim.apiserver.writing.registry import Options

            for i in range(5):
                client.server.registry.create(kind, "default", config_map(f"x{i}"), Options())
            assert len(collection.events) == 2
            assert (await following() or {})["type"] == "ERROR"

    run(scenario, history=2)


def test_bookmarks_end_the_initial_events() -> None:
    async def scenario(client: Client) -> None:
        await _fill(client, "a")
        path = (
            f"{CONFIG_MAPS}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true"
            "&resourceVersionMatch=NotOlderThan&timeoutSeconds=2"
        )
        async with client.watch(path) as following:
            added, end = await following(), await following()
        assert added is not None
        assert end is not None
        assert (added["type"], end["type"]) == ("ADDED", "BOOKMARK")
        assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}

    run(scenario)


def test_a_watch_ends_with_its_timeout_and_with_the_server() -> None:
    async def scenario(client: Client) -> None:
        async with client.watch(f"{CONFIG_MAPS}?watch=true&timeoutSeconds=1") as following:
            assert await following() is None
        async with client.watch(f"{CONFIG_MAPS}?watch=true") as following:
            waiting = asyncio.create_task(following())
            await asyncio.sleep(0.05)
            await client.server.stop()
            assert await waiting is None

    run(scenario)


def test_pages_show_one_moment() -> None:
    async def scenario(client: Client) -> None:
        await _fill(client, "a", "b", "c")
        _, first = await client.get(f"{CONFIG_MAPS}?limit=2")
        assert [o["metadata"]["name"] for o in first["items"]] == ["a", "b"]
        assert first["metadata"]["remainingItemCount"] == 1
        await client.delete(f"{CONFIG_MAPS}/c")
        await _fill(client, "d")
        _, second = await client.get(f"{CONFIG_MAPS}?limit=2&continue={first['metadata']['continue']}")
        assert [o["metadata"]["name"] for o in second["items"]] == ["c"]
        assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        code, _ = await client.get(f"{CONFIG_MAPS}?continue=garbage")
        assert code == 400

    run(scenario)


def test_versions_of_the_future_and_nonsense() -> None:
    async def scenario(client: Client) -> None:
        assert (await client.get(f"{CONFIG_MAPS}?resourceVersion=99999999"))[0] == 504
        assert (await client.get(f"{CONFIG_MAPS}?resourceVersion=x"))[0] == 400
        assert (await client.get(f"{CONFIG_MAPS}?watch=true&resourceVersion=x"))[0] == 500
        code, answer = await client.get(f"{CONFIG_MAPS}?resourceVersionMatch=Exact")
        assert (code, causes(answer)) == (422, {("resourceVersionMatch", "Forbidden")})

    run(scenario)


def test_field_selectors_know_the_fields_of_their_kind() -> None:
    async def scenario(client: Client) -> None:
        await client.create(SLICES, resource_slice("one", "n1"))
        await client.create(SLICES, resource_slice("two", "n2"))
        _, found = await client.get(f"{SLICES}?fieldSelector=spec.nodeName%3Dn2")
        assert [o["metadata"]["name"] for o in found["items"]] == ["two"]
        _, found = await client.get(f"{SLICES}?fieldSelector=metadata.name!=two")
        assert [o["metadata"]["name"] for o in found["items"]] == ["one"]
        assert (await client.get(f"{SLICES}?fieldSelector=spec.pool.name%3Dx"))[0] == 400
        assert (await client.get(f"{SLICES}?fieldSelector=metadata.name"))[0] == 400

    run(scenario)


def test_label_selectors() -> None:
    async def scenario(client: Client) -> None:
        await _fill(client, "a", "b", "c")
        for text, names in (
            ("which=a", "a"),
            ("which!=a", "bc"),
            ("which in (a,b)", "ab"),
            ("which notin (a,b),which", "c"),
            ("!which", ""),
            ("which", "abc"),
        ):
            path = f"{CONFIG_MAPS}?labelSelector={text}".replace(" ", "%20")
            _, found = await client.get(path)
            assert "".join(o["metadata"]["name"] for o in found["items"]) == names, text
        for text in ("a b", "a=x y", "=x", "a in x", "-bad=x", "a=x,"):
            assert (await client.get(f"{CONFIG_MAPS}?labelSelector={text}".replace(" ", "%20")))[0] == 400

    run(scenario)
