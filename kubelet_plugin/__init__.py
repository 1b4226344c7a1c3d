"""The node agent: what the node has goes into its DeviceInventory, what claims were given into containers.

::

    app            start, run, orderly end
    grpc           the services that the kubelet calls, and their sockets; they translate
    telemetry      metrics, probes, what is shown of the state
    claims         prepare and unprepare, reservations and their checkpoint, recovery, reconciliation
    health         conditions of devices, and what claims and pods are told of them
    devices        what discovery found, hotplug, inventory, publishing by the node
    gpu            the effects on GPUs: settings, partitions, sharing daemons, kernel drivers
    core           durable files, instances, registration, notices

A room imports those below it only. The agent writes its node's DeviceInventory and the status of claims that
it has prepared; ResourceSlices only with ``--publish=node``. Unprepare and the repair of CDI files need
neither the API server nor the hardware.
"""

from __future__ import annotations
