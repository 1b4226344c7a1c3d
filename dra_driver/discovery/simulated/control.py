"""Settings and partitions of simulated GPUs, in a file so that they outlive the process like hardware."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dra_driver.cdi import own_nodes
from dra_driver.discovery.nvidia import smi
from dra_driver.errors import PrepareError
from dra_driver.hardware import DiscoveredDevice, GpuInstance

__all__ = ["SimulatedControl"]

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "simulated-partitions.dra-driver.dev")


class SimulatedControl:
    """Implements ``ports.GpuControl`` like Hopper: MIG mode needs no reset, placements do not overlap.

    Args:
        devices: returns UUID → GPU.
        file: where the state is kept; if None, it is kept in memory.
        daemons: whether sharing daemons are simulated, too.
    """

    def __init__(
        self,
        devices: Callable[[], Mapping[str, DiscoveredDevice]],
        file: Path | None,
        *,
        daemons: bool = False,
    ) -> None:
        self._devices = devices
        self._file = file
        self._daemons = daemons
        self._lock = threading.Lock()
        self._memory: dict[str, dict[str, Any]] = {}

    @property
    def vendor(self) -> str:
        """``nvidia``."""
        return "nvidia"

    @property
    def runs_daemons(self) -> bool:
        """Whether sharing daemons can run: only simulated ones, a real one would find no GPU."""
        return self._daemons

    @property
    def makes_in_steps(self) -> bool:
        """True, as of MIG."""
        return True

    def has(self, gpu: str) -> bool:
        """See ``ports.GpuControl.has``."""
        return gpu in self._devices()

    def compute_mode(self, gpu: str) -> str:
        """See ``ports.GpuControl.compute_mode``."""
        return str(self._read(gpu).get("compute", "default"))

    def set_compute_mode(self, gpu: str, mode: str) -> None:
        """See ``ports.GpuControl.set_compute_mode``."""
        self._write(gpu, compute=mode)

    def set_time_slice(self, gpu: str, interval: str) -> None:
        """See ``ports.GpuControl.set_time_slice``."""
        self._write(gpu, slice=interval)

    def partitioning(self, gpu: str) -> bool:
        """See ``ports.GpuControl.partitioning``."""
        return bool(self._read(gpu).get("mig", False))

    def set_partitioning(self, gpu: str, enabled: bool) -> None:
        """See ``ports.GpuControl.set_partitioning``."""
        if enabled and not self._profiles(gpu):
            raise PrepareError(f"GPU {gpu}: it cannot be partitioned")
        if not enabled and self.instances(gpu):
            raise PrepareError(f"GPU {gpu}: MIG mode cannot be turned off: it has instances", retryable=True)
        self._write(gpu, mig=enabled)

    def instances(self, gpu: str) -> Sequence[GpuInstance]:
        """See ``ports.GpuControl.instances``."""
        found = [self._instance(gpu, *place) for place in self._read(gpu).get("instances", [])]
        return sorted(found, key=lambda i: i.start)

    def begin_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        """See ``ports.GpuControl.begin_instance``."""
        what = f"GPU {gpu}: instance of profile {profile_id} at {start}:{size}"
        if not self.partitioning(gpu):
            raise PrepareError(f"{what}: MIG mode is off")
        if (profile_id, start, size) not in self._profiles(gpu):
            raise PrepareError(f"{what}: there is no such place")
        places = [list(p) for p in self._read(gpu).get("instances", [])]
        if any(start < s + n and s < start + size for _, s, n in places):
            raise PrepareError(f"{what}: the place is taken")
        place = [profile_id, start, size]
        self._write(gpu, instances=[*places, place], half=[*self._half(gpu), place])
        return self._instance(gpu, profile_id, start, size)

    def create_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        """See ``ports.GpuControl.create_instance``."""
        place = [profile_id, start, size]
        if place not in self._read(gpu).get("instances", []):
            self.begin_instance(gpu, profile_id, start, size)
        if place in self._half(gpu):
            self._write(gpu, half=[p for p in self._half(gpu) if p != place])
        return self._instance(gpu, profile_id, start, size)

    def destroy_instance(self, gpu: str, instance_id: int) -> None:
        """See ``ports.GpuControl.destroy_instance``."""
        places = self._read(gpu).get("instances", [])
        half = [p for p in self._half(gpu) if p[1] != instance_id]
        self._write(gpu, instances=[p for p in places if p[1] != instance_id], half=half)

    def removal(self, gpu: str, instances: Sequence[int]) -> str:
        """See ``ports.GpuControl.removal``."""
        return smi.removal(gpu, instances)

    def _instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        if [profile_id, start, size] in self._half(gpu):
            return GpuInstance(instance_id=start, profile_id=profile_id, start=start, size=size)
        identity = uuid.uuid5(_NAMESPACE, f"{gpu}/{profile_id}/{start}")
        device = self._devices()[gpu]
        return GpuInstance(
            instance_id=start,  # places do not overlap
            profile_id=profile_id,
            start=start,
            size=size,
            uuid=f"MIG-{identity}",
            device_nodes=own_nodes(device.material, device.own_nodes),
        )

    def _profiles(self, gpu: str) -> set[tuple[int, int, int]]:
        partitions = self._devices()[gpu].device.partitions
        return {(p.profile_id, place.start, place.size) for p in partitions for place in p.placements}

    def _half(self, gpu: str) -> list[list[int]]:
        """Return the places of instances that are half made."""
        return list(self._read(gpu).get("half", []))

    def _read(self, gpu: str) -> dict[str, Any]:
        return self._all().get(gpu, {})

    def _all(self) -> dict[str, dict[str, Any]]:
        if self._file is None:
            return self._memory
        try:
            state = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _write(self, gpu: str, **changes: object) -> None:
        with self._lock:
            state = self._all()
            state[gpu] = {**state.get(gpu, {}), **changes}
            if self._file is None:
                return
            # A machine that loses power loses this state, as real GPUs do: no fsync.
            temporary = self._file.with_name(f".{self._file.name}.tmp")
            temporary.write_text(json.dumps(state))
            temporary.replace(self._file)
