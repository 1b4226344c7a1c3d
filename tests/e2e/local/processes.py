"""The components' processes: started with a log each, watched while they come up, stopped in order."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TAIL_LINES = 25


class NotUpError(Exception):
    """Something did not come up; the message ends with what its log says."""


def tail(file: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, or a remark that there is none."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - 64 * 1024))
            text = log.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return f"({file.name} does not exist)"
    return "\n".join(f"  | {line[:500]}" for line in text) or "  (empty)"


class Processes:
    """Named processes whose output goes to ``folder/NAME.log``."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = dict(environment)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Starts it in a session of its own: an interrupt from the terminal is for the harness to act on.

        Gives what had the name before; it is the caller's to end.
        """
        before = self._running.get(name)
        with self.log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        return before

    def log(self, name: str) -> Path:
        """Where its output is."""
        return self.folder / f"{name}.log"

    def pid(self, name: str) -> int:
        """Return the ID of one of them."""
        return self._running[name].pid

    def wait(self, name: str, what: str, ready: Callable[[], bool], seconds: float) -> None:
        """Waits until ``ready`` says so.

        Raises:
            NotUpError: it has ended, or the time is over; with the tail of its log.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            code = self._running[name].poll()
            if code is not None:
                raise NotUpError(f"{name} has ended with status {code}; its log:\n{tail(self.log(name))}")
            if time.monotonic() > deadline:
                raise NotUpError(
                    f"{name}: {what} is not there after {seconds:.0f} s; its log:\n{tail(self.log(name))}"
                )
            time.sleep(0.1)

    def dead(self) -> list[str]:
        """Those that have ended although nobody stopped them."""
        return [f"{n} (status {p.returncode})" for n, p in self._running.items() if p.poll() is not None]

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """Ends one of them with a signal and waits for it."""
        self.end(self._running[name], number)

    @staticmethod
    def end(process: subprocess.Popen[bytes] | None, number: int = signal.SIGTERM) -> None:
        """Ends what ``start`` gave."""
        if process is not None:
            process.send_signal(number)
            process.wait()

    def stop_all(self, grace_seconds: float = 5.0) -> None:
        """Asks all of them, the youngest first; kills those that do not go."""
        for process in reversed(self._running.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        for process in self._running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()
