"""Goes through all users of a claim, some at a time: thousands at once would hold up the event loop."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from dra_driver.api.meta import ObjectKey

__all__ = ["PAUSE_SECONDS", "STEP", "Walks"]

K = TypeVar("K", bound=tuple[str, ...])

STEP: Final = 64
"""Users that are gone through at once; most claims have less."""
PAUSE_SECONDS: Final = 0.01
"""Between two steps."""


class Walks(Generic[K]):
    """Does something with each user of something: of a claim, say, or each member of a group.

    What is begun again while its users are gone through is gone through once more afterwards, however often
    that was. So it costs so much time and no more, whatever changes how often. Namespaces take turns.

    Args:
        users: gives the pods that use something, behind one and as many as are asked for, in order.
        do: is called with each of them.
    """

    def __init__(
        self,
        users: Callable[[K, ObjectKey | None, int], Sequence[ObjectKey]],
        do: Callable[[ObjectKey], None],
    ) -> None:
        self._users = users
        self._do = do
        # By namespace and what is used: the last user that was done, None where none was.
        self._under_way: OrderedDict[str, OrderedDict[K, ObjectKey | None]] = OrderedDict()
        self._again: set[K] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, used: K) -> None:
        """Do it with all users, with the first ones at once. The first part of the key is the namespace."""
        if used in self._under_way.get(used[0], ()):
            self._again.add(used)
        else:
            self._step(used, None)

    def _step(self, used: K, last: ObjectKey | None) -> None:
        users = self._users(used, last, STEP)
        if len(users) == STEP:
            self._put(used, users[-1])
        elif used in self._again:
            self._again.discard(used)
            self._put(used, None)
        for user in users:
            self._do(user)

    def _put(self, used: K, last: ObjectKey | None) -> None:
        self._under_way.setdefault(used[0], OrderedDict())[used] = last
        self._go_on_later()

    def _go_on_later(self) -> None:
        if self._timer is None and self._under_way:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        namespace, waiting = self._under_way.popitem(last=False)
        used, last = waiting.popitem(last=False)
        if waiting:
            self._under_way[namespace] = waiting
        self._step(used, last)
        self._go_on_later()

    def close(self) -> None:
        """Cancel what is left."""
        self._under_way.clear()
        self._again.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
