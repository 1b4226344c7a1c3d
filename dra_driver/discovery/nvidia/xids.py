"""What NVIDIA's XIDs and NVML's other event types mean for the GPU, and how each condition ends.

XIDs are the numbered errors that the kernel driver reports. ``ROWS`` is NVIDIA's catalogue of them (see
``SOURCE``), with the immediate action that it advises; words and effects are ours. Severities:

``info``      harmless to others: the program at fault is gone, or the driver has dealt with it
``degraded``  nothing new belongs on the GPU until it was reset; what runs may go on
``failed``    the GPU does not work any more: what runs on it has to go

No fault of a program's own makes a GPU ``degraded``, however often it is repeated: a tenant could keep the
GPU from others. Some errors look like the hardware's and can be a program's (``Effect.DRIVER``): they keep
new claims away, but where the driver says that nothing has to be done not for longer than ``VERDICT_SECONDS``
after the last one, and they never evict.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = [
    "APPLICATION_SECONDS",
    "EVENTS",
    "RECOVERY_ACTIONS",
    "ROWS",
    "SOURCE",
    "UNKNOWN_SECONDS",
    "VERDICT_SECONDS",
    "XIDS",
    "Effect",
    "Ends",
    "Meaning",
    "Row",
    "meaning_of_event",
    "meaning_of_reason",
    "meaning_of_xid",
]

SOURCE: Final = "docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as of 2025-10-29"

# How long an error of an application stays visible after it was last seen.
APPLICATION_SECONDS: Final = 600.0
# A number that the table does not know may be anything: kept away from new work for an hour, not for good.
UNKNOWN_SECONDS: Final = 3600.0
# How long after the last error the driver's own word counts, that nothing has to be done about it.
VERDICT_SECONDS: Final = 600.0
# The first branch of the driver that says what has to be done (NVML's recovery action, XID 154).
_FIRST_VERDICTS: Final = 565


class Ends(enum.Enum):
    """What ends a condition."""

    EXPIRY = "it was not seen again for a while"
    RESET = "the GPU was reset or the driver loaded anew"


class Effect(enum.Enum):
    """What an XID means for the GPU."""

    IGNORE = "Counted only"
    APPLICATION = "A program's fault: `info` for 10 minutes"
    DOUBT = "Meaning unknown: `degraded` for an hour, or until the driver recommends no action"
    DRIVER = "`degraded` until a reset, or until the driver recommends no action"
    RESET = "`degraded` until a reset"
    FAILED = "`failed` until a reset"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a kind of error says about the GPU.

    Attributes:
        severity: of ``DeviceHealth``; if empty, it makes no condition and is only counted.
        seconds: until it expires.
        verdicts: branch of the driver from which its recovery action takes this error into account, so that
            "none" ends the condition as well; 0 if it never does.
    """

    text: str
    severity: str
    ends: Ends = Ends.RESET
    seconds: float = APPLICATION_SECONDS
    verdicts: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """XIDs of one meaning.

    Attributes:
        codes: numbers and ranges of them, between blanks.
        action: immediate action in NVIDIA's catalogue, for Ampere and newer; empty where it has none.
        text: what has happened, in our words.
        summed_up: branch of the driver from which XID 154 sums it up, by the catalogue; 0 if it does not say.
    """

    codes: str
    effect: Effect
    action: str
    text: str
    summed_up: int = 0

    @property
    def numbers(self) -> Iterator[int]:
        """The codes one by one."""
        for word in self.codes.split():
            first, _, last = word.partition("-")
            yield from range(int(first), int(last or first) + 1)

    @property
    def meaning(self) -> Meaning:
        """What the row says about the GPU."""
        match self.effect:
            case Effect.IGNORE:
                return _ignored(self.text)
            case Effect.APPLICATION:
                return _application(self.text)
            case Effect.DOUBT:
                # The driver knows its own numbers: what it does not sum up by name it does when it is new.
                return _doubtful(self.text)
            case Effect.DRIVER:
                text = f"{self.text}; {_RESET}, unless the driver recommends no action"
                return Meaning(text, "degraded", verdicts=self.summed_up)
            case Effect.RESET | Effect.FAILED:
                text = f"{self.text}; {_WAYS.get(self.action, _RESET)}"
                return Meaning(text, "degraded" if self.effect is Effect.RESET else "failed")


def _application(text: str) -> Meaning:
    return Meaning(text, "info", Ends.EXPIRY)


def _ignored(text: str) -> Meaning:
    return Meaning(text, "", Ends.EXPIRY)


def _doubtful(text: str) -> Meaning:
    return Meaning(text, "degraded", Ends.EXPIRY, UNKNOWN_SECONDS, _FIRST_VERDICTS)


