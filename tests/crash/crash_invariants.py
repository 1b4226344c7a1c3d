"""What must hold whenever an agent has started: records, documents, metadata and hardware say the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from faults import metadata_folder

if TYPE_CHECKING:
    from crash_world import CrashedNode

Found = Iterator[tuple[str, str]]
Records = Mapping[str, Any]


def differences(world: CrashedNode, *, idle: bool) -> Found:
    """Yield kind and text of all that must not be; see ``CrashedNode.check``."""
    every = world.records()
    # Of ended ones only the identity of their devices is remembered.
    ended = {uid for uid, record in every.items() if record.get("ended")}
    records = {uid: record for uid, record in every.items() if uid not in ended}
    yield from _records(world, records)
    yield from _metadata(world, records)
    yield from _documents(world, records)
    held = Counter((d["device"], d.get("shareId")) for r in records.values() for d in r["devices"])
    if any(n > 1 for n in held.values()):
        yield "doubled claims", f"{held}"
    for claim in world.claims.values():
        if not claim.under_way and (claim.acknowledged == "prepared") != (claim.uid in records):
            yield "lost claims", f"{claim.name}: {claim.acknowledged}, records {sorted(records)}"
    yield from world.machine.differences(records)
    leftovers = [p.name for p in world.state.glob(".checkpoint*.tmp")]
    if leftovers:
        yield "leaked temporary files", f"{leftovers}"
    unfinished = [c.name for c in world.claims.values() if c.under_way or c.acknowledged == "prepared"]
    unfinished += sorted(ended)
    if idle and unfinished:
        yield "unfinished claims", f"{unfinished}: the kubelet has not ended its work"


def _records(world: CrashedNode, records: Records) -> Found:
    """Yield records that are half made or of nobody, and documents without one."""
    files = world.files()
    known = {c.uid for c in world.claims.values()}
    for uid, record in records.items():
        if record["state"] != "PrepareCompleted":
            yield "half-prepared claims", f"{uid}: {record['state']}"
        if world.claim_file(uid) not in files:
            yield "half-prepared claims", f"{uid}: no CDI file: {world.errors()}"
        if uid not in known:
            yield "lost claims", f"{uid}: a record of no claim"
    wanted = {world.claim_file(uid) for uid in records}
    if files - wanted:
        yield "leaked CDI files", f"{sorted(files - wanted)}"


def _documents(world: CrashedNode, records: Records) -> Found:
    """Yield documents that name other nodes and files than their devices have now."""
    for uid, record in records.items():
        spec = json.loads((world.cdi / world.claim_file(uid)).read_bytes())
        shared = spec.get("containerEdits", {}).get("deviceNodes", ())
        given = {d["name"]: d["containerEdits"].get("deviceNodes", ()) for d in spec["devices"]}
        for device in record["devices"]:
            if "binding" in device:
                continue
            nodes = {n["path"] for n in (*shared, *given[device["cdiDeviceIds"][0].partition("=")[2]])}
            if text := world.machine.mistake(device, nodes, spec):
                yield "documents of other devices", text


def _metadata(world: CrashedNode, records: Records) -> Found:
    """Yield what differs from files (KEP-5304) of all requests of all prepared claims, and of no others."""
    folder = metadata_folder(world.root, world.driver)
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    wanted = {
        f"{uid}/{request}/metadata.json"
        for uid, record in records.items()
        for device in record["devices"]
        for request in device["requests"]
    }
    # Of a write that was interrupted; it goes with the claim.
    there = {t for t in there if not (t.endswith(".tmp") and t.partition("/")[0] in records)}
    folders = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    if there - wanted or folders - records.keys():
        yield "leaked metadata files", f"{sorted(there - wanted)} {sorted(folders)}"
    if wanted - there:
        yield "half-prepared claims", f"no metadata {sorted(wanted - there)}"
