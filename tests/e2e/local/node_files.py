"""What the node pretends to be: its GPUs, its NICs, and the boot that it is in."""

from __future__ import annotations

import uuid
from importlib import resources
from pathlib import Path

from dra_driver.api.names import RDMA_DRIVER_NAME
from dra_driver.discovery.simulated import backend as simulated
from dra_driver.discovery.simulated import fake_hardware

NICS = "dgx-h100-nics"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class NodeFiles:
    """Files in one folder, which node agents see under the same path.

    Args:
        folder: what it is called on the node.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gpus = folder / "gpus.yaml"
        self.nics = folder / "nics"
        self.boot_id = folder / "proc" / "sys" / "kernel" / "random" / "boot_id"

    def make(self, profile: str) -> None:
        """Writes them; ``profile`` is a built-in one, or a file.

        Raises:
            ConfigurationError: there is no such profile.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        simulated.load(profile)
        built_in = resources.files("dra_driver.discovery").joinpath(f"data/profiles/{profile}.yaml")
        known = profile in simulated.built_in_profiles()
        self.gpus.write_text(built_in.read_text("utf-8") if known else Path(profile).read_text("utf-8"))
        fake_hardware.build(fake_hardware.load(NICS), self.nics, mknod=True)
        self.boot_id.parent.mkdir(parents=True)
        self.boot()

    def boot(self) -> None:
        """Another boot."""
        self.boot_id.write_text(f"{uuid.uuid4()}\n")

    @property
    def rdma_nodes(self) -> Path:
        """For ``/dev/infiniband``."""
        return self.nics / "dev" / "infiniband"

    def arguments(self, driver: str) -> list[str]:
        """For a node agent."""
        found = [f"--procfs-root={self.folder / 'proc'}", "--rescan-interval=2"]
        if driver == RDMA_DRIVER_NAME:
            roots = (f"--sysfs-root={self.nics / 'sys'}", f"--dev-root={self.nics / 'dev'}")
            return [*found, "--backend=rdma", *roots]
        return [*found, f"--backend=simulated={self.gpus}"]
