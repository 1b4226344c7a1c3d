"""What claims ask for, in the words that begin every answer about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.api.resource import DeviceConstraint
from dra_driver.structured.matching.constraints import ANY_DOMAIN
from dra_driver.structured.matching.plan import Alternative, ClaimPlan

__all__ = ["Asked", "asked_for"]

# Requests, alternatives and capacities that are listed, and characters of a name.
_LISTED: Final = 3
_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Asked:
    """What some claims ask for.

    Attributes:
        text: for people, such as ``4 gpu.dra-driver.dev together``.
        devices: number of devices that the text names; 0 if it names none.
    """

    text: str
    devices: int = 0


def asked_for(plans: Sequence[ClaimPlan]) -> Asked:
    """Return what the claims that are not allocated ask for; names neither the claims nor their requests."""
    # Equal requests, as those of several claims of a pod often are, are added up.
    numbers: dict[str, int] = {}
    constraints: dict[str, None] = {}
    counted = True
    for plan in plans:
        constraints |= dict.fromkeys(map(_constraint, plan.constraints)) if plan.requests else {}
        for request in plan.requests:
            counts = {a.count for a in request.alternatives}
            one = counts.pop() if len(counts) == 1 else None
            counted = counted and one is not None
            text = _alternatives(request.alternatives, numbered=one is None)
            numbers[text] = numbers.get(text, 0) + (one or 0)
    if not numbers:
        return Asked("devices")
    parts = [f"{number} {text}" if number else text for text, number in numbers.items()]
    several = sum(numbers.values()) > 1 or not counted
    text = " and ".join(_some(parts, "requests")) + " together" * several
    if constraints and several:
        text = ", ".join([text, *_some(list(constraints), "constraints")])
    return Asked(text, sum(numbers.values()) if counted and len(numbers) == 1 else 0)


def _alternatives(alternatives: Sequence[Alternative], *, numbered: bool) -> str:
    """Return the classes of a request with capacities, and with a number for each where they differ."""
    texts = [f"{_number(a)} {_what(a)}" if numbered else _what(a) for a in alternatives]
    return " or ".join(_some(list(dict.fromkeys(texts)), "alternatives"))


def _number(alternative: Alternative) -> str:
    return "all" if alternative.count is None else str(alternative.count)


def _what(alternative: Alternative) -> str:
    text = _cut(alternative.device_class.metadata.name)
    amounts = [f"{_cut(name)} {amount}" for name, amount in alternative.capacity.items()]
    if amounts:
        text += f" with {', '.join(_some(amounts, 'capacities'))}"
    return f"{text} for admin access" if alternative.admin else text


def _constraint(constraint: DeviceConstraint) -> str:
    same = constraint.match_attribute is not None
    name = constraint.match_attribute or constraint.distinct_attribute or ""
    bare = name.removeprefix(ANY_DOMAIN).rpartition("/")[2]
    return f"{'the same' if same else 'a different'} {_cut(bare)}"


def _some(texts: Sequence[str], of: str) -> list[str]:
    """Return the first few texts, and the number of the others."""
    more = len(texts) - _LISTED
    return [*texts[:_LISTED], *([f"{more} more {of}"] if more > 0 else [])]


def _cut(name: str) -> str:
    """Return a name on one line: those of files may have any characters."""
    text = " ".join(name.split())
    return text if len(text) <= _NAME else f"{text[: _NAME - 1]}…"
