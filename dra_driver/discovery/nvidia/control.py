"""Changes NVIDIA GPUs through NVML: compute mode, MIG mode, MIG instances. Time slices through nvidia-smi.

A MIG device is a GPU instance (GI: memory and engines) with a compute instance (CI: multiprocessors) in it;
ours fills its GPU instance. What a container needs of it is the GPU's node and two capability nodes.
Capability nodes are given with their numbers, because the host's ``/dev`` need not have them: the kernel
creates none, only udev rules or NVIDIA's tools do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml
import structlog

from dra_driver.cdi import DeviceNode, character_device
from dra_driver.discovery.core.problems import HardwareAbsent
from dra_driver.discovery.nvidia import smi as nvidia_smi
from dra_driver.discovery.nvidia.driver.handles import GpuAbsent
from dra_driver.discovery.nvidia.driver.library import error_text
from dra_driver.errors import PrepareError
from dra_driver.hardware import GpuInstance

__all__ = ["NvmlControl"]

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

_MODES: Final = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: "default",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive-process",
}
_NUMBERS: Final = {name: number for number, name in _MODES.items()}
# Most instances of one kind on a GPU; guards against a library that answers nonsense.
_MAX_INSTANCES: Final = 64
_ABSENT: Final = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED)
_NO_PROFILE: Final = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)
# What passes when a process has ended or another tool has done its work.
_PASSING: Final = (pynvml.NVML_ERROR_IN_USE, pynvml.NVML_ERROR_TIMEOUT)
# Six digits fit into the 20 bits of a minor number; the driver numbers some thousands of capabilities.
_MINOR: Final = re.compile(r"^DeviceFileMinor:\s*([0-9]{1,6})\s*$", re.MULTILINE)
_NUMBER: Final = re.compile(r"[0-9]{1,6}")
_MODE: Final = re.compile(r"^DeviceFileMode:\s*([0-9]{1,4})\s*$", re.MULTILINE)
_MAJOR: Final = re.compile(r"^\s*([0-9]{1,7})\s+nvidia-caps\s*$", re.MULTILINE)
# The kernel has 12 bits for it (MKDEV).
_MOST_MAJOR: Final = (1 << 12) - 1
# Of the capabilities of instances: readable by every process that is given the node.
_USUAL_MODE: Final = 0o444


class NvmlControl:
    """The ``ports.GpuControl`` of NVIDIA GPUs.

    Args:
        reach: opens the library, keeps other calls from one GPU for the time of a block and gives its handle;
            called with its UUID and what is done. See ``NvmlBackend.gpu``.
        smi: nvidia-smi.
        proc_root: where procfs is mounted.
        dev_root: where device nodes are.
        loaded: whether the kernel driver is loaded; None if that is not known.
        patience: how long a GPU may refuse something because it is in use, in seconds: one whose last process
            has just ended does so for a second.
    """

    def __init__(
        self,
        reach: Callable[[str, str], AbstractContextManager[Any]],
        *,
        smi: str,
        proc_root: Path,
        dev_root: Path,
        loaded: Callable[[], bool | None] = lambda: None,
        patience: float = 5.0,
    ) -> None:
        self._reach = reach
        self._smi = smi
        self._proc = proc_root
        self._dev = dev_root
        self._loaded = loaded
        self._patience = patience

    @property
    def vendor(self) -> str:
        """``nvidia``."""
        return "nvidia"

    @property
    def runs_daemons(self) -> bool:
        """True: MPS."""
        return True

    @property
    def makes_in_steps(self) -> bool:
        """True: a GPU instance, then the compute instance in it; neither outlives a boot or a reset."""
        return True

    @property
    def lanes_of_devices(self) -> bool:
        """True, see ``SeparateCalls``."""
        return True

    def has(self, gpu: str) -> bool:
        """See ``ports.GpuControl.has``.

        Raises:
            PrepareError: the library cannot be used although the kernel driver may be loaded: then instances
                and modes of the GPU are still there, and must not be forgotten.
        """
        try:
            with self._reach(gpu, "the question whether it is there"):
                return True
        except GpuAbsent:
            return False  # or fallen off the bus: its instances went with it
        except HardwareAbsent as e:
            if self._loaded() is False:
                return False
            raise PrepareError(
                f"GPU {gpu} cannot be queried while its kernel driver is loaded: {e}", retryable=True
            ) from e
        except pynvml.NVMLError as e:
            raise PrepareError(f"GPU {gpu} cannot be queried: {error_text(e)}", retryable=True) from e

    def compute_mode(self, gpu: str) -> str:
        """See ``ports.GpuControl.compute_mode``."""
        with self._gpu(gpu, "compute mode") as handle:
            try:
                return _MODES.get(pynvml.nvmlDeviceGetComputeMode(handle), "")
            except pynvml.NVMLError as e:
                if e.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                    return ""
                raise

    def set_compute_mode(self, gpu: str, mode: str) -> None:
        """See ``ports.GpuControl.set_compute_mode``."""
        if self.compute_mode(gpu) == mode:
            return
        with self._gpu(gpu, f"compute mode {mode} cannot be set") as handle:
            pynvml.nvmlDeviceSetComputeMode(handle, _NUMBERS[mode])

    def set_time_slice(self, gpu: str, interval: str) -> None:
        """See ``ports.GpuControl.set_time_slice``."""
        nvidia_smi.set_time_slice(self._smi, gpu, interval)

    def partitioning(self, gpu: str) -> bool:
        """See ``ports.GpuControl.partitioning``: MIG mode."""
        with self._gpu(gpu, "MIG mode") as handle:
            return _mig_mode(handle)

    def set_partitioning(self, gpu: str, enabled: bool) -> None:
        """See ``ports.GpuControl.set_partitioning``."""
        self._patiently(lambda: self._set_mig_mode(gpu, enabled))

    def _set_mig_mode(self, gpu: str, enabled: bool) -> None:
        what = f"MIG mode cannot be turned {'on' if enabled else 'off'}"
        with self._gpu(gpu, what) as handle:
            if _mig_mode(handle) == enabled:
                return
            status = pynvml.nvmlDeviceSetMigMode(handle, int(enabled))
            if _mig_mode(handle) == enabled:
                return
            # What is pending would come at the next reset, long after the claim has gone.
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlDeviceSetMigMode(handle, int(not enabled))
        if status in _PASSING:
            raise PrepareError(f"GPU {gpu}: {what}: processes use the GPU", retryable=True)
        raise PrepareError(
            f"GPU {gpu}: {what} without a reset of the GPU, as on all GPUs before Hopper: run once, while "
            f"nothing uses the GPU: nvidia-smi -i {gpu} -mig {int(enabled)}, then "
            f"nvidia-smi -i {gpu} --gpu-reset"
        )

    def instances(self, gpu: str) -> Sequence[GpuInstance]:
        """See ``ports.GpuControl.instances``."""
        with self._gpu(gpu, "its MIG instances cannot be listed") as handle:
            if not _mig_mode(handle):
                return ()
            found = [self._describe(handle, instance) for instance in _all_instances(handle)]
            return sorted(found, key=lambda i: (i.start, i.instance_id))

    def begin_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        """See ``ports.GpuControl.begin_instance``."""
        what = f"MIG instance of profile {profile_id} at {start}:{size} cannot be created"
        with self._gpu(gpu, what) as handle:
            instance = _new_gpu_instance(handle, profile_id, start, size)
            try:
                begun = self._describe(handle, instance)
            except pynvml.NVMLError:
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlGpuInstanceDestroy(instance)
                raise
        _log.info("MIG instance begun", gpu=gpu, instance=begun.instance_id, start=start, size=size)
        return begun

    def create_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        """See ``ports.GpuControl.create_instance``."""
        what = f"MIG instance of profile {profile_id} at {start}:{size} cannot be created"
        with self._gpu(gpu, what) as handle:
            instance = next(
                (
                    i
                    for i in _gpu_instances(handle, profile_id)
                    if (p := pynvml.nvmlGpuInstanceGetInfo(i).placement).start == start and p.size == size
                ),
                None,
            )
            if instance is None:
                instance = _new_gpu_instance(handle, profile_id, start, size)
                _log.info("MIG instance made", gpu=gpu, profile=profile_id, start=start, size=size)
            if not _compute_instances(instance):
                slices = next(p.sliceCount for p in _profiles(handle) if p.id == profile_id)
                pynvml.nvmlGpuInstanceCreateComputeInstance(instance, _compute_profile(instance, slices))
            made = self._describe(handle, instance)
        if not made.device_nodes:
            raise PrepareError(
                f"GPU {gpu}: the device nodes of its MIG instance {made.instance_id} are unknown: neither "
                f"{self._proc}/driver/nvidia/capabilities nor {self._proc}/driver/nvidia-caps/mig-minors "
                "names them; is this the host's procfs (--proc-root)?"
            )
        return made

    def destroy_instance(self, gpu: str, instance_id: int) -> None:
        """See ``ports.GpuControl.destroy_instance``."""

        def destroy() -> None:
            with self._gpu(gpu, f"MIG instance {instance_id} cannot be destroyed") as handle:
                self._destroy(handle, instance_id)

        self._patiently(destroy)
        _log.info("MIG instance destroyed", gpu=gpu, instance=instance_id)

    def removal(self, gpu: str, instances: Sequence[int]) -> str:
        """See ``ports.GpuControl.removal``."""
        return nvidia_smi.removal(gpu, instances)

    def _patiently(self, work: Callable[[], None]) -> None:
        """Try again for a while what a process prevents that may be ending just now."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                work()
                return
            except PrepareError as e:
                if not e.retryable or time.monotonic() >= deadline:
                    raise
            time.sleep(0.2)

    def _destroy(self, handle: Any, instance_id: int) -> None:
        try:
            instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance_id)
        except pynvml.NVMLError as e:
            if e.value in _ABSENT and instance_id not in _listed(handle):
                return
            raise  # one call that fails does not make it absent
        for compute in _compute_instances(instance):
            pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)

    def _describe(self, handle: Any, instance: Any) -> GpuInstance:
        info = pynvml.nvmlGpuInstanceGetInfo(instance)
        uuid = ""
        nodes: tuple[DeviceNode, ...] = ()
        for compute in _compute_instances(instance)[:1]:
            inner = pynvml.nvmlComputeInstanceGetInfo_v2(compute)
            uuid = pynvml.nvmlDeviceGetUUID(inner.device)
            # Asked anew, for the number may change with MIG mode.
            minor = pynvml.nvmlDeviceGetMinorNumber(handle)
            nodes = self._nodes(minor, info.id, inner.id)
        return GpuInstance(
            instance_id=info.id,
            profile_id=info.profileId,
            start=info.placement.start,
            size=info.placement.size,
            uuid=uuid,
            device_nodes=nodes,
        )

    # --- capability nodes -----------------------------------------------------------------------------------

    def _nodes(self, minor: int, gi: int, ci: int) -> tuple[DeviceNode, ...]:
        """Return the GPU's node and those of both instances; none where the kernel does not name them."""
        paths = (f"gpu{minor}/mig/gi{gi}/access", f"gpu{minor}/mig/gi{gi}/ci{ci}/access")
        capabilities = [c for c in map(self._capability, paths) if c is not None]
        if len(capabilities) != len(paths):
            return ()
        major = self._capability_major()
        nodes = [DeviceNode(f"/dev/nvidia{minor}")]
        for number, mode in capabilities:
            path = f"/dev/nvidia-caps/nvidia-cap{number}"
            if not major:
                # The container runtime looks for the node in the host's /dev.
                nodes.append(DeviceNode(path))
                continue
            self._ensure_node(major, number, mode)
            nodes.append(character_device(path, major, number, mode))
        return tuple(nodes)

    def _capability(self, path: str) -> tuple[int, int] | None:
        """Return minor number and file mode of the capability's node."""
        text = _read(self._proc / "driver/nvidia/capabilities" / path)
        match = _MINOR.search(text)
        if match:
            mode = _MODE.search(text)
            return int(match[1]), int(mode[1]) & 0o777 if mode else _USUAL_MODE
        # Without a mounted capabilities folder the table of all that could be is still there.
        name = path.replace("/mig/", "/")
        for line in _read(self._proc / "driver/nvidia-caps/mig-minors").splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == name and _NUMBER.fullmatch(words[1]):
                return int(words[1]), _USUAL_MODE
        return None

    def _capability_major(self) -> int:
        """Return the number that the kernel assigns when the driver is loaded; 0 if it is unknown."""
        match = _MAJOR.search(_read(self._proc / "devices"))
        number = int(match[1]) if match else 0
        return number if number <= _MOST_MAJOR else 0

    def _ensure_node(self, major: int, minor: int, mode: int) -> None:
        """Make the node where the agent may: in user namespaces runtimes bind it from the host's /dev."""
        node = self._dev / "nvidia-caps" / f"nvidia-cap{minor}"
        if node.exists():
            return
        try:
            node.parent.mkdir(mode=0o755, exist_ok=True)
            os.mknod(node, stat.S_IFCHR | mode, os.makedev(major, minor))
        except OSError as e:
            _log.debug("a capability node is not in /dev and cannot be made", node=str(node), error=str(e))

    @contextlib.contextmanager
    def _gpu(self, gpu: str, what: str) -> Iterator[Any]:
        try:
            with self._reach(gpu, f"a change or a question ({what})") as handle:
                yield handle
        except GpuAbsent as e:
            raise PrepareError(f"GPU {gpu}: {what}: it is not there", retryable=True) from e
        except pynvml.NVMLError as e:
            raise _refusal(f"GPU {gpu}: {what}", e) from e


