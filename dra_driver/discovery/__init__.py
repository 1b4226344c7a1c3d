"""Discovery: backends that look at hardware and say what they found, in one schema for all vendors.

A backend implements ``dra_driver.ports.DeviceBackend``. Its calls block (they read sysfs and call into
vendors' libraries): run them in an executor. Whatever touches ``/sys`` or ``/dev`` takes its root as a
parameter. A fact that cannot be read is absent, never invented; a call that fails costs one attribute; a
device that fails wholly costs only itself.

Third parties add a backend by an entry point of the group ``dra_driver.backends``, see
``registry.BackendFactory``.
"""

from dra_driver.discovery.core.diagnostics import diagnostics
from dra_driver.discovery.core.last_known_good import (
    DRIVER_ABSENT,
    DRIVER_HANGING,
    BackendReport,
    LastKnownGood,
)
from dra_driver.discovery.core.problems import HardwareAbsent, Problem
from dra_driver.discovery.core.simulation import is_simulated
from dra_driver.discovery.registry import (
    GPU_BACKENDS,
    NIC_BACKENDS,
    BackendFactory,
    backend_names,
    demo_spec,
    hardware_backends,
    open_backend,
    open_backends,
)

__all__ = [
    "DRIVER_ABSENT",
    "DRIVER_HANGING",
    "GPU_BACKENDS",
    "NIC_BACKENDS",
    "BackendFactory",
    "BackendReport",
    "HardwareAbsent",
    "LastKnownGood",
    "Problem",
    "backend_names",
    "demo_spec",
    "diagnostics",
    "hardware_backends",
    "is_simulated",
    "open_backend",
    "open_backends",
]
