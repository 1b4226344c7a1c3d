"""What NVIDIA's XIDs and NVML's other event types mean for the GPU, and how each condition ends.

XIDs are the numbered errors that the kernel driver reports. The classes follow the immediate action of
NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors, Ampere and newer); severities are ours:

``info``      harmless to others: the program at fault is gone, or the driver has dealt with it
``degraded``  nothing new belongs on the GPU until it was reset; what runs may go on
``failed``    the GPU does not work any more: what runs on it has to go
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = [
    "APPLICATION_SECONDS",
    "EVENTS",
    "RECOVERY_ACTIONS",
    "UNKNOWN_SECONDS",
    "XIDS",
    "Ends",
    "Meaning",
    "meaning_of_event",
    "meaning_of_xid",
]

# How long an error of an application stays visible after it was last seen.
APPLICATION_SECONDS: Final = 600.0
# A number that the table does not know may be anything: kept away from new work for an hour, not for good.
UNKNOWN_SECONDS: Final = 3600.0


class Ends(enum.Enum):
    """What ends a condition."""

    EXPIRY = "it was not seen again for a while"
    RESET = "the GPU was reset or the driver loaded anew"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a kind of error says about the GPU.

    Attributes:
        severity: of ``DeviceHealth``; if empty, it makes no condition and is only counted.
        seconds: until it expires.
    """

    text: str
    severity: str
    ends: Ends = Ends.RESET
    seconds: float = APPLICATION_SECONDS


def _application(text: str) -> Meaning:
    return Meaning(text, "info", Ends.EXPIRY)


def _ignored(text: str) -> Meaning:
    return Meaning(text, "", Ends.EXPIRY)


def _reset(text: str) -> Meaning:
    return Meaning(f"{text}; the GPU needs a reset", "degraded")


def _failed(text: str) -> Meaning:
    return Meaning(text, "failed")


XIDS: Final[Mapping[int, Meaning]] = MappingProxyType(
    {
        8: _application("the GPU stopped processing a program"),
        13: _application("a program caused an exception of the graphics or compute engine"),
        31: _application("a program touched memory that is not mapped"),
        32: _application("a program's push buffer is corrupt"),
        37: _ignored("the driver's firmware reported an error"),
        38: _ignored("the firmware's watchdog ran out"),
        39: _application("exception of a copy engine"),
        40: _application("exception of a copy engine"),
        41: _application("exception of a copy engine"),
        43: _application("a program's channel was stopped after its own fault; the GPU is well"),
        44: _ignored("a fault while switching contexts"),
        45: _application("channels were removed, usually after another error"),
        46: _reset("the GPU did not answer in time"),
        48: _reset("a memory error that could not be corrected (double-bit ECC)"),
        54: _failed("a power cable is missing"),
        60: _application("exception of a video engine"),
        62: _failed("a microcontroller of the GPU halted; the GPU needs a reset"),
        63: _ignored("a bad memory row or page is recorded for replacement"),
        64: _reset("a bad memory row or page could not be replaced"),
        66: _ignored("the driver made an illegal access"),
        67: _ignored("the driver made an illegal access"),
        68: _application("exception of the video decoder"),
        69: _application("a program used a class that the engine does not know"),
        70: _application("exception of a copy engine"),
        71: _application("exception of a copy engine"),
        72: _application("exception of a copy engine"),
        74: _reset("an NVLink error"),
        78: _reset("a virtual GPU could not be started; driver and host software do not fit"),
        79: _failed("the GPU has fallen off the bus; the machine has to be restarted"),
        80: _application("a program's push buffer arrived damaged"),
        92: _ignored("many memory errors that were corrected"),
        93: _ignored("the InfoROM has been written very often"),
        94: _application("a memory error that only the program which used the memory has suffered from"),
        95: _failed("a memory error that spread beyond one program; the GPU needs a reset"),
        106: _ignored("a message of the driver without consequence"),
        109: _reset("a context switch did not end"),
        110: _reset("a security fault"),
        119: _failed("the GPU's system processor does not answer; the GPU needs a reset"),
        120: _failed("the GPU's system processor failed; the GPU needs a reset"),
        121: _ignored("an error of the link to the CPU was corrected"),
        136: _reset("an NVLink could not be trained"),
        137: _application("a program made an illegal access over NVLink"),
        140: _failed("memory errors that the driver could not recover from; the GPU needs a reset"),
        141: _ignored("a message of the driver without consequence"),
        143: _failed("the GPU could not be initialized; it needs a reset"),
        **dict.fromkeys(range(144, 151), _reset("an NVLink error")),
        151: _reset("the encryption key could not be changed; the virtual machine has to be restarted"),
        # A summary of other XIDs; what is to be done is asked for.
        154: _ignored("the recovery action has changed"),
        155: _reset("an NVLink is down"),
        156: _reset("a part of the GPU is retired at the next reset"),
        157: _ignored("a part of the GPU could not be retired"),
        158: _failed("a fatal timeout; the GPU needs a reset"),
        160: _ignored("a memory channel is retired at the next reset"),
        161: _ignored("a memory channel could not be retired"),
        # Detail of XID 48, which speaks for itself.
        171: _ignored("details of an error in device memory"),
        172: _ignored("details of an error in on-chip memory"),
    }
)

# NVML's event types beside XIDs: type → (reason, meaning).
EVENTS: Final[Mapping[int, tuple[str, Meaning]]] = MappingProxyType(
    {
        0x2: ("DoubleBitEcc", XIDS[48]),
        0x400: ("DramRetirement", _application("a bad part of the memory is retired")),
        0x800: ("DramRetirementFailed", _reset("a bad part of the memory could not be retired")),
        0x1000: ("PoisonError", _application("a program read memory that is known to be bad")),
        0x2000: ("FatalPoisonError", _failed("bad memory was read by the GPU itself; it needs a reset")),
        0x4000: ("GpuUnavailable", _failed("the driver says that the GPU is unavailable")),
        # What is to be done is asked for.
        0x8000: ("RecoveryAction", _ignored("the recovery action has changed")),
    }
)

# What NVML wants done (field GET_GPU_RECOVERY_ACTION): value → (severity, words). 0 is nothing.
RECOVERY_ACTIONS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {
        1: ("degraded", "the driver asks for a reset of the GPU"),
        2: ("degraded", "the driver asks for a restart of the node"),
        3: ("degraded", "the driver asks that peer-to-peer traffic of the GPU ends"),
        4: ("degraded", "the driver asks that the GPU is drained and reset"),
        5: ("degraded", "the driver asks that the IMEX domain is recovered"),
        6: ("degraded", "the driver asks for a reset of the bus"),
        7: ("degraded", "the driver asks for a restart of the whole system"),
    }
)


def meaning_of_xid(number: int) -> Meaning:
    """Return the meaning of any number; one that is not in the table is taken seriously for a while."""
    known = XIDS.get(number)
    if known is not None:
        return known
    return Meaning(
        "an error that this driver has no words for; see NVIDIA's XID catalogue",
        "degraded",
        Ends.EXPIRY,
        UNKNOWN_SECONDS,
    )


def meaning_of_event(kind: int) -> tuple[str, Meaning] | None:
    """Return reason and meaning of an NVML event type that is no XID; None if it is not watched."""
    return EVENTS.get(kind)
