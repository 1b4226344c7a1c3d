"""Paths and names of the webhooks in the API server's configuration (``webhook-configurations.yaml``)."""

from __future__ import annotations

from typing import Final

__all__ = ["CAPACITY_PATH", "GATE_PATH", "GATE_WEBHOOK", "NOT_GATED", "VALIDATE_PATH"]

VALIDATE_PATH: Final = "/validate"
GATE_PATH: Final = "/gate"
CAPACITY_PATH: Final = "/capacity"
GATE_WEBHOOK: Final = "gate.admission.dra-driver.dev"
NOT_GATED: Final = "not-gated"
"""Name of the condition of the gate's webhook that leaves out pods which have the gate."""
