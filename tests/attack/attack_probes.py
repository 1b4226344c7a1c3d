"""What looks at the controllers from outside.

Each look has a thread, and each question a process that asks it and takes its time: neither a busy event
loop of the suite nor the interpreter's lock, which an attack may hold for long, must show as a late answer.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from attack_cluster import Controllers, Replica, children

from dra_driver.sim.processes import spawn

__all__ = ["Watchers", "pss"]

_PROBE_SECONDS = 0.05
_REVIEW_SECONDS = 0.5
_MEMORY_SECONDS = 0.5
_SERVER_SECONDS = 0.1
_GIVE_UP = 10.0
# The first review that a controller gets waits until the process that reviews has started.
_REVIEWER_STARTS = 2.0
_READING_SECONDS = 0.02
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


def _serve_questions() -> None:
    """Ask what each line of the input says, and print ``[seconds, problem]``; null if nobody listens."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    print(flush=True)
    for line in sys.stdin:
        port, method, path = json.loads(line)
        connection = (
            http.client.HTTPSConnection("127.0.0.1", port, timeout=_GIVE_UP, context=context)
            if method == "POST"
            else http.client.HTTPConnection("127.0.0.1", port, timeout=_GIVE_UP)
        )
        started = time.monotonic()
        try:
            problem = _answered(connection, method, path)
            answer: object = [time.monotonic() - started, problem]
        except ConnectionRefusedError:
            answer = None
        print(json.dumps(answer), flush=True)


class _Asker:
    """A process that asks one question at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import attack_probes; attack_probes._serve_questions()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def wait(self) -> None:
        """Wait until it has started: that must not show as a late answer."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def ask(self, port: int, method: str, path: str) -> tuple[float, str] | None:
        """Return the seconds until the answer and what was wrong with it; None if nobody listens."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([port, method, path]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return None if answer is None else (answer[0], answer[1])

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Watchers:
    """Probes, reviews and memory, from ``begin`` on.

    Attributes:
        memory: highest sum of the PSS of all processes of a controller so far, in MiB.
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
        self._reviewed: dict[int, int] = {}  # by replica, of which of its processes there was a review
        self._askers: list[_Asker] = []
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
            (functools.partial(self._ask_the_server, self._asker()), _SERVER_SECONDS),
        ]
        for replica in self._controllers.replicas:
            jobs.append((functools.partial(self._probe, self._asker(), replica), _PROBE_SECONDS))
            jobs.append((functools.partial(self._review, self._asker(), replica), _REVIEW_SECONDS))
        for asker in self._askers:
            asker.wait()
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
        """End the threads and their processes."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_GIVE_UP + 5)
        for asker in self._askers:
            asker.end()

    def _asker(self) -> _Asker:
        self._askers.append(_Asker())
        return self._askers[-1]

    def _repeat(self, job: Callable[[], None], pause: float) -> None:
        while not self._stop.wait(pause):
            job()

    def longest(self) -> tuple[float | None, float | None]:
        """Return the longest answers to a probe and to a review, those that are still waited for included."""
        time.sleep(_READING_SECONDS)  # so that the threads read what has been answered
        with self._lock:
            found = {"GET": self._probe_seconds, "POST": self._review_seconds}
            for (number, method), started in list(self._asked.items()):
                replica = self._controllers.replicas[number]
                if started >= self._since and not replica.excused:
                    seconds = self._judged(replica, method, time.monotonic() - started)
                    found[method] = max(found[method] or 0.0, seconds)
        return found["GET"], found["POST"]

    def _probe(self, asker: _Asker, replica: Replica) -> None:
        for path in ("/healthz", "/readyz"):
            if (seconds := self._ask(asker, replica, replica.health, "GET", path)) is not None:
                with self._lock:
                    self._probe_seconds = max(self._probe_seconds or 0.0, seconds)

    def _review(self, asker: _Asker, replica: Replica) -> None:
        if (seconds := self._ask(asker, replica, replica.webhook, "POST", "/validate")) is not None:
            with self._lock:
                self._review_seconds = max(self._review_seconds or 0.0, seconds)

    def _ask(self, asker: _Asker, replica: Replica, port: int, method: str, path: str) -> float | None:
        """Return the seconds until the answer; None if it does not count.

        That is the case for a process that an attack has stopped, that is not there or has just begun (its
        restart is counted elsewhere), and for a question of before ``begin``.
        """
        process, began, started = replica.pid, replica.began, time.monotonic()
        if not process:
            return None
        self._asked[replica.number, method] = started
        try:
            answer = asker.ask(port, method, path)
        finally:
            self._asked.pop((replica.number, method), None)
        if answer is None or replica.excused or (process, began) != (replica.pid, replica.began):
            return None
        seconds, problem = answer
        judged = self._judged(replica, method, seconds)
        if method == "POST" and not problem:
            self._reviewed[replica.number] = began
        with self._lock:
            if started < self._since:
                return None
            if problem:
                self.failures.append(f"{path} of replica {replica.number}: {problem}")
        return _GIVE_UP if problem else judged

    def _judged(self, replica: Replica, method: str, seconds: float) -> float:
        """Return the seconds that count of those which an answer took."""
        first = method == "POST" and self._reviewed.get(replica.number) != replica.began
        return max(0.0, seconds - _REVIEWER_STARTS) if first else seconds

    def _ask_the_server(self, asker: _Asker) -> None:
        started = time.monotonic()
        answer = asker.ask(self._controllers.api.port, "GET", "/api/v1/namespaces/default")
        with self._lock:
            if answer is not None and started >= self._since:
                self.server = max(self.server, answer[0])

    def _look_at_memory(self) -> None:
        pids = [replica.pid for replica in self._controllers.replicas if replica.pid]
        largest = max((sum(map(pss, (pid, *children(pid)))) for pid in pids), default=0) / _MIB
        with self._lock:
            self.memory = max(self.memory or 0.0, largest)
