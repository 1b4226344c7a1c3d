"""Names that are made of claims: files, CDI devices, variables. Text of claims is hostile.

Only a validated UID ever becomes part of a file name; claim and request names go into variable names and CDI
device names after the checks here.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from dra_driver.api.meta import Uid
from dra_driver.errors import InvalidInput

__all__ = [
    "MAX_UID",
    "cdi_device_name",
    "check_uid",
    "environment_fragment",
    "spec_file_name",
    "spec_file_prefix",
    "uid_of_spec_file",
]

MAX_UID: Final = 63
_UID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_FRAGMENT_LENGTH: Final = 63


def check_uid(uid: str) -> Uid:
    """Return the UID, if it may become part of a file name.

    Raises:
        InvalidInput: it is empty, longer than 63 characters, or has others than letters, digits and dashes.
    """
    if not _UID.fullmatch(uid):
        raise InvalidInput(
            f"claim UID {uid[:80]!r}: expected 1 to {MAX_UID} letters, digits and dashes, "
            "as in an RFC 4122 UUID"
        )
    return Uid(uid)


def spec_file_prefix(driver: str) -> str:
    """Return what the CDI files of this driver's claims begin with."""
    return f"k8s.{driver}-claim_"


def spec_file_name(driver: str, uid: Uid) -> str:
    """Return the name of a claim's CDI file: ``k8s.<driver>-claim_<uid>.json``."""
    return f"{spec_file_prefix(driver)}{check_uid(uid)}.json"


def uid_of_spec_file(driver: str, file_name: str) -> Uid | None:
    """Return the claim that a file of the CDI directory belongs to; None where the file is not ours."""
    prefix = spec_file_prefix(driver)
    if not (file_name.startswith(prefix) and file_name.endswith(".json")):
        return None
    uid = file_name[len(prefix) : -len(".json")]
    return Uid(uid) if _UID.fullmatch(uid) else None


def cdi_device_name(uid: Uid, request: str, device: str, share_id: str | None) -> str:
    """Return the name of a CDI device: ``claim-<uid>_<request>_<device>[_<share>]``.

    The prefix keeps digits from the first place, where CDI before 0.5.0 refuses them and most UIDs have one.
    The separator does not occur in the parts, so different parts never make one name.

    Raises:
        InvalidInput: a part is not a DNS label or UID.
    """
    for what, value in (("request", request), ("device", device)):
        if not _LABEL.fullmatch(value):
            raise InvalidInput(f"{what} {value[:80]!r}: expected a DNS label (a-z, 0-9, dashes)")
    parts = [f"claim-{check_uid(uid)}", request, device]
    if share_id is not None:
        parts.append(check_uid(share_id))
    return "_".join(parts)


def environment_fragment(name: str) -> str:
    """Return a claim or request name as part of a variable name: upper case, underscores for dashes.

    A name that is longer than 63 characters, has other characters than ``a-z0-9-``, or two dashes in a row,
    ends with eight digits of its SHA-256: two names never become one, and a fragment has no two underscores
    in a row, so that they can separate fragments.
    """
    fragment = re.sub(r"[^A-Z0-9]", "_", name.upper())
    if len(fragment) <= _FRAGMENT_LENGTH and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        return fragment
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8].upper()
    shortened = re.sub(r"_+", "_", fragment)[: _FRAGMENT_LENGTH - 9].strip("_")
    return f"{shortened}_{digest}" if shortened else f"X_{digest}"
