"""The embedded cluster: API server, stand-in controllers, scheduler and kubelets, and the demo on top.

Only the machinery around the driver is simulated; the driver runs as the same processes as on a real cluster.
Nothing here is imported by ``controller`` or ``kubelet_plugin``.
"""