_RESET: Final = "the GPU needs a reset"
# What ends an error, by the catalogue's action, where that is no reset of the GPU.
_WAYS: Final = {
    "CHECK_MECHANICALS": "check its cables",
    "RESTART_BM": "the machine has to be restarted",
    "RESTART_VM": "the virtual machine has to be restarted",
    "UPDATE_SWFW": "one of them has to be updated",
}
_I, _A, _Q = Effect.IGNORE, Effect.APPLICATION, Effect.DOUBT
_D, _R, _F = Effect.DRIVER, Effect.RESET, Effect.FAILED

# Where effect and action differ: 43, 45 and 137 are left by faults of programs, and say so for a while. The
# encoders' are programs' like those of all other engines. What is FAILED lets nothing on the GPU go on. 109,
# those of links and what is not known can be a program's. From 162 on the catalogue names no action.
ROWS: Final = (
    Row(
        "1-7 9-10 12 15-24 26-30 33-36 42 49-53 55-59 81 87 90-91 111-118 122-125 138",
        _Q,
        "CONTACT_SUPPORT",
        "not raised by GPUs of this catalogue",
    ),
    Row("8", _A, "RESTART_APP", "the GPU stopped processing a program"),
    Row("11 32", _A, "RESTART_APP", "a program's push buffer is corrupt"),
    Row("13", _A, "RESTART_APP", "a program caused an exception of the graphics or compute engine"),
    Row("14", _I, "IGNORE", "a fault that a program injected on purpose"),
    Row("25", _A, "RESTART_APP", "a program's push buffer holds what is not allowed"),
    Row("31", _A, "RESTART_APP", "a program touched memory that is not mapped"),
    Row("37", _I, "IGNORE", "the driver's firmware reported an error"),
    Row("38", _I, "IGNORE", "the firmware's watchdog ran out"),
    Row("39-41 70-72 75-77 85 126-135", _A, "RESTART_APP", "exception of a copy engine"),
    Row("43", _A, "IGNORE", "a program's channel was stopped after its own fault; the GPU is well"),
    Row("44", _I, "IGNORE", "a fault while switching contexts"),
    Row("45", _A, "WORKFLOW_XID_45", "channels were removed, usually after another error"),
    Row("46", _R, "RESET_GPU", "the GPU did not answer in time"),
    Row("47 65 73 142", _A, "CONTACT_SUPPORT", "exception of a video encoder"),
    Row("48", _R, "WORKFLOW_XID_48", "a memory error that could not be corrected (double-bit ECC)", 565),
    Row("54", _F, "CHECK_MECHANICALS", "a power cable is missing"),
    Row("60", _A, "RESTART_APP", "exception of a video engine"),
    Row("61", _Q, "CONTACT_SUPPORT", "a microcontroller of the GPU stopped for debugging"),
    Row("62", _F, "RESET_GPU", "a microcontroller of the GPU halted", 565),
    Row("63", _I, "IGNORE", "a bad memory row or page is recorded for replacement", 565),
    Row("64", _R, "RESET_GPU", "a bad memory row or page could not be replaced", 565),
    Row("66-67", _I, "IGNORE", "the driver made an illegal access"),
    Row("68 83-84 88-89 96-98", _A, "RESTART_APP", "exception of a video decoder"),
    Row("69", _A, "RESTART_APP", "a program used a class that the engine does not know"),
    Row("74", _D, "WORKFLOW_NVLINK_ERR", "an NVLink error", 565),
    Row("78", _R, "UPDATE_SWFW", "a virtual GPU could not be started; driver and host software do not match"),
    Row("79", _F, "RESTART_BM", "the GPU has fallen off the bus", 565),
    Row("80", _A, "RESTART_APP", "a program's push buffer arrived damaged"),
    Row("82 99-105", _A, "RESTART_APP", "exception of a JPEG engine"),
    Row("86 139", _A, "RESTART_APP", "exception of the optical flow engine"),
    Row("92", _I, "IGNORE", "many memory errors that were corrected"),
    Row("93", _I, "IGNORE", "the InfoROM has been written very often"),
    Row(
        "94",
        _A,
        "RESTART_APP",
        "a memory error that only the program which used the memory has suffered from",
        565,
    ),
    Row("95", _F, "RESET_GPU", "a memory error that spread beyond one program", 565),
    Row("106-107", _I, "IGNORE", "a test message of the baseboard interface"),
    Row("108", _I, "IGNORE", "an address of a peer on NVLink could not be translated"),
    Row("109", _D, "RESET_GPU", "a context switch did not end", 570),
    Row("110", _R, "RESET_GPU", "a security fault", 565),
    Row("119", _F, "RESET_GPU", "the GPU's system processor does not answer"),
    Row("120", _F, "RESET_GPU", "the GPU's system processor failed", 565),
    Row("121", _I, "IGNORE", "an error of the link to the CPU was corrected"),
    Row("136", _R, "RESET_GPU", "an NVLink could not be trained", 565),
    Row("137", _A, "IGNORE", "a program made an illegal access over NVLink"),
    Row("140", _F, "RESET_GPU", "memory errors that the driver could not recover from"),
    Row("141", _I, "IGNORE", "CUDA's fast path to the GPU reported an error"),
    Row("143", _F, "RESET_GPU", "the GPU could not be initialized", 575),
    Row("144-150", _D, "WORKFLOW_NVLINK5_ERR", "an NVLink error", 565),
    Row(
        "151",
        _R,
        "RESTART_VM",
        "the encryption key could not be changed",
    ),
    Row("152", _I, "IGNORE", "the deep learning accelerator made an illegal access"),
    Row("153", _I, "IGNORE", "the deep learning accelerator did not answer in time"),
    Row("154", _I, "XID_154", "the recovery action has changed"),
    Row("155", _D, "RESET_GPU", "an NVLink is down", 565),
    Row("156", _R, "RESET_GPU", "a part of the GPU is retired at the next reset", 565),
    Row("157", _I, "IGNORE", "a part of the GPU could not be retired"),
    Row("158", _F, "RESET_GPU", "a fatal timeout"),
    Row("159", _Q, "CHECK_UVM", "an error of the link to the CPU that lost no data"),
    Row("160", _I, "IGNORE", "a memory channel is retired at the next reset", 575),
    Row("161", _I, "IGNORE", "a memory channel could not be retired", 575),
    Row("162", _I, "", "power smoothing works again"),
    Row("163", _I, "", "power smoothing is off"),
    Row("164", _I, "", "the circuit for power smoothing is nearly worn out"),
    Row("165", _I, "", "the circuit for power smoothing is worn out"),
    Row("166", _Q, "", "traffic of an NVLink came before its encryption was set up"),
    Row("167", _R, "", "a fatal timeout of the PCIe link"),
    Row("168", _Q, "", "errors in the protected part of the memory, with ECC off"),
    Row("169", _R, "", "a microcontroller of the GPU halted"),
    Row("170", _Q, "", "an interrupt of an encrypted NVLink"),
    Row("171", _I, "", "details of an error in device memory"),
    Row("172", _I, "", "details of an error in on-chip memory"),
)

