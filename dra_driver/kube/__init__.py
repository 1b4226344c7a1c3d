"""Adapters to the API server: transport, informers, work queues, leader election, events.

The ``kubernetes`` package reads configuration and credentials; requests go out as plain JSON through aiohttp
and are decoded by ``dra_driver.api.codec``. Nothing here knows what a GPU or a pool is.

Not allowed here: decisions about devices, claims or slices; imports of the controller or the node agent.
"""

from __future__ import annotations

from dra_driver.kube.backoff import Backoff
from dra_driver.kube.changes import Changes
from dra_driver.kube.clock import SystemClock, seconds_of
from dra_driver.kube.delegating import Call, DelegatingClient
from dra_driver.kube.events import EventRecorder, cut_message
from dra_driver.kube.fence import Fence, FencedClient
from dra_driver.kube.heartbeat import Heartbeat
from dra_driver.kube.http.transport import KubeApi
from dra_driver.kube.informer import Handler, Informer
from dra_driver.kube.leader import LEASES, LeaderConfig, LeaderElector, Lease
from dra_driver.kube.workqueue import WorkQueue

__all__ = [
    "LEASES",
    "Backoff",
    "Call",
    "Changes",
    "DelegatingClient",
    "EventRecorder",
    "Fence",
    "FencedClient",
    "Handler",
    "Heartbeat",
    "Informer",
    "KubeApi",
    "LeaderConfig",
    "LeaderElector",
    "Lease",
    "SystemClock",
    "WorkQueue",
    "cut_message",
    "seconds_of",
]
