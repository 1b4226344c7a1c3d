"""Generated gRPC stubs of the kubelet's interfaces; the sources are in ``proto/``.

Only the gRPC servers (``kubelet_plugin``) and the stand-in kubelet (``dra_driver.sim``) import them. The
protobuf package names are the kubelet's, so the methods on the wire are
``/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/…``, whatever the Python modules are called.
"""

from __future__ import annotations