XIDS: Final[Mapping[int, Meaning]] = MappingProxyType({n: row.meaning for row in ROWS for n in row.numbers})

# NVML's event types beside XIDs: type → (reason, meaning).
EVENTS: Final[Mapping[int, tuple[str, Meaning]]] = MappingProxyType(
    {
        0x2: ("DoubleBitEcc", XIDS[48]),
        0x400: ("DramRetirement", _application("a bad part of the memory is retired")),
        0x800: (
            "DramRetirementFailed",
            Meaning(f"a bad part of the memory could not be retired; {_RESET}", "degraded"),
        ),
        0x1000: ("PoisonError", _application("a program read memory that is known to be bad")),
        0x2000: ("FatalPoisonError", Meaning(f"bad memory was read by the GPU itself; {_RESET}", "failed")),
        0x4000: ("GpuUnavailable", Meaning("the driver says that the GPU is unavailable", "failed")),
        # What is to be done is asked for.
        0x8000: ("RecoveryAction", _ignored("the recovery action has changed")),
    }
)

# What NVML wants done (field GET_GPU_RECOVERY_ACTION): value → (severity, words). 0 is nothing.
RECOVERY_ACTIONS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {
        1: ("degraded", "the driver recommends a reset of the GPU"),
        2: ("degraded", "the driver recommends a restart of the node"),
        3: ("degraded", "the driver recommends that peer-to-peer traffic of the GPU ends"),
        4: ("degraded", "the driver recommends that the GPU is drained and reset"),
        5: ("degraded", "the driver recommends that the IMEX domain is recovered"),
        6: ("degraded", "the driver recommends a reset of the bus"),
        7: ("degraded", "the driver recommends a restart of the whole system"),
    }
)


def meaning_of_xid(number: int) -> Meaning:
    """Return the meaning of any number; one that is not in the table is taken seriously for a while."""
    known = XIDS.get(number)
    return known if known is not None else _doubtful("an unknown error")


def meaning_of_reason(reason: str) -> Meaning | None:
    """Return the meaning of a condition by its name, as ``Conditions`` gives it; None if there is no such."""
    number = reason.removeprefix("Xid")
    if number != reason and number.isascii() and number.isdigit() and len(number) < 20:
        return meaning_of_xid(int(number))
    return next((meaning for name, meaning in EVENTS.values() if name == reason), None)


def meaning_of_event(kind: int) -> tuple[str, Meaning] | None:
    """Return reason and meaning of an NVML event type that is no XID; None if it is not watched."""
    return EVENTS.get(kind)
