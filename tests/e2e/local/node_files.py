"""What the node pretends to be: its GPUs, its NICs, and the boot that it is in."""

from __future__ import annotations

import uuid
from pathlib import Path

from dra_driver.api.names import RDMA_DRIVER_NAME
from dra_driver.discovery.simulated import layout as simulated_layout
from dra_driver.discovery.simulated import profile as simulated_profile

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
        simulated_profile.load(profile)
        self.gpus.write_text(simulated_profile.read(profile), "utf-8")
        simulated_layout.build(simulated_profile.load(NICS), self.nics, mknod=True)
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
