"""The tables of accounts say what a real API server of 1.36 answers (``DRA_K8S_BIN``).

``make account-table BIN=DIR`` writes it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from account_table import attempts, committed, joined, labels, page, rights_of, verdict, write
from policy_cases import CORE, TENANT, Write, cases
from policy_world import describe_nodes, settled, world
from real_apiserver import RealApiServer, gate_flag, real_apiserver


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    gate_flag("DRAResourceClaimGranularStatusAuthorization")  # without it agents have more rights
    with real_apiserver(tmp_path_factory.mktemp("real")) as started:
        yield started


def test_the_page_says_what_the_api_server_answers(server: RealApiServer) -> None:
    async def main() -> str:
        async with await server.client() as admin, world(server.client, admin) as made:
            await describe_nodes(admin)
            columns = await joined(made, server.client)
            table = list(cases())
            for policy in {w.refused for w in table if w.refused}:
                await settled(made, next(w for w in table if w.refused == policy))
            # The tenant has the rights that were given to it last.
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": TENANT}}
            await settled(made, Write("", "edit", "POST", f"{CORE}/namespaces/{TENANT}/configmaps", body))
            rights = {column: await rights_of(made.clients[by]) for column, by in columns.items()}
            verdicts = {
                column: [verdict(await made.send(replace(w, by=by))) for w in attempts()]
                for column, by in columns.items()
            }
            return page(rights, verdicts, [c for c in columns if not c.startswith("tenant")])

    found = asyncio.run(main())
    if os.environ.get("WRITE_ACCOUNT_TABLE"):
        write(found)
    assert committed() == found, "make account-table BIN=DIR writes it"


def test_the_page_has_a_row_for_every_attempt() -> None:
    """Without a real API server, too: one that is added has to be tried."""
    rows = [line.split(" | ") for line in committed().splitlines() if line.startswith("| ")]
    attempted = [(row[0].removeprefix("| "), row[1].strip("`")) for row in rows if row[1].startswith("`")]
    assert attempted == labels(attempts())
    assert len(set(attempted)) == len(attempted)