def _refusal(what: str, error: pynvml.NVMLError) -> PrepareError:
    hint = ""
    if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
        hint = "; that needs root"
    elif error.value == pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES:
        hint = "; the place is taken by an instance that this driver did not create"
    return PrepareError(f"{what}: {error_text(error)}{hint}", retryable=error.value in _PASSING)


def _mig_mode(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError as e:
        # A GPU that has kinds of instances has the mode, too: then it was one call that failed.
        if e.value == pynvml.NVML_ERROR_NOT_SUPPORTED and next(_profiles(handle), None) is None:
            return False
        raise


def _all_instances(handle: Any) -> list[Any]:
    """Return the GPU instances of a GPU in MIG mode.

    Raises:
        NVMLError: also where it does not tell any kind of instance that it can have: it may have some all the
            same.
    """
    profiles = list(_profiles(handle))
    if not profiles:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return [instance for profile in profiles for instance in _gpu_instances(handle, profile.id)]


def _listed(handle: Any) -> frozenset[int]:
    """Return the numbers of the GPU instances that there are."""
    if not _mig_mode(handle):
        return frozenset()
    return frozenset(pynvml.nvmlGpuInstanceGetInfo(i).id for i in _all_instances(handle))


def _profiles(handle: Any) -> Iterator[Any]:
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            yield _either_version(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
        except pynvml.NVMLError as e:
            if e.value not in _NO_PROFILE:
                raise


def _compute_profile(instance: Any, slices: int) -> int:
    """Return the profile of the compute instance that fills a GPU instance of so many slices."""
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = _either_version(
                pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
                instance,
                number,
                pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
            )
        except pynvml.NVMLError as e:
            if e.value not in _NO_PROFILE:
                raise
            continue
        if info.sliceCount == slices:
            return int(info.id)
    raise PrepareError(f"NVML knows no compute instance of {slices} slices")


def _either_version(call: Callable[..., _T], *args: object) -> _T:
    try:
        return call(*args, version=2)
    except pynvml.NVMLError as e:
        if e.value not in (
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        ):
            raise
        return call(*args, version=1)


def _new_gpu_instance(handle: Any, profile_id: int, start: int, size: int) -> Any:
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile_id, ctypes.byref(place))


def _gpu_instances(handle: Any, profile_id: int) -> list[Any]:
    array = (pynvml.c_nvmlGpuInstance_t * _MAX_INSTANCES)()
    count = ctypes.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstances(handle, profile_id, array, ctypes.byref(count))
    return list(array[: min(count.value, _MAX_INSTANCES)])


def _compute_instances(instance: Any) -> list[Any]:
    found: list[Any] = []
    kinds, refused = 0, None
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = _either_version(
                pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
                instance,
                number,
                pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
            )
        except pynvml.NVMLError as e:
            if e.value not in _NO_PROFILE:
                raise
            refused = e
            continue
        kinds += 1
        array = (pynvml.c_nvmlComputeInstance_t * _MAX_INSTANCES)()
        count = ctypes.c_uint(0)
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, array, ctypes.byref(count))
        found += array[: min(count.value, _MAX_INSTANCES)]
    if refused is not None and not kinds:
        raise refused  # there is no GPU instance without a kind of compute instance
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
