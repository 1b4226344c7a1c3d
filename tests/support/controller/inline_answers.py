"""Decisions in this process, for controllers that run in a test's own event loop."""

from __future__ import annotations

import time

from controller.allocate.answers.decider import Answers, Inline
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import Settings
from controller.config import ControllerConfig
from controller.observe.metrics import Metrics

__all__ = ["inline"]


def inline(journal: Journal, settings: Settings, _config: ControllerConfig, _metrics: Metrics) -> Answers:
    """Return answers that are worked out in this process: in virtual time no other one can be waited for."""
    return Inline(journal, settings, time.thread_time)
