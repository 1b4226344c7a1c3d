"""Where the project's files are, for tests in whatever folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["GOLDEN", "HARDWARE", "PROJECT", "SUPPORT"]

PROJECT: Final = Path(__file__).resolve().parents[2]
SUPPORT: Final = PROJECT / "tests" / "support"
HARDWARE: Final = SUPPORT / "hardware"
GOLDEN: Final = PROJECT / "tests" / "golden"
"""Results that were written down: changes to them are looked at by a person."""
