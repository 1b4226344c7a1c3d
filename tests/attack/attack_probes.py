"""What looks at the controllers from outside.

Each look has a thread: a busy event loop of the suite must not show as an answer that is late.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from attack_cluster import Controllers, Replica

from dra_driver.sim.processes import spawn

__all__ = ["Watchers", "pss"]

_PROBE_SECONDS = 0.05
_REVIEW_SECONDS = 0.5
_MEMORY_SECONDS = 0.5
_SERVER_SECONDS = 0.1
_GIVE_UP = 10.0
_MIB = 1 << 10  # of kB

_SLEEPER = """
import time
while True:
    longest, end = 0.0, time.monotonic() + 0.25
    while time.monotonic() < end:
        due = time.monotonic() + 0.01
        time.sleep(0.01)
        longest = max(longest, time.monotonic() - due)
    print(longest, flush=True)
"""

_REVIEW = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "honest",
            "kind": {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"},
            "operation": "CREATE",
            "object": {"spec": {"devices": {}}},
        },
    }
)


def pss(pid: int) -> int:
    """Return the proportional set size of a process in kB; 0 once it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def _answered(connection: http.client.HTTPConnection, method: str, path: str) -> str:
    """Ask; return what was wrong with the answer.

    Raises:
        ConnectionRefusedError: nobody listens.
    """
    try:
        connection.request(
            method, path, _REVIEW if method == "POST" else None, {"Content-Type": "application/json"}
        )
        status = connection.getresponse().status
        return "" if status == 200 else str(status)
    except ConnectionRefusedError:
        raise
    except (OSError, http.client.HTTPException) as e:
        return type(e).__name__
    finally:
        connection.close()


class Watchers:
    """Probes, reviews and memory, from ``begin`` on.

    Attributes:
        memory: highest sum of the PSS of all processes so far, in MiB.
        noise: longest delay of a process that does nothing but sleep, in seconds: what the machine adds.
        server: longest answer of the API server to a small question, in seconds: what it adds.
        failures: answers other than 200, for people.
    """

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._asked: dict[tuple[int, str], float] = {}
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self.begin()

    def begin(self) -> None:
        """Forget what was seen so far."""
        with self._lock:
            self._probe_seconds: float | None = None
            self._review_seconds: float | None = None
            self.memory: float | None = None
            self.noise = self.server = 0.0
            self.failures: list[str] = []
            self._since = time.monotonic()

    def start(self) -> None:
        """Start the threads."""
        jobs: list[tuple[Callable[[], None], float]] = [
            (self._look_at_memory, _MEMORY_SECONDS),
            (self._ask_the_server, _SERVER_SECONDS),
        ]
        for replica in self._controllers.replicas:
            jobs.append((lambda r=replica: self._probe(r), _PROBE_SECONDS))  # type: ignore[misc]
            jobs.append((lambda r=replica: self._review(r), _REVIEW_SECONDS))  # type: ignore[misc]
        for job, pause in jobs:
            thread = threading.Thread(target=self._repeat, args=(job, pause), daemon=True)
            thread.start()
            self._threads.append(thread)

    async def listen(self) -> None:
        """Run the process that shows how busy the machine is, until cancelled."""
        sleeper = await spawn((sys.executable, "-c", _SLEEPER), {})
        assert sleeper.stdout is not None
        try:
            async for line in sleeper.stdout:
                self.noise = max(self.noise, float(line))
        finally:
            sleeper.send_signal(signal.SIGKILL)
            await sleeper.wait()

    def stop(self) -> None:
        """End the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_GIVE_UP + 5)

    def _repeat(self, job: Callable[[], None], pause: float) -> None:
        while not self._stop.wait(pause):
            job()

    def longest(self) -> tuple[float | None, float | None]:
        """Return the longest answers to a probe and to a review, those that are still waited for included."""
        with self._lock:
            found = {"GET": self._probe_seconds, "POST": self._review_seconds}
            for (number, method), started in list(self._asked.items()):
                if started >= self._since and not self._controllers.replicas[number].excused:
                    found[method] = max(found[method] or 0.0, time.monotonic() - started)
        return found["GET"], found["POST"]

    def _probe(self, replica: Replica) -> None:
        for path in ("/healthz", "/readyz"):
            connection = http.client.HTTPConnection("127.0.0.1", replica.health, timeout=_GIVE_UP)
            if (seconds := self._ask(replica, connection, "GET", path)) is not None:
                with self._lock:
                    self._probe_seconds = max(self._probe_seconds or 0.0, seconds)

    def _review(self, replica: Replica) -> None:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", replica.webhook, timeout=_GIVE_UP, context=self._context
        )
        if (seconds := self._ask(replica, connection, "POST", "/validate")) is not None:
            with self._lock:
                self._review_seconds = max(self._review_seconds or 0.0, seconds)

    def _ask(
        self, replica: Replica, connection: http.client.HTTPConnection, method: str, path: str
    ) -> float | None:
        """Return the seconds until the answer; None if it does not count.

        That is the case for a process that an attack has stopped, that is not there or has just begun (its
        restart is counted elsewhere), and for a question of before ``begin``.
        """
        process, began, started = replica.pid, replica.began, time.monotonic()
        if not process:
            return None
        self._asked[replica.number, method] = started
        try:
            problem = _answered(connection, method, path)
        except ConnectionRefusedError:
            return None
        finally:
            seconds = time.monotonic() - started
            self._asked.pop((replica.number, method), None)
        if replica.excused or (process, began) != (replica.pid, replica.began):
            return None
        with self._lock:
            if started < self._since:
                return None
            if problem:
                self.failures.append(f"{path} of replica {replica.number}: {problem}")
        return _GIVE_UP if problem else seconds

    def _ask_the_server(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._controllers.api.port, timeout=_GIVE_UP)
        started = time.monotonic()
        with contextlib.suppress(ConnectionRefusedError):
            _answered(connection, "GET", "/api/v1/namespaces/default")
        with self._lock:
            if started >= self._since:
                self.server = max(self.server, time.monotonic() - started)

    def _look_at_memory(self) -> None:
        whole = sum(map(pss, self._controllers.pids())) / _MIB
        with self._lock:
            self.memory = max(self.memory or 0.0, whole)
