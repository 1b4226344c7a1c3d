"""The language of faults, read strictly: a statement that is not understood is refused, with its line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from dra_driver.errors import ConfigurationError
from dra_driver.sim.faults import plan
from dra_driver.sim.faults.plan import Fault, FaultPlan, Target, Timing, Traffic

__all__ = ["parse"]

CODES = (400, 401, 403, 404, 409, 410, 422, 429, 500, 502, 503, 504)
PARTS = {"apiserver": False, "controller": False, "plugin": True, "kubelet": True}  # True: of a node
LONGEST = 7 * 24 * 3600.0
MOST_STATEMENTS = 1000

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")
_RESOURCE = re.compile(r"[a-z0-9][a-z0-9.-]*(/[a-z]+)?")
_NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_CLAUSES = ("on", "from", "at", "for", "every", "until", "times")


class _Wrong(Exception):
    """A mistake in a statement; the caller adds its place."""


def parse(text: str, *, seed: int = 0, source: str = "faults") -> FaultPlan:
    """Read the language.

    Args:
        text: statements, one per line or separated by ``;``; ``#`` begins a comment.
        seed: the seed, if the text has no statement ``seed N``.
        source: name of the text in errors: a file name, or a flag.

    Raises:
        ConfigurationError: with the line, what was found and what is allowed.
    """
    faults: list[Fault] = []
    for number, line in enumerate(text.splitlines(), start=1):
        for statement in line.partition("#")[0].split(";"):
            words = statement.split()
            if not words:
                continue
            try:
                if words[0] == "seed":
                    seed = _seed(words)
                else:
                    faults.append(_statement(words))
            except _Wrong as e:
                shown = " ".join(words)
                raise ConfigurationError(f"{source}, line {number}, in {shown!r}: {e}") from None
            if len(faults) > MOST_STATEMENTS:
                raise ConfigurationError(f"{source}: more than {MOST_STATEMENTS} statements")
    return FaultPlan(tuple(faults), seed)


def _seed(words: list[str]) -> int:
    if len(words) != 2 or not re.fullmatch(r"\d{1,18}", words[1]):
        raise _Wrong("seed needs one whole number")
    return int(words[1])


@dataclass(slots=True)
class _Clauses:
    """The clauses after the action, in any order, each at most once."""

    verbs: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    percent: float = 100.0
    timing: Timing = field(default_factory=Timing)
    seen: list[str] = field(default_factory=list)

    @property
    def traffic(self) -> Traffic:
        return Traffic(self.verbs, self.resources, self.agents, self.percent)


def _statement(words: list[str]) -> Fault:
    entry = _ACTIONS.get(words[0])
    if entry is None:
        raise _Wrong(f"no such fault {words[0]!r}; there are {', '.join(_ACTIONS)} (and seed)")
    arguments: list[str] = []
    rest = list(words[1:])
    while rest and rest[0] not in _CLAUSES and not _PERCENT.fullmatch(rest[0]):
        arguments.append(rest.pop(0))
    clauses = _clauses(rest, watches=entry.watches)
    for name in clauses.seen:
        if name not in entry.clauses:
            raise _Wrong(f"{words[0]} knows no {name!r}; allowed: {', '.join(entry.clauses)}")
    _check_timing(words[0], clauses.timing, entry)
    return entry.make(arguments, clauses)


def _clauses(words: list[str], *, watches: bool) -> _Clauses:
    made = _Clauses()
    rest = iter(words)
    pending: list[str] = []
    while (word := pending.pop() if pending else next(rest, None)) is not None:
        name = "percent" if _PERCENT.fullmatch(word) else word
        if name not in (*_CLAUSES, "percent"):
            raise _Wrong(f"{word!r} is not understood; allowed: N%, {', '.join(_CLAUSES)}")
        if name in made.seen:
            raise _Wrong(f"{name!r} is there twice")
        made.seen.append(name)
        if name == "percent":
            made.percent = _percent(word)
        elif name == "on":
            _on(made, rest, pending, watches=watches)
        else:
            value = next(rest, None)
            if value is None:
                raise _Wrong(f"{name!r} needs a value")
            _clause(made, name, value)
    return made


def _on(made: _Clauses, rest: Iterator[str], pending: list[str], *, watches: bool) -> None:
    """Read ``on VERBS [RESOURCES]``, of faults of watches ``on RESOURCES``."""
    first = next(rest, None)
    if first is None:
        raise _Wrong("'on' needs " + ("resources" if watches else "verbs"))
    if watches:
        made.resources = _resources(first)
        return
    verbs = tuple(first.split(","))
    unknown = [v for v in verbs if v not in plan.REQUEST_VERBS]
    if verbs == ("all",):
        verbs = ()
    elif unknown:
        raise _Wrong(f"no such verb {unknown[0]!r}; there are all, {', '.join(plan.REQUEST_VERBS)}")
    made.verbs = verbs
    following = next(rest, None)
    if following is None:
        return
    if following in _CLAUSES or _PERCENT.fullmatch(following):
        pending.append(following)
    else:
        made.resources = _resources(following)


def _clause(made: _Clauses, name: str, value: str) -> None:
    timing = made.timing
    match name:
        case "from":
            made.agents = tuple(value.split(","))
            if not all(made.agents):
                raise _Wrong(f"'from' needs beginnings of User-Agents, separated by commas, not {value!r}")
        case "at":
            made.timing = dataclasses.replace(timing, at=_duration(value))
        case "for":
            made.timing = dataclasses.replace(timing, duration=_positive("for", value))
        case "every":
            made.timing = dataclasses.replace(timing, every=_positive("every", value))
        case "until":
            made.timing = dataclasses.replace(timing, until=_positive("until", value))
        case _:
            if not re.fullmatch(r"[1-9]\d{0,8}", value):
                raise _Wrong(f"'times' needs a whole number from 1 on, not {value!r}")
            made.timing = dataclasses.replace(timing, times=int(value))


def _check_timing(action: str, timing: Timing, entry: _Action) -> None:
    if timing.every is not None:
        lasts = "for" in entry.clauses
        if lasts and timing.duration is None:
            raise _Wrong(f"{action} with 'every' needs 'for': how long each time")
        if timing.duration is not None and timing.duration >= timing.every:
            raise _Wrong("'for' must be shorter than 'every'")
    elif timing.until is not None:
        raise _Wrong("'until' needs 'every'")
    elif timing.times is not None and "percent" not in entry.clauses:
        raise _Wrong(f"{action} with 'times' needs 'every'")
    if timing.until is not None and timing.until <= timing.at:
        raise _Wrong("'until' must be later than 'at'")


# --- words --------------------------------------------------------------------------------------------------


def _duration(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise _Wrong(f"{text!r} is no duration: a number with {', '.join(_UNITS)}, for example 250ms")
    seconds = round(float(found[1]) * _UNITS[found[2]], 6)
    if seconds > LONGEST:
        raise _Wrong(f"{text!r} is more than a week")
    return seconds


def _positive(name: str, text: str) -> float:
    seconds = _duration(text)
    if seconds <= 0:
        raise _Wrong(f"'{name}' must be more than nothing")
    return seconds


def _percent(text: str) -> float:
    value = float(text[:-1])
    if not 0 < value <= 100:
        raise _Wrong(f"{text} is not between 0% and 100%")
    return value


def _resources(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if not _RESOURCE.fullmatch(name):
            raise _Wrong(f"{name!r} is no resource: plural names such as pods or resourceclaims/status")
    return names


def _node(text: str) -> str:
    if not _NODE.fullmatch(text):
        raise _Wrong(f"{text!r} is no name of a node")
    return text


def _none(action: str, arguments: list[str]) -> None:
    if arguments:
        raise _Wrong(f"{action} takes no {' '.join(arguments)!r}")


# --- actions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Action:
    make: Callable[[list[str], _Clauses], Fault]
    clauses: tuple[str, ...]
    watches: bool = False


def _latency(arguments: list[str], clauses: _Clauses) -> Fault:
    if len(arguments) != 1:
        raise _Wrong("latency needs a duration, or a span such as 50ms..2s")
    low, dots, high = arguments[0].partition("..")
    least = _duration(low)
    most = _duration(high) if dots else least
    if most < least:
        raise _Wrong(f"{arguments[0]!r} runs backwards")
    return plan.Latency(least, most, clauses.traffic, clauses.timing)


def _error(arguments: list[str], clauses: _Clauses) -> Fault:
    allowed = ", ".join(map(str, CODES))
    if len(arguments) != 1 or not arguments[0].isascii() or not arguments[0].isdigit():
        raise _Wrong(f"error needs a code: {allowed}")
    code = int(arguments[0])
    if code not in CODES:
        raise _Wrong(f"code {code} cannot be given; allowed: {allowed}")
    return plan.Error(code, clauses.traffic, clauses.timing)


def _reset(arguments: list[str], clauses: _Clauses) -> Fault:
    _none("reset", arguments)
    return plan.Reset(clauses.traffic, clauses.timing)


def _lose(arguments: list[str], clauses: _Clauses) -> Fault:
    _none("lose", arguments)
    if "watch" in clauses.verbs:
        raise _Wrong("a watch has no one answer to lose: use drop or stall")
    return plan.Lose(clauses.traffic, clauses.timing)


def _watch(make: Callable[[Traffic, Timing], Fault]) -> Callable[[list[str], _Clauses], Fault]:
    def made(arguments: list[str], clauses: _Clauses) -> Fault:
        if arguments != ["watches"]:
            raise _Wrong("what is meant is 'watches', for example: drop watches on pods every 3s")
        traffic = dataclasses.replace(clauses.traffic, verbs=("watch",))
        return make(traffic, clauses.timing)

    return made


def _clock(arguments: list[str], clauses: _Clauses) -> Fault:
    if len(arguments) != 1 or arguments[0][:1] not in ("+", "-"):
        raise _Wrong("clock needs a jump with its sign, for example +1h or -30s")
    seconds = _positive("clock", arguments[0][1:])
    return plan.Jump(-seconds if arguments[0][0] == "-" else seconds, clauses.timing)


def _kill(arguments: list[str], clauses: _Clauses) -> Fault:
    part = arguments[0] if arguments else ""
    if part not in PARTS:
        known = ", ".join(f"{name} NODE" if of_node else name for name, of_node in PARTS.items())
        raise _Wrong(f"kill needs one of: {known}; not {part!r}")
    if len(arguments) != (2 if PARTS[part] else 1):
        raise _Wrong(f"kill {part} needs {'the name of one node' if PARTS[part] else 'nothing more'}")
    target = Target(part, _node(arguments[1]) if PARTS[part] else "")
    return plan.Kill(target, clauses.timing)


def _full_disk(arguments: list[str], clauses: _Clauses) -> Fault:
    if len(arguments) != 1:
        raise _Wrong("fulldisk needs the name of one node")
    return plan.FullDisk(_node(arguments[0]), clauses.timing)


_REQUESTS = ("percent", *_CLAUSES)
_ACTIONS: Mapping[str, _Action] = {
    "latency": _Action(_latency, _REQUESTS),
    "error": _Action(_error, _REQUESTS),
    "reset": _Action(_reset, _REQUESTS),
    "lose": _Action(_lose, _REQUESTS),
    "drop": _Action(_watch(plan.Drop), ("on", "from", "at", "every", "until", "times"), watches=True),
    "stall": _Action(_watch(plan.Stall), ("on", "from", "at", "for", "every", "until"), watches=True),
    "expire": _Action(_watch(plan.Expire), ("on", "at", "every", "until", "times"), watches=True),
    "clock": _Action(_clock, ("at", "every", "until", "times")),
    "kill": _Action(_kill, ("at", "for", "every", "until", "times")),
    "fulldisk": _Action(_full_disk, ("at", "for", "every", "until", "times")),
}
