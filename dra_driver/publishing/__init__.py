"""Writing the slices of a pool, for whoever publishes it: the controller, or the node agent itself.

What a pool should be is ``dra_driver.resourceslice``'s to say (``build_slices``, ``plan``), when it may be
written the publisher's. Here the API server is asked which fields it keeps, and a plan is carried out through
``ports.KubeClient``.
"""

from __future__ import annotations

from dra_driver.publishing.device_plugins import LEAVING_SECONDS, LeavingPlugins
from dra_driver.publishing.features import probe_features
from dra_driver.publishing.slices import AlteredByServer, delete_stale, store

__all__ = [
    "LEAVING_SECONDS",
    "AlteredByServer",
    "LeavingPlugins",
    "delete_stale",
    "probe_features",
    "store",
]
