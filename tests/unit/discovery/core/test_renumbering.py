"""Devices that get other names while discovery looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dra_driver import sdk
from dra_driver.discovery import LastKnownGood
from dra_driver.discovery.core.hotplug import HotplugHints, fingerprint
from dra_driver.hardware import DiscoveredDevice


class TwoFacts:
    """A backend that reads two facts of a device by its name, and lets something happen between them."""

    name = "facts"

    def __init__(self, folder: Path, between: Iterator[Callable[[], None]]) -> None:
        self._folder = folder
        self._between = between

    def hotplug(self) -> HotplugHints:
        return HotplugHints(((self._folder, "dev"),))

    def discover(self) -> Sequence[DiscoveredDevice]:
        serial = (self._folder / "dev0/serial").read_text()
        next(self._between, lambda: None)()
        name = (self._folder / "dev0").resolve().name
        return [DiscoveredDevice(sdk.describe_device(name, {"type": "npu"}, {}), uuid=serial)]

    def close(self) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two devices a and b, and the name dev0, which is a's."""
    for device in "ab":
        (tmp_path / "hardware" / device).mkdir(parents=True)
        (tmp_path / "hardware" / device / "serial").write_text(device)
    names = tmp_path / "class"
    names.mkdir()
    (names / "dev0").symlink_to("../hardware/a")
    return names


def renumber(folder: Path) -> None:
    link = folder / "dev0"
    device = "b" if link.resolve().name == "a" else "a"
    link.unlink()
    link.symlink_to(f"../hardware/{device}")


def test_a_look_during_which_names_change_is_made_again(folder: Path) -> None:
    kept = LastKnownGood(TwoFacts(folder, iter([lambda: renumber(folder)])))
    (found,) = kept.look()
    assert (found.uuid, found.device.name) == ("b", "b")
    assert kept.report.state == "ok"


def test_names_that_change_all_the_time_are_no_answer(folder: Path) -> None:
    between = iter([lambda: None, *[lambda: renumber(folder)] * 3])
    kept = LastKnownGood(TwoFacts(folder, between))
    (before,) = kept.look()
    assert kept.look() == (before,)
    assert kept.report.state == "failed"
    assert kept.report.message == "facts: devices or drivers came or went during each of 3 looks"
    (after,) = kept.look()
    assert (after.uuid, after.device.name) == ("b", "b")


def test_the_fingerprint_changes_when_a_name_becomes_another_devices(folder: Path) -> None:
    places = [(folder, "dev"), (folder / "none", "")]
    before = fingerprint(places)
    (folder / "other").symlink_to("nowhere")
    assert fingerprint(places) == before
    renumber(folder)
    assert fingerprint(places) != before
    renumber(folder)
    assert fingerprint(places) == before
    (folder / "dev0").unlink()
    assert fingerprint(places) == frozenset()
