"""A script that runs many times, each in a process of its own that costs no imports.

For libraries that a process loads once, or whose folder the dynamic linker reads from the environment at the
start of a process alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Self

_SERVER = """
import gc, json, os, sys
_, imports, script = sys.argv
shared = {}
exec(imports, shared)
# The collector would write to the pages of everything that processes share with us.
gc.freeze()
while line := sys.stdin.readline():
    request = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.environ.update(request["environment"])
        exec(script, shared | {"arguments": request["arguments"]})
        break
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class ForkedScript:
    """The server that forks the processes.

    Args:
        imports: Python text that is run once.
        script: Python text that each process runs after it, and that prints JSON, a value on each line; its
            ``arguments`` are those of ``run``.
        environment: variables of all processes, from their start; None takes one away.
    """

    def __init__(self, imports: str, script: str, environment: Mapping[str, str | None]) -> None:
        env = {k: v for k, v in {**os.environ, **environment}.items() if v is not None}
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, imports, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def run(self, *arguments: Any, environment: Mapping[str, str]) -> list[Any]:
        """Return what the script prints in a new process, which must end well."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = {"arguments": arguments, "environment": dict(environment)}
        print(json.dumps(request), file=self._server.stdin, flush=True)
        lines: list[str] = []
        while not (line := self._server.stdout.readline()).startswith("ended with "):
            assert line, "the server has ended"
            lines.append(line)
        assert line == "ended with 0\n", "see its stderr"
        return [json.loads(line) for line in lines]
