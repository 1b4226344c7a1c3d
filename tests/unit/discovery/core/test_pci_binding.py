"""Kernel drivers of PCI functions: bound to another one, and back."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_pci import FakePci
from passthrough_node import ONE, SOUND, TWO, functions

from dra_driver.discovery.core.bus.pci_binding import VFIO, PciFunctions
from dra_driver.errors import DriverRefused, PrepareError


def test_it_is_bound_and_given_back(tmp_path: Path) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    bus = functions(pci)
    for _ in range(2):
        bus.check(ONE, VFIO, {ONE})
        bus.bind(ONE, VFIO)
        assert (pci.driver(ONE), pci.override(ONE)) == (VFIO, VFIO)
        assert (pci.dev / "vfio/12").exists()
    for _ in range(2):
        assert bus.restore(ONE, VFIO, "nvidia") == ""
        assert (pci.driver(ONE), pci.override(ONE)) == ("nvidia", "")


@pytest.mark.parametrize("stop", range(4))
def test_a_crash_at_any_write_can_be_undone_and_repeated(tmp_path: Path, stop: int) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    left = stop

    def write(path: Path, text: str) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        pci.write(path, text)

    dying = PciFunctions(pci.sysfs, pci.dev, pci.proc, write=write)
    if stop < 3:
        with pytest.raises(KeyboardInterrupt):
            dying.bind(ONE, VFIO)
    else:
        dying.bind(ONE, VFIO)
    bus = functions(pci)
    assert bus.restore(ONE, VFIO, "nvidia") == ""
    assert (pci.driver(ONE), pci.override(ONE)) == ("nvidia", "")
    bus.bind(ONE, VFIO)
    assert pci.driver(ONE) == VFIO


def test_what_cannot_go_well_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    audio = SOUND
    pci = FakePci(tmp_path).build(
        {
            ONE: ("nvidia", "12"),
            audio: ("snd_hda_intel", "12"),
            "0000:3a:00.0": ("pcieport", "12"),
            TWO: ("nvidia", ""),
        }
    )
    bus = functions(pci)
    with pytest.raises(PrepareError, match=r"0000:3b:00\.1 \(driver snd_hda_intel\)"):
        bus.check(ONE, VFIO, {ONE})
    bus.check(ONE, VFIO, {ONE, audio})
    with pytest.raises(PrepareError, match="IOMMU is off"):
        bus.check(TWO, VFIO, {TWO})
    with pytest.raises(PrepareError, match="modprobe uio"):
        bus.check(ONE, "uio", {ONE})
    with pytest.raises(PrepareError, match="no PCI function"):
        bus.check("0000:ff:00.0", VFIO, set())
    (pci.sysfs / "bus/pci/devices" / ONE / "sriov_numvfs").write_text("4\n")
    with pytest.raises(PrepareError, match="virtual functions"):
        bus.check(ONE, VFIO, {ONE, audio})


def test_a_driver_that_is_gone_is_told_and_keeps_nobody(tmp_path: Path) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    bus = functions(pci)
    bus.bind(ONE, VFIO)
    (pci.sysfs / "bus/pci/drivers/nvidia").rmdir()
    assert "nvidia does not take it" in bus.restore(ONE, VFIO, "nvidia")
    assert pci.driver(ONE) == ""
    assert "not there" in bus.restore("0000:ff:00.0", VFIO, "nvidia")


def test_a_driver_that_refuses_once_is_asked_again(tmp_path: Path) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    refusals = [OSError(errno.EIO, "Input/output error")]

    def write(path: Path, text: str) -> None:
        if path.name == "bind" and refusals:
            raise refusals.pop()
        pci.write(path, text)

    bus = PciFunctions(pci.sysfs, pci.dev, pci.proc, write=write)
    bus.bind(ONE, VFIO)
    with pytest.raises(DriverRefused, match="nvidia does not take it back: Input/output error") as caught:
        bus.restore(ONE, VFIO, "nvidia")
    assert caught.value.retryable
    assert (pci.driver(ONE), pci.override(ONE)) == ("", "")
    assert bus.restore(ONE, VFIO, "nvidia") == ""
    assert pci.driver(ONE) == "nvidia"


def test_what_was_bound_to_vfio_before_stays_so(tmp_path: Path) -> None:
    """A node whose administrator has set its GPUs aside for virtual machines."""
    pci = FakePci(tmp_path).build({ONE: (VFIO, "12")})
    (pci.sysfs / "bus/pci/devices" / ONE / "modalias").write_text("nvidia")
    bus = functions(pci)
    assert bus.restore(ONE, VFIO, VFIO) == ""
    assert pci.driver(ONE) == VFIO


def test_an_override_of_somebody_else_stays(tmp_path: Path) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    pci.write(pci.sysfs / "bus/pci/devices" / ONE / "driver_override", "nvidia")
    assert functions(pci).restore(ONE, VFIO, "nvidia") == ""
    assert (pci.driver(ONE), pci.override(ONE)) == ("nvidia", "nvidia")


@pytest.mark.parametrize(
    "text", ["", ".", "..", f"../devices/{ONE}", f"{ONE}/", f"{ONE}\n", "0000:3b:00.0\0"]
)
def test_what_is_no_address_leads_nowhere(tmp_path: Path, text: str) -> None:
    bus = functions(FakePci(tmp_path).build({ONE: ("nvidia", "12")}))
    for step in (
        lambda: bus.check(text, VFIO, set()),
        lambda: bus.bind(text, VFIO),
        lambda: bus.restore(text, VFIO, "nvidia"),
    ):
        with pytest.raises(PrepareError, match="no PCI address"):
            step()
    bus.bind(ONE, VFIO)
    with pytest.raises(PrepareError, match="no name of a kernel driver"):
        bus.restore(ONE, VFIO, "../../devices")


def test_processes_with_the_node_open_are_seen(tmp_path: Path) -> None:
    bus = functions(FakePci(tmp_path).build({}))
    fds = tmp_path / "proc/4711/fd"
    fds.mkdir(parents=True)
    (fds / "3").symlink_to("/dev/nvidia0")
    (tmp_path / "proc/4711/comm").write_text("trainer\n")
    assert bus.users({"/dev/nvidia0"}) == ["4711 (trainer)"]
    assert bus.users({"/dev/nvidia1"}) == []


def test_an_override_that_named_the_driver_is_put_back(tmp_path: Path) -> None:
    """As tools of administrators keep it (driverctl)."""
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    pci.write(pci.sysfs / "bus/pci/devices" / ONE / "driver_override", "nvidia")
    bus = functions(pci)
    for _ in range(2):
        bus.bind(ONE, VFIO)
    for _ in range(2):
        assert bus.restore(ONE, VFIO, "nvidia", overridden=True) == ""
    assert (pci.driver(ONE), pci.override(ONE)) == ("nvidia", "nvidia")


def test_sound_and_usb_of_the_same_card_are_companions(tmp_path: Path) -> None:
    usb, other_card, stubbed = "0000:3b:00.2", "0000:3c:00.1", "0000:3b:00.4"
    pci = FakePci(tmp_path).build(
        {
            ONE: ("nvidia", "12"),
            SOUND: ("snd_hda_intel", "12"),
            usb: ("xhci_hcd", "12"),
            "0000:3b:00.3": ("nvidia", "12"),  # a second GPU on the card
            stubbed: ("pci-stub", "12"),
            "0000:3b:00.5": ("snd_hda_intel", "13"),
            "0000:3b:00.6": ("", "12"),
            other_card: ("snd_hda_intel", "12"),
        },
        sound={SOUND, stubbed, "0000:3b:00.5", "0000:3b:00.6", other_card},
    )
    (pci.sysfs / "bus/pci/devices" / usb / "class").write_text("0x0c0330\n")
    bus = functions(pci)
    assert bus.companions(ONE) == (SOUND, usb)
    with pytest.raises(PrepareError) as caught:
        bus.check(ONE, VFIO, {ONE, SOUND, usb})
    assert "in use: 0000:3b:00.3 (driver nvidia), 0000:3c:00.1 (driver snd_hda_intel);" in str(caught.value)


def test_nodes_of_graphics_and_sound_are_those_of_the_function(tmp_path: Path) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12"), SOUND: ("snd_hda_intel", "12")})
    for name in ("drm/card1", "drm/renderD129"):
        (pci.sysfs / "bus/pci/devices" / ONE / name).mkdir(parents=True)
    (pci.sysfs / "bus/pci/devices" / SOUND / "sound/card0/pcmC0D3p").mkdir(parents=True)
    bus = functions(pci)
    assert bus.open_nodes(ONE) == ("/dev/dri/card1", "/dev/dri/renderD129")
    assert bus.open_nodes(SOUND) == ("/dev/snd/pcmC0D3p",)


def test_a_process_that_knows_the_node_by_another_name_is_seen(tmp_path: Path) -> None:
    """One that runs below the root of a driver container."""
    pci = FakePci(tmp_path).build({})
    fds, elsewhere = tmp_path / "proc/4711/fd", tmp_path / "run/nvidia/driver/dev"
    fds.mkdir(parents=True)
    elsewhere.mkdir(parents=True)
    # What stands for the GPU is a real device, because its number decides.
    (pci.dev / "nvidia0").symlink_to("/dev/null")
    (pci.dev / "nvidia1").symlink_to("/dev/zero")
    (elsewhere / "nvidia0").symlink_to("/dev/null")
    (fds / "3").symlink_to(elsewhere / "nvidia0")
    bus = functions(pci)
    assert bus.users({"/dev/nvidia0"}) == ["4711 (?)"]
    assert bus.users({"/dev/nvidia1"}) == []


def test_what_cannot_be_seen_is_not_taken_for_free(tmp_path: Path) -> None:
    """In a PID namespace of its own, and without the right to look."""
    pci = FakePci(tmp_path).build({})
    bus = functions(pci)
    assert bus.users({"/dev/nvidia0"}) == []
    (pci.proc / "2/comm").write_text("sleep\n")
    with pytest.raises(PrepareError, match=r"not visible below .*needs hostPID"):
        bus.users({"/dev/nvidia0"})
    (pci.proc / "2/comm").write_text("kthreadd\n")

    class Unreadable(type(pci.proc)):  # type: ignore[misc]
        def iterdir(self) -> Iterator[Path]:
            if self.name == "fd":
                raise PermissionError(13, "Permission denied", str(self))
            yield from super().iterdir()

    bus = PciFunctions(pci.sysfs, pci.dev, Unreadable(pci.proc), write=pci.write)
    with pytest.raises(PrepareError, match=r"process 2 has open cannot be seen .*CAP_SYS_PTRACE"):
        bus.users({"/dev/nvidia0"})


def test_a_character_device_has_the_number_of_the_binding(tmp_path: Path) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12"), TWO: ("nvidia", "40")}, iommufd=True)
    bus = functions(pci)
    assert bus.iommufd
    assert bus.cdev(ONE) == ""
    bus.bind(TWO, VFIO)
    bus.bind(ONE, VFIO)
    assert (bus.cdev(ONE), bus.cdev(TWO)) == ("vfio1", "vfio0")
    assert bus.nodes(ONE) == ("/dev/vfio/12", "/dev/vfio/devices/vfio1")
    bus.restore(TWO, VFIO, "nvidia")
    bus.restore(ONE, VFIO, "nvidia")
    assert (bus.cdev(ONE), bus.nodes(ONE)) == ("", ("/dev/vfio/12",))


def test_a_kernel_may_show_the_folder_of_a_character_device_that_it_does_not_make(tmp_path: Path) -> None:
    """Linux 6.1 to 6.5, and later ones without CONFIG_VFIO_DEVICE_CDEV."""
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")}, iommufd=True, cdevs=False)
    bus = functions(pci)
    bus.bind(ONE, VFIO)
    assert list((pci.sysfs / "bus/pci/devices" / ONE / "vfio-dev").iterdir())
    assert bus.cdev(ONE) == ""


def test_real_sysfs_attributes_are_written_in_one_piece(tmp_path: Path) -> None:
    """On plain files: what would reach the kernel."""
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    for name in ("drivers/nvidia/unbind", "drivers_probe"):
        (pci.sysfs / "bus/pci" / name).touch()
    with pytest.raises(PrepareError, match="was to be bound to vfio-pci, but is bound to nvidia"):
        PciFunctions(pci.sysfs, pci.dev, pci.proc).bind(ONE, VFIO)
    assert (pci.sysfs / "bus/pci/drivers/nvidia/unbind").read_text() == ONE
    assert (pci.sysfs / "bus/pci/drivers_probe").read_text() == ONE
    assert pci.override(ONE).startswith(VFIO)
