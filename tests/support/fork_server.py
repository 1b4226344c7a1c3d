"""Processes of tests, such as agents and controllers, that cost no imports: ``fork_server.py SOCKET``.

Imports them once and forks one process for each connection. A connection brings JSON, ``{"arguments",
"environment", "imports"}``, the file that gets stdout and stderr, and those of the process's own; the answers
are the process ID and, when it has ended, its exit status (negative: the signal). A process whose connection
is closed is killed, and so are all when our stdin is closed. ``imports`` are imported by us, not by it.

They are the real commands, scripts (the first argument is then a path that ends in ``.py``, or ``-c`` before
the text of a script, whose own file is its stdin and stdout), or workers of controllers, but a controller
waits 1 s instead of 15 s before a pool changes hands, and its worker is forked here as well.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

import forked
import msgspec

sys.path.extend(str(Path(__file__).with_name(room)) for room in ("controller", "hardware"))

# Imported before the first fork; nothing here starts a thread.
from forked_worker import ForkedWorker

import dra_driver.cli.processes.controller
import dra_driver.cli.processes.kubelet_plugin
import dra_driver.discovery.nvidia.backend
import dra_driver.discovery.rdma.backend
import dra_driver.discovery.simulated.backend
from controller.allocate.decide import PodQuestion
from controller.allocate.worker import __main__ as worker
from controller.allocate.worker.sent_answers import Answer
from controller.allocate.worker.wire import Start
from controller.assembly import worker_process
from controller.config import Timings
from dra_driver.api import codec
from dra_driver.api.core import Event, Node, Pod
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dra_driver.cli import common
from dra_driver.cli import main as cli
from dra_driver.errors import DecodeError

TIMINGS = Timings(drain=1.0)
ANSWERS_OF = functools.partial(worker_process, start=ForkedWorker.start)
DECODED: tuple[type, ...] = (
    *(Pod, Node, Event, DeviceClass, DeviceInventory, ResourceClaim, ResourceClaimTemplate, ResourceSlice),
    *(Start, PodQuestion, Answer),
)


def main() -> int:
    """Serve until stdin is closed; return the exit status."""
    prepare()
    # The collector would write to the pages of everything that processes share with us.
    gc.freeze()
    readable, writable = os.pipe()
    for end in (readable, writable):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    print("ready", flush=True)
    children: dict[int, socket.socket] = {}
    while True:
        waited: list[int | socket.socket] = [0, readable, listener, *children.values()]
        ready = select.select(waited, [], [])[0]
        if readable in ready:
            os.read(readable, 4096)
        if listener in ready:
            connection = listener.accept()[0]
            data, (output, *own), _, _ = socket.recv_fds(connection, 1 << 20, 2)
            request = msgspec.json.decode(data)
            for module in request["imports"]:
                importlib.import_module(module)
            pid = os.fork()
            if pid == 0:
                for inherited in (listener, connection, *children.values()):
                    inherited.close()
                leave(child(request, output, own))
            for file in (output, *own):
                os.close(file)
            os.setpgid(pid, pid)  # whoever hears of it may end its group at once
            connection.sendall(b"%d\n" % pid)
            children[pid] = connection
        for pid, connection in list(children.items()):
            if connection in ready or 0 in ready:
                os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if 0 in ready else os.WNOHANG)
            if ended:
                answer(children.pop(pid), os.waitstatus_to_exitcode(status))
        if 0 in ready:
            return 0


def prepare() -> None:
    """Make what every process would make: decoders, each of which takes some milliseconds."""
    for kind in DECODED:
        with contextlib.suppress(DecodeError):
            codec.decode(kind, "{}")


def answer(connection: socket.socket, status: int) -> None:
    """Send an exit status, where somebody still listens."""
    with connection:
        try:
            connection.sendall(b"%d\n" % status)
        except OSError:
            return


def child(request: dict[str, Any], output: int, own: list[int]) -> int:
    """Become the command."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.environ.update(request["environment"])
    os.environ[forked.SERVER] = sys.argv[1]
    random.seed()
    try:
        load_libraries(request["environment"].get("LD_LIBRARY_PATH", ""))
        return command(request["arguments"], own)
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return e.code or 0
        print(e.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1


def leave(status: int) -> NoReturn:
    """End as a process of Python does, but take nothing apart: it would write to all pages that we share."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def load_libraries(folders: str) -> None:
    """Load what is in the folders of LD_LIBRARY_PATH, which the dynamic linker has read at our start."""
    for folder in filter(None, folders.split(os.pathsep)):
        for library in Path(folder).glob("*.so*"):
            ctypes.CDLL(str(library))


def command(arguments: list[str], own: list[int]) -> int:
    """Run ``dra-driver``, a script, or a worker, whose connection is a file of its own."""
    if arguments == ["worker"]:
        (connection,) = own
        return worker.main(connection, os.getppid())
    if arguments[0] == "-c":
        (connection,) = own
        for number in (0, 1):
            os.dup2(connection, number)
        os.close(connection)
        sys.argv = ["-c", *arguments[2:]]
        exec(arguments[1], {"__name__": "__main__"})
        return 0
    if arguments[0].endswith(".py"):
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        return 0
    if arguments[0] != "controller":
        return cli.main(arguments)
    parser = argparse.ArgumentParser()
    common.add_logging_arguments(parser)
    dra_driver.cli.processes.controller.add_arguments(parser)
    args = parser.parse_args(arguments[1:])
    common.configure_logging(args.log_level, args.log_format)
    return dra_driver.cli.processes.controller.run(args, TIMINGS, ANSWERS_OF)


if __name__ == "__main__":
    sys.exit(main())
