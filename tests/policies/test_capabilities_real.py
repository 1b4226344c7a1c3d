"""What the API server of ``DRA_K8S_BIN`` can do, as released and with gates: as docs/installation.md says.

``CAPABILITIES_RECORD=FOLDER`` writes what is found there, of which the table is made (``version_table``).
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import sys
from pathlib import Path

import capabilities
import pytest
from gate_files import gate_documents
from paths import PROJECT
from real_apiserver import binaries, feature_gates, real_apiserver

from dra_driver.errors import NotFound
from dra_driver.kube import KubeApi

sys.path += [str(PROJECT / "tests" / "e2e" / folder) for folder in ("", "harness")]

import version_table
from local import configuration

PATH = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"


async def look(client: KubeApi) -> tuple[str, dict[str, bool]]:
    """Install the policy of the gate, where it can be, and ask the server."""
    for body in gate_documents():
        if body["kind"] == "MutatingAdmissionPolicy":
            try:
                await client._call("POST", PATH, body=body)
            except NotFound:
                pass  # not served in v1
    return await version_table.version(client), await capabilities.probe(client)


@pytest.mark.parametrize("gates", [configuration.DEFAULT_GATES, configuration.ALL_GATES])
def test_the_server_can_do_what_the_table_says(gates: str, tmp_path: Path) -> None:
    known = feature_gates(binaries() / "kube-apiserver")
    on = configuration.gates_of(gates, known)

    async def main() -> tuple[str, dict[str, bool]]:
        with real_apiserver(tmp_path, *configuration.server_flags(on, known)) as server:
            async with await server.client() as client:
                return await look(client)

    kubernetes, served = asyncio.run(main())
    name = f"{kubernetes.rpartition('.')[0]}-{gates}"
    if folder := os.environ.get("CAPABILITIES_RECORD"):
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        record = {"kubernetes": kubernetes, "gates": gates, "date": date, "served": served}
        (Path(folder) / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    recorded = version_table.recorded()
    assert name in recorded, f"Kubernetes {kubernetes} is not in the table"
    assert served == recorded[name]["served"]
