"""The controller as a process with its usual flags, looked at through its own metrics and ``/proc``."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

from apiserver_support import processor

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_PREFIX = "dra_driver_controller"
_WRITES = ("create", "update", "patch", "apply", "delete")


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class ControllerProcess:
    """Started at once; ``stop`` it.

    Attributes:
        started: when, on the monotonic clock.
    """

    def __init__(self, kubeconfig: Path, log: Path, *flags: str) -> None:
        self._port = _free_port()
        self._log = log.open("ab")
        self.started = time.monotonic()
        command = [sys.executable, "-m", "dra_driver.cli.main", "controller", "--kubeconfig", str(kubeconfig)]
        self._process = subprocess.Popen(
            [*command, "--health-port", str(self._port), *flags], stdout=self._log, stderr=self._log
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def processor(self) -> float:
        """Processor seconds so far."""
        return processor(self.pid)

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Its metrics; none while it does not answer."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the controller ended with {self._process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        found = {}
        for line in text.splitlines():
            match = _SAMPLE.match(line)
            if match:
                name = match[1].removeprefix(f"{_PREFIX}_")
                found[name, frozenset(_LABEL.findall(match[2] or ""))] = float(match[3])
        return found

    def wait_until_leading(self, seconds: float) -> float:
        """Until it works; returns the seconds since its start."""
        deadline = time.monotonic() + seconds
        while self.samples().get(("leader", frozenset())) != 1.0:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the controller does not lead after {seconds:g} s")
            time.sleep(0.05)
        return time.monotonic() - self.started

    def calls(self) -> Counter[tuple[str, str, str]]:
        """API calls so far, by verb, resource and code. Watches, reads, leases and Events are left out."""
        found: Counter[tuple[str, str, str]] = Counter()
        for (name, labels), value in self.samples().items():
            of = dict(labels)
            if (
                name == "api_calls_total"
                and of["verb"] in _WRITES
                and of["resource"] not in ("leases", "events")
            ):
                found[of["verb"], of["resource"], of["code"]] = int(value)
        return found

    def waiting(self) -> float:
        """Keys in its queues."""
        return sum(v for (name, _), v in self.samples().items() if name == "queue_depth")

    def wait_until_quiet(self, seconds: float, still: float = 2.0) -> float:
        """Until nothing waits and nothing was written for ``still`` seconds.

        Returns:
            seconds from the start to the last write (or to the last thing that waited).
        """
        deadline = time.monotonic() + seconds
        last, since = self.calls(), time.monotonic()
        while time.monotonic() - since < still:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the controller is not quiet after {seconds:g} s: {last}")
            time.sleep(0.1)
            now = self.calls()
            if now != last or self.waiting():
                last, since = now, time.monotonic()
        return since - self.started

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Ends it; returns how many seconds that took."""
        asked = time.monotonic()
        self._process.send_signal(number)
        self._process.wait(60)
        self._log.close()
        return time.monotonic() - asked
