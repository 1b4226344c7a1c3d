"""``python -m controller.admission FD PARENT``: the process that reviews. The controller starts it."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from typing import Any, Final

from controller import process_limits
from controller.admission.reviewer import Reviewer
from controller.admission.wire import LARGEST, Capacity, Certificate, Ping, Start, line, told

# Beside the event loop of the controller, which has to be on time.
_NICE: Final = 1


async def _review(descriptor: int) -> int:
    """Work until the controller closes the connection; return the exit status."""
    connection = socket.socket(fileno=descriptor)
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection, limit=LARGEST)
    start = told(await reader.readline())
    assert isinstance(start, Start)
    reviewer = Reviewer(start)
    asyncio.get_running_loop().set_exception_handler(_failed)
    process_limits.bound_memory(start.memory)
    # A connection that ends in its handshake leaves 256 KiB in a circle. What is there now stays.
    gc.collect()
    gc.freeze()
    gc.set_threshold(500, 2, 2)
    async with reviewer.serving():
        while text := await reader.readline():
            match told(text):
                case Certificate() as certificate:
                    reviewer.install(certificate)
                case Capacity(kept=kept):
                    reviewer.keeps_capacity = kept
                case Ping(number=number):
                    writer.write(line(reviewer.pong(number)))
                    await writer.drain()
                case _:
                    raise ValueError("a second start")
        return 0


def _failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(context.get("exception"), MemoryError):
        os._exit(process_limits.EXIT_MEMORY)
    loop.default_exception_handler(context)


def main(descriptor: int, parent: int) -> int:
    """Review; return the exit status.

    Args:
        descriptor: of the connection to the controller.
        parent: the controller's process; this one ends with it, whatever it is doing.
    """
    process_limits.end_with_parent(parent)
    process_limits.prefer_to_end(500)
    os.nice(_NICE)
    try:
        return asyncio.run(_review(descriptor))
    except MemoryError:
        return process_limits.EXIT_MEMORY
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
