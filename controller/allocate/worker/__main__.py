"""``python -m controller.allocate.worker FD PARENT``: the process that decides. The controller starts it."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import select
import socket
import sys
from typing import Final

from controller import process_limits as limits
from controller.allocate.worker.service import Service
from controller.allocate.worker.wire import Frames

_CHUNK: Final = 1 << 18
# Without a message, there is time for what can wait.
_IDLE_SECONDS: Final = 1.0


def main(descriptor: int, parent: int) -> int:
    """Work until the controller closes the connection; return the exit status.

    Args:
        descriptor: of the connection.
        parent: the controller's process; this one ends with it, whatever it is doing.
    """
    limits.end_with_parent(parent)
    limits.prefer_to_end(500)
    # Until the service is ready: what comes by then stays, and would be looked at again and again.
    gc.disable()
    with contextlib.closing(socket.socket(fileno=descriptor)) as connection:
        os.set_inheritable(descriptor, False)
        service = Service(connection.sendall, descriptor)
        frames = Frames()
        try:
            while True:
                _wait(connection, service)
                data = connection.recv(_CHUNK)
                if not data:
                    return 0
                for message in frames.feed(data):
                    service.handle(message)
        except MemoryError:
            # What was left half-done is not known: the controller starts another worker.
            return limits.EXIT_MEMORY
        except (BrokenPipeError, ConnectionResetError):
            return 0
        finally:
            for lane in service.lanes:
                lane.close()


def _wait(connection: socket.socket, service: Service) -> None:
    """Serve the slow lane, the counts and the plans until there is a message."""
    while True:
        if service.upkeep_is_due:
            service.keep_up()
        for lane in service.lanes:
            lane.look()
        timeouts = [timeout for lane in service.lanes if (timeout := lane.timeout) is not None]
        timeout = 0.0 if service.is_preparing else min((*timeouts, _IDLE_SECONDS))
        # No ``select``: it takes no descriptors from 1,024 on, and the controller may have given us one.
        poll = select.poll()
        for descriptor in (connection.fileno(), *(pipe for lane in service.lanes for pipe in lane.pipes)):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(math.ceil(timeout * 1000))]
        if not ready:
            if service.is_preparing:
                service.keep_up()
            else:
                service.idle()
        for lane in service.lanes:
            for pipe in ready:
                lane.read(pipe)
        if connection.fileno() in ready:
            return


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
