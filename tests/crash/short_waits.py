"""Has a node agent wait for less time, as for a kubelet that asks again within seconds.

Only the agent under test installs this. Times that end what hangs stay as they are.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

# The kubelet's own patience becomes this.
FACTOR = 25
CALL_SECONDS = 45.0 / FACTOR
# Set in the environment of an agent that waits shorter.
VARIABLE = "CRASH_TEST_SHORT_WAITS"


def install() -> None:
    """Shorten what calls of the kubelet and looks at claims wait for, in proportion."""
    from kubelet_plugin.claims import locks, preparer
    from kubelet_plugin.claims.planning import Timing
    from kubelet_plugin.claims.reconciliation import Intervals
    from kubelet_plugin.config import Timings
    from kubelet_plugin.extensions import calls, effects
    from kubelet_plugin.grpc.services import Calls

    for module, name in (
        (locks, "_FAIR_SECONDS"),
        (preparer, "_LOOK_AGAIN_SECONDS"),
        (effects, "_REVIEW_SECONDS"),
        (calls, "_KEPT_SECONDS"),
    ):
        setattr(module, name, getattr(module, name) / FACTOR)
    waits = effects.BackendEffects.__init__.__kwdefaults__
    assert waits is not None
    waits["seconds"] /= FACTOR
    _shorten(Timing, "budget", "patience")
    _shorten(Timings, "renew", "renew_again", "handover")
    _shorten(Intervals, "first")
    # Looks at all claims come more often still, because each may meet a call.
    _shorten(Intervals, "every", by=300)
    seconds, observe = Calls.__init__.__defaults__ or ()
    Calls.__init__.__defaults__ = (seconds / FACTOR, observe)


def _shorten(times: type[Any], *names: str, by: float = FACTOR) -> None:
    """Change the defaults of a dataclass whose fields are all times."""
    make: Any = times.__init__
    before: list[tuple[str, Any]] = [(f.name, f.default) for f in fields(times)]
    after = {name: seconds / by if name in names else seconds for name, seconds in before}
    if make.__kwdefaults__:
        make.__kwdefaults__ = after
    else:
        make.__defaults__ = tuple(after.values())
