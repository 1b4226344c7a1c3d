"""The node agent: what the node has goes into its DeviceInventory, what claims were given into containers.

::

    plugin         start, run, orderly end
    services       the gRPC services that the kubelet calls; they translate
    sockets        gRPC servers on Unix sockets
    engine         carries out the state machine of dra_driver.preparation
    checkpoint_file, cdi_directory, files   what is durable
    locks, instances                        two plugins on one node, as during a rolling update
    reconciliation what is durable against the API server, now and then
    devices        what discovery found, in memory
    hardware, mps  the effects on GPUs: settings, partitions, sharing daemons; hardware_setup joins them
    leftovers      what no claim holds on the GPUs
    registration, inventory                 the handshake around publishing

It writes one object of the API, its node's DeviceInventory, and no ResourceSlice and no claim. Unprepare and
the repair of CDI files need neither the API server nor the hardware.
"""

from __future__ import annotations
