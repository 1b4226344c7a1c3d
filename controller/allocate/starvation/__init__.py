"""Big requests are not starved by small ones: devices are set aside for a pod that has waited for long."""

from __future__ import annotations

from controller.allocate.starvation.setting_aside import SettingAside
from controller.allocate.starvation.shown import SetAsideCondition

__all__ = ["SetAsideCondition", "SettingAside"]
