"""A third party's backend whose tool takes its time: it prepares the NPUs of docs/sdk.md.

What was made of a device for a claim is a file beside the NPU, which says how far the tool has come. The file
``pace``, which the test writes, says how long the tool takes, whether it fails, and whether the device leaves
its bus meanwhile. The tool writes down what it does, a line at a time, so that the test can tell whether two
have worked on one device at once: a tool that has ended with its agent writes nothing any more.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_driver import sdk

# Between two lines of the tool, in seconds.
STEP = 0.04
DONE = "done"
_PART = re.compile(r"-slice-half-[01]$")


def function_of(device: str) -> str:
    """Return the PCI address of an NPU, or of the NPU of a half, by the name of the device."""
    _, domain, bus, slot, function = _PART.sub("", device).split("-")
    return f"{domain}:{bus}:{slot}.{function}"


class SlowBackend:
    """Delegates to the example's backend what it does besides; implements ``ClaimPreparation``."""

    name = "acme"
    vendor = "acme"
    simulated = False

    def __init__(self, sysfs_root: Path) -> None:
        example: Any = importlib.import_module("acme_driver")
        self._npus = example.AcmeBackend(sysfs_root)
        self._config = example.NpuConfig
        self.parameters: Sequence[Any] = (example.NpuConfig,)
        self._functions = sysfs_root / "devices/pci0000:3a"
        self._log = sysfs_root.parent / "tool.log"
        self._serial = itertools.count()
        self._writing = threading.Lock()

    # --- devices --------------------------------------------------------------------------------------------

    def discover(self) -> Sequence[sdk.DiscoveredDevice]:
        found: Sequence[sdk.DiscoveredDevice] = self._npus.discover()
        return [d for d in found if not (self._function(d.device.name) / "off").exists()]

    def hotplug(self) -> sdk.HotplugHints:
        hints: sdk.HotplugHints = self._npus.hotplug()
        return hints

    def close(self) -> None:
        pass

    def partitions(self, uuid: str) -> Sequence[sdk.Partition] | None:
        found: Sequence[sdk.Partition] | None = self._npus.partitions(uuid)
        if found is None:
            # The names are being exchanged. The NPU is there, and so are its halves.
            raise sdk.PrepareError(f"NPU {uuid} has no name now", retryable=True)
        return found

    def create_partition(self, uuid: str, profile_id: int, start: int, size: int) -> sdk.Partition:
        made: sdk.Partition = self._npus.create_partition(uuid, profile_id, start, size)
        return made

    def destroy_partition(self, uuid: str, instance_id: int) -> None:
        self._npus.destroy_partition(uuid, instance_id)

    # --- for a claim ----------------------------------------------------------------------------------------

    def plan_device(self, use: sdk.DeviceUse) -> sdk.DevicePlan | None:
        config = use.parameters
        if not isinstance(config, self._config):
            return None
        watts = getattr(config, "power_limit")  # noqa: B009 - its type is the example's, which mypy does not see
        return sdk.DevicePlan(
            settings={"watts": watts},
            edits=sdk.ContainerEdits(env=(f"ACME_POWER_LIMIT={watts}",)),
            seconds=self._pace(use.device)["planned"],
        )

    def prepare_device(self, work: sdk.DeviceWork) -> None:
        job, pace = self._job(work), self._pace(work.device)
        done = f"{work.settings['watts']} {DONE}\n"
        with self._at_work(work, "prepare") as log:
            if others := sorted(p.name for p in job.parent.iterdir() if _excludes(work, p.name)):
                log(f"alarm: not undone before: {others}")
            if job.exists() and job.read_text() == done:
                # As it should be: looked at, not touched.
                for _ in _steps(pace["verify"]):
                    log("step")
                return
            off = job.parent.parent / "off"
            # Never while the device has something of a claim: a pod may use it, or its record count as done.
            leaves = pace["off"] and not any(job.parent.iterdir())
            for number, total in _steps(pace["prepare"]):
                job.write_text(f"{work.settings['watts']} {number}/{total}\n")
                if leaves and not number:
                    off.touch()
                if pace["fails"] == "prepare" and number == total // 2:
                    raise sdk.PrepareError("the tool has failed", retryable=pace["retryable"])
                log("step")
            off.unlink(missing_ok=True)
            job.write_text(done)

    def unprepare_device(self, work: sdk.DeviceWork) -> None:
        job, pace = self._job(work), self._pace(work.device)
        with self._at_work(work, "undo") as log:
            for number, total in _steps(pace["undo"]):
                if job.exists():
                    job.write_text(f"{work.settings['watts']} back {number}/{total}\n")
                if pace["fails"] == "undo" and number == total // 2:
                    raise sdk.PrepareError("the tool cannot undo it", retryable=pace["retryable"])
                log("step")
            (job.parent.parent / "off").unlink(missing_ok=True)
            if job.exists():
                # By ``os``, where crashes are injected.
                os.unlink(job)  # noqa: PTH108

    # --- the tool -------------------------------------------------------------------------------------------

    def _function(self, device: str) -> Path:
        return self._functions / function_of(device)

    def _job(self, work: sdk.DeviceWork) -> Path:
        return self._function(work.device) / "jobs" / f"{work.device}.{work.claim_uid}"

    def _pace(self, device: str) -> Mapping[str, Any]:
        pace: Mapping[str, Any] = json.loads((self._function(device) / "pace").read_text())
        return pace

    @contextmanager
    def _at_work(self, work: sdk.DeviceWork, verb: str) -> Iterator[Any]:
        number = next(self._serial)

        def log(what: str) -> None:
            line = f"{os.getpid()}.{number} {work.device} {work.claim_uid} {verb} {what}\n"
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(log, line.encode())
            finally:
                os.close(log)

        log("begin")
        try:
            yield log
        finally:
            log("end")


def _excludes(work: sdk.DeviceWork, job: str) -> bool:
    """Return whether what was made of a device for a claim has to be undone before this work may begin."""
    device, _, claim = job.partition(".")
    if claim == work.claim_uid:
        return False
    if device == work.device:
        return not work.share_id
    return not (_PART.search(device) and _PART.search(work.device))


def _steps(seconds: float) -> Iterator[tuple[int, int]]:
    """Yield number and total of the steps of a tool that takes so long; each takes its time first."""
    total = max(1, round(seconds / STEP))
    for number in range(total):
        time.sleep(min(seconds, STEP))
        yield number, total


def factory(arg: str, *, sysfs_root: Path, dev_root: Path, node_name: str) -> sdk.DeviceBackend:
    """Make the backend, for ``--backend slow-acme``."""
    return SlowBackend(sysfs_root)
