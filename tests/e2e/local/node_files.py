"""What the node pretends to be: its GPUs, their nodes and driver, its NICs, and the boot that it is in."""

from __future__ import annotations

import os
import shutil
import stat
import uuid
from pathlib import Path

from dra_driver.api.names import RDMA_DRIVER_NAME
from dra_driver.discovery.simulated import layout as simulated_layout
from dra_driver.discovery.simulated import profile as simulated_profile

NICS = "dgx-h100-nics"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Where the node shows the nodes of GPUs; which of them is which GPU's, the profile says.
GPU_NODES = "/dev/dra-e2e"
_NODES = 8
_MAJOR = 195  # NVIDIA's; nobody opens them
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
# The first driver; the profiles have another one, so that it shows when this one is seen.
DRIVER = "565.57.01"


class NodeFiles:
    """Files in one folder, which node agents see under the same path.

    Args:
        folder: what it is called on the node.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gpus = folder / "gpus.yaml"
        self.nics = folder / "nics"
        self.gpu_nodes = folder / "gpu-nodes"
        self.driver = folder / "driver"
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
        self.gpu_nodes.mkdir()
        for n in range(_NODES):
            os.mknod(self.gpu_nodes / f"gpu{n}", stat.S_IFCHR | 0o666, os.makedev(_MAJOR, n))
        self.install_driver(DRIVER, "libcuda.so", "libnvidia-ml.so")
        self.boot_id.parent.mkdir(parents=True)
        self.boot()

    def install_driver(self, version: str, *libraries: str) -> None:
        """Put these files in the place of an earlier driver's; of another driver all names are others."""
        shutil.rmtree(self.driver, ignore_errors=True)
        folder = self.driver / _LIBRARIES
        folder.mkdir(parents=True)
        for name in libraries:
            (folder / f"{name}.{version}").write_bytes(b"\x7fELF")
            (folder / f"{name}.1").symlink_to(f"{name}.{version}")

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
        return [*found, f"--nvidia-driver-root={self.driver}", f"--backend=simulated={self.gpus}"]
